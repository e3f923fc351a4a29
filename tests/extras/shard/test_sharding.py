"""Sharded training makes the updates of one process, and its checkpoints fit any number of them."""

import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from bare_runs import SGD, bare_run, random_batch, stop_at
from commands import Command, last_checkpoint
from number_task import numbers_config, write_config
from safetensors.torch import load_file, save_file
from torch import Tensor

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.shard.fully_shard import scatter, shard_loss
from seq2seq_cli.model.parameters import unique_parameters
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.parallel.launcher import launch
from seq2seq_cli.training.parallel.process_group import process_group
from seq2seq_cli.training.run import Hooks
from seq2seq_cli.training.step import compute_gradients, train_step

pytestmark = pytest.mark.usefixtures("imports_shared")

SHARDED = "training.shard=full"
SLOW = pytest.mark.slow
MODELS = {
    "tied": {},
    "odd": {"d_model": 18, "heads": 3, "layers": {"encoder": 1, "decoder": 2}, "norm": "post"},
    "untied": {"tie_embeddings": False, "attention_scale": "temperature", "positions": "rotary"},
}


def build(**options: object) -> Transformer:
    torch.manual_seed(5)
    shape = {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 32, "dropout": 0.0} | options
    return Transformer(ModelConfig(**shape), 30, 30, True, 0)


def updates(config: Config, model: dict, path: Path, *, alone: bool = False) -> list[float]:
    """Three updates, the first gradients, and the last weights; a process may have no sentence."""
    with process_group(config) as parallel:
        whole, training = build(**model), config.training
        use_bf16 = training.precision == "bf16"
        batch_loss = BatchLoss(whole, 0.1, use_bf16)
        if not alone:
            with torch.device("meta"):
                batch_loss = BatchLoss(build(**model), 0.1, use_bf16)
            shard_loss(batch_loss, torch.device("cpu"), parallel.world_size)
            scatter(unique_parameters(whole), unique_parameters(batch_loss.model))
        optimizer = SGD(batch_loss.parameters(), lr=0.1)
        run = bare_run(batch_loss, optimizer, training, parallel)
        batches = [random_batch(7, seed=1), random_batch(1, seed=2), random_batch(4, seed=3)]
        numbers = [compute_gradients(run, batches)[0]]
        tensors = {f"{name} gradient": p.grad for name, p in run.model.named_parameters()}
        found = dict(parallel.gather({n: g.clone() for n, g in tensors.items() if g is not None}))
        for _ in range(3):
            result = train_step(run, batches)
            numbers += [result.loss, result.grad_norm]
        found |= parallel.gather(unique_parameters(run.model))
        if parallel.is_main:
            save_file(found, path)
    return numbers


def must_be_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(
            value,
            expected[name],
            atol=1e-6,
            rtol=1e-5,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@pytest.fixture
def config(tmp_path) -> Path:
    return write_config(tmp_path, numbers_config(tmp_path, 400))


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("tied", 2),
        pytest.param("tied", 4, marks=SLOW),
        ("odd", 4),
        pytest.param("odd", 3, marks=SLOW),
        pytest.param("untied", 2, marks=SLOW),
        pytest.param("untied", 4, marks=SLOW),
    ],
)
@pytest.mark.parametrize("checkpointing", [False, pytest.param(True, marks=SLOW)])
def test_sharded_updates_match_those_of_one_process(config, tmp_path, model, count, checkpointing):
    """Three batches an update, and a norm that is clipped."""
    options = ["training.max_grad_norm=0.3"]
    alone, sharded = tmp_path / "alone", tmp_path / "sharded"
    expected = updates(load_config(config, options), MODELS[model], alone, alone=True)
    assert min(expected[2::2]) > 0.3
    options += [SHARDED, f"training.activation_checkpointing={checkpointing}".lower()]
    work = partial(updates, load_config(config, options), MODELS[model], sharded)
    assert launch(work, count) == pytest.approx(expected, rel=1e-5)
    must_be_close(load_file(sharded), load_file(alone))


@pytest.mark.parametrize(
    ("model", "count"), [("tied", 2), *(pytest.param(m, 4, marks=SLOW) for m in MODELS)]
)
def test_sharded_bf16_is_as_exact_as_bf16_in_one_process(config, tmp_path, model, count):
    """Compared with fp32; without key biases, whose true gradient is zero."""
    shape = MODELS[model] | {"attention_bias": False}
    found = {}
    for name, precision, processes in (
        ("exact", "fp32", 1),
        ("alone", "bf16", 1),
        ("sharded", "bf16", count),
    ):
        options = [f"training.precision={precision}", *([SHARDED] if processes > 1 else [])]
        given, path = load_config(config, options), tmp_path / name
        work = partial(updates, given, shape, path, alone=processes == 1)
        numbers = launch(work, processes) if processes > 1 else work()
        found[name] = load_file(path) | {"losses and norms": torch.tensor(numbers)}
    errors = {}
    for name, exact in found["exact"].items():
        assert found["sharded"][name].dtype == torch.float32, name
        alone, sharded = ((found[kind][name] - exact).norm() for kind in ("alone", "sharded"))
        assert sharded <= 4 * alone + 2**-7 * exact.norm(), name
        if name.endswith("gradient"):
            errors[name] = (alone, sharded)
    alone, sharded = (torch.stack(each).norm() for each in zip(*errors.values(), strict=True))
    assert 0 < sharded < 1.5 * alone


# Without key biases, whose true gradient is zero, so that Adam follows the rounding.
TWELVE = (
    "training.max_steps=12",
    "training.warmup_steps=2",
    "training.precision=fp32",
    "training.gradient_accumulation=2",
    "model.attention_bias=false",
    "training.adam_epsilon=1e-4",
    "validation.every=6",
    "validation.decode=false",
)


def train_in_parts(
    config: Path, run: Path, parts: list[tuple[int, str, int | None]], *settings: str
) -> None:
    """Train until each step (None: the end), with so many processes, sharded or not."""
    for count, shard, stop in parts:
        how = [f"training.processes={count}", f"training.shard={shard}"]
        train(load_config(config, [*TWELVE, *settings, *how]), run, hooks=stop_at(stop))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run of one process, next to its config."""
    folder = tmp_path_factory.mktemp("whole")
    config = write_config(folder, numbers_config(folder, 400))
    train_in_parts(config, folder / "run", [(1, "none", None)], "training.ema_decay=0.9")
    return folder / "run"


def must_end_alike(found: Path, expected: Path) -> None:
    one, other = last_checkpoint(found), last_checkpoint(expected)
    files = sorted(path.name for path in other.glob("*.safetensors") if "optim" not in path.name)
    for name in files:
        must_be_close(load_file(one / name), load_file(other / name))


@pytest.mark.slow
def test_run_continues_with_another_number_of_processes(whole, tmp_path, caplog):
    """Sharded or not; a damaged shard is found, and the checkpoint before it is used."""
    config, run = whole.parent / "numbers.yaml", tmp_path / "run"
    settings = ("training.save_every=4", "training.ema_decay=0.9")
    train_in_parts(config, run, [(1, "none", 3), (2, "full", 9)], *settings)
    damaged = shutil.copytree(run, tmp_path / "damaged")
    train_in_parts(config, run, [(1, "full", None)], *settings)
    must_end_alike(run, whole)
    assert last_checkpoint(damaged).name == "step-00000009"
    *_, shard = sorted((last_checkpoint(damaged) / "optimizer").glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    train_in_parts(config, damaged, [(1, "none", None)], *settings)
    assert f"{shard} is damaged: its content does not match its hash" in caplog.text
    must_end_alike(damaged, whole)


@SLOW
@pytest.mark.parametrize(
    "parts",
    [
        [(4, "full", 5), (1, "full", None)],
        [(4, "full", 5), (3, "full", None)],
        [(3, "full", 4), (2, "none", 7), (4, "full", None)],
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "schedule_free_adamw"])
def test_run_continues_with_many_processes(config, tmp_path, parts, optimizer):
    settings = [f"training.optimizer={optimizer}", "training.ema_decay=0.9"]
    if optimizer == "schedule_free_adamw":
        settings = [settings[0], "training.schedule=constant"]
    train_in_parts(config, tmp_path / "whole", [(1, "none", None)], *settings)
    train_in_parts(config, tmp_path / "parts", parts, *settings)
    must_end_alike(tmp_path / "parts", tmp_path / "whole")


def fail(path: Path) -> None:
    """A disk that is full until an old checkpoint is removed, twice; then one without access."""
    steps = {step for step in (0, 2) if (path.parent / f"step-{step:08}").exists()}
    if path.name == "step-00000004.optimizer.part" and 0 in steps:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if path.name == "step-00000006" and 2 in steps:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if path.name == "step-00000008.optimizer.part":
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.slow
def test_full_disk_makes_room_or_leaves_the_checkpoint_out(config, tmp_path):
    settings = [*TWELVE, SHARDED, "training.processes=2", "training.save_every=2"]
    settings += ["training.keep_last=3", "training.max_steps=9", "validation.every=9"]
    train(load_config(config, settings), tmp_path / "run", hooks=Hooks(before_write=fail))
    checkpoints = sorted((tmp_path / "run/checkpoints").iterdir())
    assert [int(path.name[5:]) for path in checkpoints] == [4, 6, 9]
    log = (tmp_path / "run/train.log").read_text()
    assert "cannot write the optimizer's state ([Errno 13] Permission denied)" in log
    assert "cannot write the checkpoint of step 8" in log
    assert log.count("cannot write") == 2


@SLOW
def test_verify_resume_compares_the_state_of_all_processes(config, seq2seq: Command):
    options = (f"--set={option}" for option in (SHARDED, "training.processes=2", *TWELVE[1:]))
    seq2seq("verify-resume", config, "--steps=6", "--interruptions=1", *options).ok()


def files_of(run: Path) -> set[str]:
    """The files of a run folder, but those of the optimizer's state."""
    names = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    return {name for name in names if "/optimizer" not in name and "tfevents" not in name}


def test_sharded_run_leaves_an_ordinary_folder(config, tmp_path, seq2seq: Command):
    """The weights of every file are whole, and those of the model translate."""
    settings = [f"--set={option}" for option in (*TWELVE, "training.average_checkpoints=2")]
    settings += ["--set=training.save_every=4", "--set=validation.decode=true"]
    for name, processes in (("none", 1), ("full", 2)):
        how = (f"--set=training.shard={name}", f"--set=training.processes={processes}")
        seq2seq("train", config, "--run-dir", tmp_path / name, *settings, *how).ok()
    assert files_of(tmp_path / "full") == files_of(tmp_path / "none")
    must_be_close(*(load_file(tmp_path / name / "model.safetensors") for name in ("full", "none")))
    outputs = [seq2seq("translate", tmp_path / name, "1 2 3") for name in ("full", "none")]
    assert outputs[0].exit_code == 0
    assert outputs[0].stdout == outputs[1].stdout
    copy = shutil.copytree(tmp_path / "full", tmp_path / "copy")
    seq2seq("diff", tmp_path / "full", copy).ok()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["training.optimizer=muon"], "muon needs whole matrices"),
        (["training.tokens_per_batch=auto"], "full needs a number"),
        (["training.compile=true"], "full cannot be compiled"),
    ],
)
def test_what_cannot_be_sharded_is_refused(config, options, message):
    with pytest.raises(UserError, match=message):
        load_config(config, [SHARDED, *options])


def test_loss_that_is_not_finite_is_diagnosed_in_all_processes(config, tmp_path):
    """The gradients of all processes are looked at, and none waits for another one."""
    settings = ["training.lr=1e30", "training.on_nonfinite=stop", "training.max_grad_norm=null"]
    with pytest.raises(UserError, match=r"(?s)loss.*began in.*gradients   not finite"):
        train_in_parts(config, tmp_path / "run", [(2, "full", None)], *settings)
