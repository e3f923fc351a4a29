"""Out of memory: splitting batches, and the automatic batch size."""

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
from number_task import numbers_config, write_config

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config, ModelConfig, TrainingConfig
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.training.auto_batch_size import (
    Shape,
    in_own_process,
    largest_that_fits,
    sentences_on_gpu,
)
from seq2seq_cli.training.distributed import Ranks
from seq2seq_cli.training.launcher import launch
from seq2seq_cli.training.loss import BatchLoss
from seq2seq_cli.training.oom import BatchSizes, is_out_of_memory
from seq2seq_cli.training.step import StepResult, train_step

ALONE = Ranks()
CONFIG = TrainingConfig()


def random_batch(sentences: int, length: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, length + 1, (sentences, 2), generator=generator)
    lengths[0] = length
    src, tgt = (torch.randint(4, 30, (sentences, length), generator=generator) for _ in range(2))
    src[torch.arange(length) >= lengths[:, :1]] = 0
    labels = tgt.masked_fill(torch.arange(length) >= lengths[:, 1:], IGNORE_INDEX)
    tgt_in = torch.cat([torch.full((sentences, 1), 2), tgt[:, :-1]], dim=1)
    tgt_in[torch.arange(length) >= lengths[:, 1:]] = 0
    return Batch(src, tgt_in, labels, int(lengths[:, 1].sum()), int(lengths[:, 0].sum()))


BATCHES = [random_batch(6, 5, seed=1), random_batch(9, 8, seed=2), random_batch(3, 12, seed=3)]


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

    def forward(self, batch: Batch) -> torch.Tensor:
        self.tried.append(len(batch.src_BS))
        self.way = self.fails(batch)
        self.fail("forward")
        return super().forward(batch)


def never(batch: Batch) -> None:
    return None


def updates(fails, batches: list[list[Batch]], sizes: BatchSizes) -> tuple[list[float], list]:
    """Losses, gradient norms and final weights, of plain SGD, which shows gradients as they are."""
    loss = FailingLoss(fails)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.5)
    done = [
        train_step(loss, optimizer, of_update, CONFIG, step, ALONE, sizes)
        for step, of_update in enumerate(batches, start=1)
    ]
    return [number for update in done for number in update], list(loss.parameters())


@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_update_with_a_split_batch_is_unchanged(way, number):
    """Wherever it fails: gradients of the batches before, and of half a backward pass, are gone."""
    rows = len(BATCHES[number].src_BS)
    expected, weights = updates(never, [BATCHES], BatchSizes())
    sizes = BatchSizes()
    found, close = updates(
        lambda batch: way if len(batch.src_BS) == rows else None, [BATCHES], sizes
    )
    assert sizes.too_large == [[rows, BATCHES[number].src_BS.size(1)]]
    assert found == pytest.approx(expected, rel=1e-5)
    for mine, theirs in zip(close, weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_random_oom_failures_do_not_change_the_trajectory():
    batches = [
        [random_batch(8, 4 + step % 3, seed=step), random_batch(8, 9, seed=99 + step)]
        for step in range(40)
    ]
    expected, weights = updates(never, batches, BatchSizes())
    chance, failures = random.Random(4), []

    def fails(batch: Batch) -> str | None:
        if len(batch.src_BS) > 1 and chance.random() < 0.1:
            failures.append(batch)
            return chance.choice(["forward", "backward"])
        return None

    found, close = updates(fails, batches, BatchSizes())
    assert len(failures) > 5
    assert found == pytest.approx(expected, rel=1e-4)
    for mine, theirs in zip(close, weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


def test_only_batches_as_large_in_both_dimensions_are_split_in_advance():
    sizes = BatchSizes()
    loss = FailingLoss(lambda batch: "forward" if len(batch.src_BS) > 4 else None)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.5)
    train_step(loss, optimizer, [random_batch(8, 6, seed=1)], CONFIG, 1, ALONE, sizes)
    assert loss.tried == [8, 4, 4]
    loss.fails = never
    for sentences, length, tried in ((8, 6, [4, 4]), (9, 7, [5, 4]), (7, 9, [7]), (20, 5, [20])):
        loss.tried.clear()
        batch = random_batch(sentences, length, seed=2)
        train_step(loss, optimizer, [batch], CONFIG, 2, ALONE, sizes)
        assert loss.tried == tried


def test_batch_is_split_until_it_fits_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING):
        sizes = BatchSizes()
        found, _ = updates(
            lambda batch: "backward" if len(batch.src_BS) > 2 else None, [BATCHES] * 2, sizes
        )
    assert found[0] == pytest.approx(updates(never, [BATCHES], BatchSizes())[0][0], rel=1e-5)
    (warning,) = caplog.messages
    assert warning.startswith(
        "step 1: out of memory with a batch of 6 sentences, 5 source and 5 target positions each"
    )
    assert sizes.too_large == [[3, 5]], "all others are larger"


def test_single_pair_that_does_not_fit_is_a_user_error():
    with pytest.raises(UserError, match=r"a batch of 1 sentence, .*lower data\.max_length"):
        updates(lambda batch: "forward", [BATCHES], BatchSizes())


def test_other_errors_are_not_mistaken_for_oom():
    def fails(batch: Batch) -> None:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="mat1"):
        updates(fails, [BATCHES], BatchSizes())


def test_failed_allocation_is_recognised_as_oom():
    with pytest.raises(RuntimeError) as failed:
        torch.empty(1 << 60, dtype=torch.int8)
    assert is_out_of_memory(failed.value)
    with pytest.raises(MemoryError) as failed:
        bytearray(1 << 60)
    assert is_out_of_memory(failed.value)
    assert not is_out_of_memory(ValueError("DefaultCPUAllocator"))


def failing_in_worker(config: Config, ranks: Ranks) -> tuple[StepResult, list]:
    """Two updates; one process alone fails at two batches of the first."""
    loss = FailingLoss(never)
    if ranks.rank == 1:
        loss.fails = lambda batch: "backward" if len(batch.src_BS) >= 5 - ranks.world_size else None
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.5)
    sizes = BatchSizes()
    for step in (1, 2):
        update = train_step(loss, optimizer, BATCHES, config.training, step, ranks, sizes)
    assert sizes.too_large
    return update, [p.detach() for p in loss.parameters()]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, numbers_config(tmp_path))


def test_all_processes_split_a_batch_too_large_for_one(config):
    expected, weights = updates(never, [BATCHES] * 2, BatchSizes())
    loaded = load_config(config, ["training.processes=2"])
    update, close = launch(partial(failing_in_worker, loaded), loaded)
    assert update == pytest.approx(expected[-2:], rel=1e-5)
    for mine, theirs in zip(close, weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def failing_late(config: Config, ranks: Ranks) -> tuple[list[StepResult], list]:
    """In the second update one process fails with a batch of a size that fitted in the first."""
    loss = FailingLoss(never)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.5)
    sizes = BatchSizes()
    first = train_step(loss, optimizer, BATCHES, config.training, 1, ranks, sizes)
    if ranks.rank == 1:
        loss.fails = lambda batch: "backward" if len(batch.src_BS) > 2 else None
    second = train_step(loss, optimizer, BATCHES, config.training, 2, ranks, sizes)
    return [*first, *second], [p.detach() for p in loss.parameters()]


def test_late_oom_of_one_process_does_not_block_the_others(config):
    expected, weights = updates(never, [BATCHES] * 2, BatchSizes())
    loaded = load_config(config, ["training.processes=2"])
    found, close = launch(partial(failing_late, loaded), loaded)
    assert found == pytest.approx(expected, rel=1e-5)
    for mine, theirs in zip(close, weights, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 17, 64, 100, 499, 500, 1_000])
def test_largest_that_fits_is_found_within_five_percent(limit):
    tried = []
    found = largest_that_fits(lambda number: not tried.append(number) and number <= limit, 500)
    assert max(tried) <= 500
    assert 0.95 * min(limit, 500) <= found <= min(limit, 500)


def shape_of(config: Path, **model: int) -> Shape:
    loaded = load_config(config, [f"model.{name}={value}" for name, value in model.items()])
    return Shape(loaded, 30, 40, is_shared=False, longest=12)


def test_auto_batch_size_tries_the_longest_sentences(config, monkeypatch):
    largest, real = [0, 0], BatchLoss.forward

    def forward(self: BatchLoss, batch: Batch) -> torch.Tensor:
        assert batch.src_BS.size(1) == batch.labels_BT.size(1) == 12
        if batch.num_tokens > 700:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        largest[:] = max(largest, list(batch.src_BS.shape))
        return real(self, batch)

    monkeypatch.setattr(BatchLoss, "forward", forward)
    found = sentences_on_gpu(shape_of(config), torch.device("cpu"), 1_000)
    assert [found, 12] == largest
    assert 0.95 * (700 // 12) <= found <= 700 // 12
    assert sentences_on_gpu(shape_of(config), torch.device("cpu"), 20) == 20


def test_auto_batch_size_is_zero_if_the_model_does_not_fit(config, monkeypatch):
    def step(self: torch.optim.Optimizer) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    assert sentences_on_gpu(shape_of(config), torch.device("cpu"), 20) == 0


@pytest.mark.slow
def test_auto_batch_size_on_cpu_uses_the_memory_limit(config):
    """Measured with batches of at most 4,096 tokens, in a process of its own."""
    assert 4_096 // 12 < in_own_process(shape_of(config), 50_000, 200 << 20) < 50_000


def with_little_memory(megabytes: int) -> tuple[list[float], list[float], list[int]]:
    """Losses of two updates with and without a limit, and the batches tried with it."""
    torch.set_num_threads(1)
    batch, losses, tried = random_batch(2_000, 30, seed=1), [], []
    status = Path("/proc/self/status").read_text().splitlines()
    (size,) = (int(line.split()[1]) << 10 for line in status if line.startswith("VmSize"))
    for limit in (size + (megabytes << 20), resource.RLIM_INFINITY):
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        loss, sizes = FailingLoss(never), BatchSizes()
        optimizer = torch.optim.SGD(loss.parameters(), lr=0.5)
        steps = (1, 2)
        losses.append(
            [train_step(loss, optimizer, [batch], CONFIG, n, ALONE, sizes).loss for n in steps]
        )
        tried.append(loss.tried)
    return losses[0], losses[1], tried[0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps such a limit")
def test_real_oom_splits_the_batch():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        losses, expected, tried = executor.submit(with_little_memory, 100).result()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert tried[0] == 2_000
    assert max(tried[1:]) < 2_000
