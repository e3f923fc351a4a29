"""Out of memory: splitting batches, and the automatic batch size."""

import gc
import logging
import multiprocessing
import random
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from bare_runs import ALONE, SGD, bare_run, random_batch
from number_task import numbers_config, write_config
from seams import before_update, out_of_memory, raise_out_of_memory
from torch import distributed

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import Packed
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import fused
from seq2seq_cli.native import library as native
from seq2seq_cli.training.auto_batch_size import (
    TrialModel,
    in_own_process,
    largest_that_fits,
    sentences_on_gpu,
)
from seq2seq_cli.training.losses.cross_entropy import BatchLoss, Losses
from seq2seq_cli.training.oom import is_out_of_memory
from seq2seq_cli.training.parallel.launcher import launch
from seq2seq_cli.training.parallel.process_group import process_group
from seq2seq_cli.training.parallel.strategy import SingleProcess
from seq2seq_cli.training.run import Hooks, Run
from seq2seq_cli.training.setup import set_up_run
from seq2seq_cli.training.step import train_step

BATCHES = [random_batch(6, 5, seed=1), random_batch(9, 8, seed=2), random_batch(3, 12, seed=3)]


@pytest.fixture(scope="module", autouse=True)
def _imports_are_no_garbage() -> None:
    """Every failure collects the garbage: it need not search what other tests have imported."""
    gc.collect()
    gc.freeze()


class FailingLoss(BatchLoss):
    """`fails(batch)`: in what pass a batch runs out of memory, if in any."""

    def __init__(self, fails) -> None:
        torch.manual_seed(0)
        shape = ModelConfig(
            d_model=16, heads=2, layers=1, d_ff=32, dropout=0.0, attention_bias=False
        )
        super().__init__(Transformer(shape, 30, 30, True, 0), 0.1, use_bf16=False)
        self.fails = fails
        self.tried: list[int] = []  # sentences of each batch
        self.way: str | None = None
        middle = self.model.encoder_norm.weight  # its gradient comes after those of the decoder
        middle.register_hook(lambda _: self.fail("backward"))

    def fail(self, way: str) -> None:
        if self.way == way:
            self.way = None
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def forward(self, batch: Batch) -> Losses:
        self.tried.append(len(batch.src_BS))
        self.way = self.fails(batch)
        self.fail("forward")
        return super().forward(batch)


def never(batch: Batch) -> None:
    return None


def failing_run(fails, parallel: SingleProcess = ALONE) -> tuple[FailingLoss, Run]:
    """A run of plain SGD, whose weights show the gradients as they are."""
    loss = FailingLoss(fails)
    return loss, bare_run(loss, SGD(loss.parameters(), lr=0.5), parallel=parallel)


def step_once(run: Run, batches: list[Batch]) -> tuple[float, float]:
    """Make an update; return loss and gradient norm."""
    result = train_step(run, batches)
    run.state.step += 1
    return result.loss, result.grad_norm


def updates(fails, batches: list[list[Batch]]) -> tuple[list[float], list, Run]:
    """Losses and gradient norms of all updates, the final weights, and the run."""
    loss, run = failing_run(fails)
    results = [step_once(run, of_update) for of_update in batches]
    return [number for result in results for number in result], list(loss.parameters()), run


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_update_with_a_split_batch_is_unchanged(way, number):
    """Wherever it fails: gradients of the batches before, and of half a backward pass, are gone."""
    rows = len(BATCHES[number].src_BS)
    expected, weights, _ = updates(never, [BATCHES])
    found, close, run = updates(lambda batch: way if len(batch.src_BS) == rows else None, [BATCHES])
    assert run.state.too_large == [[rows, BATCHES[number].src_BS.size(1)]]
    assert found == pytest.approx(expected, rel=1e-5)
    for mine, theirs in zip(close, weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_random_oom_failures_do_not_change_the_trajectory():
    batches = [
        [random_batch(8, 4 + step % 3, seed=step), random_batch(8, 9, seed=99 + step)]
        for step in range(10)
    ]
    expected, weights, _ = updates(never, batches)
    chance, failures = random.Random(4), []

    def fails(batch: Batch) -> str | None:
        if len(batch.src_BS) > 1 and chance.random() < 0.2:
            failures.append(batch)
            return chance.choice(["forward", "backward"])
        return None

    found, close, _ = updates(fails, batches)
    assert len(failures) > 5
    assert found == pytest.approx(expected, rel=1e-4)
    for mine, theirs in zip(close, weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


def test_only_batches_as_large_in_both_dimensions_are_split_in_advance():
    loss, run = failing_run(lambda batch: "forward" if len(batch.src_BS) > 4 else None)
    step_once(run, [random_batch(8, 6, seed=1)])
    assert loss.tried == [8, 4, 4]
    loss.fails = never
    for sentences, length, tried in ((8, 6, [4, 4]), (9, 7, [5, 4]), (7, 9, [7]), (20, 5, [20])):
        loss.tried.clear()
        step_once(run, [random_batch(sentences, length, seed=2)])
        assert loss.tried == tried


def test_batch_is_split_until_it_fits_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING):
        found, _, run = updates(
            lambda batch: "backward" if len(batch.src_BS) > 2 else None, [BATCHES] * 2
        )
    assert found[0] == pytest.approx(updates(never, [BATCHES])[0][0], rel=1e-5)
    (warning,) = caplog.messages
    assert warning.startswith(
        "step 1: out of memory with a batch of 6 sentences, 5 source and 5 target positions each"
    )
    assert run.state.too_large == [[3, 5]], "all others are larger"


def test_single_pair_that_does_not_fit_is_a_user_error():
    with pytest.raises(UserError, match=r"a batch of 1 sentence, .*lower data\.max_length"):
        updates(lambda batch: "forward", [BATCHES])


def test_other_errors_are_not_mistaken_for_oom():
    def fails(batch: Batch) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        updates(fails, [BATCHES])


def test_failed_allocation_is_recognized_as_oom():
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 60, dtype=torch.int8)
    assert is_out_of_memory(failed.value)
    with pytest.raises(MemoryError) as failed:
        bytearray(1 << 60)
    assert is_out_of_memory(failed.value)
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator"))


def fail_in_one_process(parallel: SingleProcess) -> tuple[tuple[float, float], list]:
    """Make two updates; one process alone fails at two batches of the first."""
    loss, run = failing_run(never, parallel)
    if parallel.rank == 1:
        least = 5 - parallel.world_size
        loss.fails = lambda batch: "backward" if len(batch.src_BS) >= least else None
    step_once(run, BATCHES)
    result = step_once(run, BATCHES)
    assert run.state.too_large
    return result, [p.tolist() for p in loss.parameters()]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, numbers_config(tmp_path))


def fail_late(parallel: SingleProcess) -> tuple[list[float], list]:
    """In the second update one process fails with a batch of a size that fitted in the first."""
    loss, run = failing_run(never, parallel)
    first = step_once(run, BATCHES)
    if parallel.rank == 1:
        loss.fails = lambda batch: "backward" if len(batch.src_BS) > 2 else None
    second = step_once(run, BATCHES)
    return [*first, *second], [p.tolist() for p in loss.parameters()]


def fail_twice(config: Config) -> tuple[tuple[float, float], list, list[float], list]:
    with process_group(config) as parallel:
        return (*fail_in_one_process(parallel), *fail_late(parallel))


@pytest.mark.slow
@pytest.mark.usefixtures("imports_shared")
def test_all_processes_split_a_batch_too_large_for_one(config):
    """Also late, for a batch of a size that fitted before: none waits for another in vain."""
    expected, weights, _ = updates(never, [BATCHES] * 2)
    second, close, both, late = launch(partial(fail_twice, load_config(config)), 2)
    assert second == pytest.approx(expected[-len(second) :], rel=1e-5)
    assert both == pytest.approx(expected, rel=1e-5)
    for found in (close, late):
        for mine, theirs in zip(found, weights, strict=True):
            torch.testing.assert_close(torch.tensor(mine), theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 17, 64, 100, 499, 500, 1_000])
def test_largest_that_fits_is_found_within_five_percent(limit):
    tried = []
    found = largest_that_fits(lambda number: not tried.append(number) and number <= limit, 500)
    assert max(tried) <= 500
    assert 0.95 * min(limit, 500) <= found <= min(limit, 500)


def trial_model(path: Path, *options: str) -> TrialModel:
    config = load_config(path, options)
    build = partial(Transformer, config.model, 30, 40, shared=False, pad_id=0)
    return TrialModel(build, config.training, longest=12)


def test_auto_batch_size_tries_the_longest_sentences(config):
    largest = [0, 0]

    def fails(batch: Batch) -> bool:
        assert batch.src_BS.size(1) == batch.labels_BT.size(1) == 12
        if batch.num_tokens <= 700:
            largest[:] = max(largest, list(batch.src_BS.shape))
        return batch.num_tokens > 700

    with out_of_memory(fails):
        sentences = sentences_on_gpu(trial_model(config), torch.device("cpu"), 1_000)
        assert [sentences, 12] == largest
        assert 0.95 * (700 // 12) <= sentences <= 700 // 12
        assert sentences_on_gpu(trial_model(config), torch.device("cpu"), 20) == 20


def test_auto_batch_size_is_zero_if_the_model_does_not_fit(config):
    with before_update(raise_out_of_memory):
        assert sentences_on_gpu(trial_model(config), torch.device("cpu"), 20) == 0


def test_auto_batch_size_is_tried_without_the_other_processes(config, monkeypatch):
    """They wait for it, and would not answer an optimizer that shares its work with them."""
    for name, found in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 0)):
        monkeypatch.setattr(distributed, name, lambda found=found: found)
    monkeypatch.setattr(distributed, "all_gather", None)
    trial = trial_model(config, "training.optimizer=muon")
    assert sentences_on_gpu(trial, torch.device("cpu"), 2) == 2


@pytest.mark.slow
def test_auto_batch_size_tries_the_model_to_train(config, caplog):
    """Frozen parts count, for instance; here they leave nothing to try."""
    frozen = "training.freeze=[embeddings,encoder,decoder,projection]"
    loaded = load_config(config, ["training.tokens_per_batch=auto", frozen])
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(UserError, match=r"training\.freeze leaves no parameters to train"),
    ):
        set_up_run(loaded, ALONE, Hooks())
    assert caplog.messages[-1].startswith("looking for the largest tokens_per_batch")


@pytest.mark.slow
def test_auto_batch_size_on_cpu_uses_the_memory_limit(config):
    """Measured with batches of at most 4,096 tokens, in a process of its own."""
    assert 4_096 // 12 < in_own_process(trial_model(config), 50_000, 200 << 20) < 50_000


def with_little_memory(megabytes: int) -> tuple[list[float], list[float], list[int]]:
    """Losses of two updates with and without a limit, and the batches tried with it."""
    torch.set_num_threads(1)
    batch, losses, tried = random_batch(2_000, 30, seed=1), [], []
    status = Path("/proc/self/status").read_text().splitlines()
    (size,) = (int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    for limit in (size + (megabytes << 20), resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        loss, run = failing_run(never)
        losses.append([step_once(run, [batch])[0] for _ in range(2)])
        tried.append(loss.tried)
    return losses[0], losses[1], tried[0]


def attention_with_little_memory() -> bool:
    """Whether attention over 8,000 rows raises MemoryError where its output fits."""
    torch.set_num_threads(1)
    joined, layout = torch.randn(1, 8_000, 3 * 512), Packed(torch.ones(1, 8_000, dtype=torch.bool))
    status = Path("/proc/self/status").read_text().splitlines()
    (size,) = (int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (size + (60 << 20), resource.RLIM_INFINITY))
    try:
        fused.attend(joined, None, (layout, layout), 1, 1.0, False, None, Dropout(0.0))
    except MemoryError:
        return True
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps such a limit")
@pytest.mark.skipif(not native.precisions(), reason="the native library was not compiled")
def test_attention_in_c_without_memory_is_an_error():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        assert executor.submit(attention_with_little_memory).result()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps such a limit")
def test_real_oom_splits_the_batch():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        losses, expected, tried = executor.submit(with_little_memory, 40).result()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert tried[0] == 2_000
    assert max(tried[1:]) < 2_000
