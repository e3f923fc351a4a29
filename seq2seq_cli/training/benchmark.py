"""How fast a config trains here, where the time goes, and what the machine could do at most."""

import functools
import gc
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seq2seq_cli.config import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.allocator import keep_freed_memory
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.batch_sizes import BatchSizes
from seq2seq_cli.training.beginning import begin
from seq2seq_cli.training.loss import BatchLoss
from seq2seq_cli.training.optimizer import set_lr
from seq2seq_cli.training.processes import work_together
from seq2seq_cli.training.update import train_step
from seq2seq_cli.training.workers import Workers

_CEILING_SECONDS = 1.0
_CEILING_SIZES = {"cpu": 2_048, "cuda": 8_192}


@dataclass(frozen=True)
class Speed:
    """Of the updates after warm-up; all workers together, times as the first one saw them."""

    precision: str
    workers: int
    threads: int  # of each worker
    updates: int
    tokens_per_second: float  # target tokens, padding excluded
    tokens_per_update: float
    padding: float  # share of the positions of both sides
    ms_per_update: float
    ms_data: float
    ms_forward: float  # loss included, and the gradient of the output layer, which comes with it
    ms_backward: float  # clipping included, and waiting for the other workers
    ms_optimizer: float
    peak_memory_mb: float  # resident, of all workers
    gflops: float  # of the products with weight matrices; attention and embeddings not counted
    ceiling_fp32_gflops: float  # of square matrix products, all cores
    ceiling_bf16_gflops: float

    def report(self) -> dict[str, Any]:
        """What `bench train --json` prints."""
        return {**asdict(self), "share_of_ceiling": self.share_of_ceiling}

    def table(self) -> str:
        """What `bench train` prints."""
        of_update = 100 / self.ms_per_update
        parts = [
            ("  data", self.ms_data),
            ("  forward and loss", self.ms_forward),
            ("  backward, clipping", self.ms_backward),
            ("  optimizer", self.ms_optimizer),
        ]
        rows = [
            ("target tokens/s", f"{self.tokens_per_second:,.0f}"),
            ("tokens per update", f"{self.tokens_per_update:,.0f} ({self.padding:.1%} padding)"),
            ("time per update", f"{self.ms_per_update:,.1f} ms"),
            *((name, f"{ms:,.1f} ms ({ms * of_update:.0f} %)") for name, ms in parts),
            ("peak memory", f"{self.peak_memory_mb:,.0f} MB"),
            ("matrix products", f"{self.gflops:,.0f} GFLOP/s"),
            (
                "  ceiling",
                f"{self.ceiling_fp32_gflops:,.0f} GFLOP/s in fp32, "
                f"{self.ceiling_bf16_gflops:,.0f} in bf16",
            ),
            ("  share of it", f"{self.share_of_ceiling:.1%}, training in {self.precision}"),
            ("processes", f"{self.workers}, each with {self.threads} threads"),
        ]
        return "\n".join(f"{label:<20} {text}" for label, text in rows)

    @property
    def share_of_ceiling(self) -> float:
        """Of what square matrix products reach in the precision that was used."""
        bf16, fp32 = self.ceiling_bf16_gflops, self.ceiling_fp32_gflops
        return self.gflops / (bf16 if self.precision == "bf16" else fp32)


def measure_training(config: Config, warmup: int, updates: int) -> Speed | None:
    """Train for a moment, in a folder that is thrown away; UserError as for `train`.

    None in torchrun's workers but the first.
    """
    try:
        return work_together(functools.partial(_measure_in_folder, config, warmup, updates), config)
    finally:
        gc.unfreeze()  # what `begin` froze


def _measure_in_folder(config: Config, warmup: int, updates: int, workers: Workers) -> Speed | None:
    with tempfile.TemporaryDirectory(prefix="seq2seq-bench-") as folder:
        run = RunFolder(Path(workers.of_the_first(folder)) / "run")
        speed = _measure(config, run, warmup, updates, workers)
        return speed if workers.is_first else None


def _measure(config: Config, run: RunFolder, warmup: int, updates: int, workers: Workers) -> Speed:
    config, prepared, optimizer, _ = begin(run, config, workers)
    keep_freed_memory()
    training, epochs = config.training, prepared.epochs
    batch_loss = BatchLoss(
        prepared.model, training.label_smoothing, prepared.use_bf16, training.compile
    )
    watch = _Watch(prepared.device, batch_loss, optimizer)
    parallel = workers.parallel(batch_loss)
    sizes = BatchSizes()
    num_tokens, num_src_tokens, num_positions = [], [], []
    for step in range(1, warmup + updates + 1):
        watch.start()
        epoch, number = divmod((step - 1) * training.accumulation, len(epochs))
        batches = epochs.batches(epoch + 1, number, training.accumulation)
        watch.note("data")
        set_lr(optimizer, training, min(step, prepared.total_steps), prepared.total_steps)
        update = train_step(parallel, optimizer, batches, training, step, workers, sizes)
        if not update.is_made:
            raise UserError(f"update {step}: loss or gradient is not finite; train says where")
        watch.note("optimizer")
        if step > warmup:
            num_tokens.append(sum(batch.num_tokens for batch in batches))
            num_src_tokens.append(sum(batch.num_src_tokens for batch in batches))
            num_positions.append(sum(batch.num_positions for batch in batches))
    ms = {name: 1000 * sum(times[warmup:]) / updates for name, times in watch.seconds.items()}
    tokens, src_tokens = sum(num_tokens), sum(num_src_tokens)
    seconds = sum(ms.values()) / 1000 * updates
    memory = workers.summed(_peak_memory_mb())
    with workers.all_threads():
        devices = workers.count if prepared.device.type == "cuda" else 1
        ceilings = [
            devices * _ceiling_gflops(prepared.device, dtype) if workers.is_first else 0.0
            for dtype in (torch.float32, torch.bfloat16)
        ]
    workers.wait()
    return Speed(
        precision="bf16" if prepared.use_bf16 else "fp32",
        workers=workers.count,
        threads=torch.get_num_threads(),
        updates=updates,
        tokens_per_second=tokens / seconds,
        tokens_per_update=statistics.mean(num_tokens),
        padding=1 - (tokens + src_tokens) / sum(num_positions),
        ms_per_update=sum(ms.values()),
        ms_data=ms["data"],
        ms_forward=ms["forward"],
        ms_backward=ms["backward"],
        ms_optimizer=ms["optimizer"],
        peak_memory_mb=memory,
        gflops=_flops(prepared.model, src_tokens, tokens) / seconds / 1e9,
        ceiling_fp32_gflops=ceilings[0],
        ceiling_bf16_gflops=ceilings[1],
    )


class _Watch:
    """Seconds of every part of every update, from hooks: what is measured is what trains."""

    def __init__(
        self, device: torch.device, batch_loss: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._device = device
        self._last = 0.0
        batch_loss.register_forward_pre_hook(lambda *_: self.note("backward"))
        batch_loss.register_forward_hook(lambda *_: self.note("forward"))
        optimizer.register_step_pre_hook(lambda *_: self.note("backward"))

    def start(self) -> None:
        """Of an update."""
        for name in ("data", "forward", "backward", "optimizer"):
            self.seconds.setdefault(name, []).append(0.0)
        self._last = self._now()

    def note(self, name: str) -> None:
        """This is what was done since the last note."""
        now = self._now()
        self.seconds[name][-1] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _peak_memory_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def _flops(model: Any, src_tokens: int, tgt_tokens: int) -> float:
    """Floating-point operations of training: 6 for each weight of a matrix and token through it.

    Keys and values of the cross-attention are made of source tokens, everything else of the decoder
    of target tokens.
    """

    def weights(part: nn.Module) -> int:
        return sum(m.weight.numel() for m in part.modules() if isinstance(m, nn.Linear))

    of_memory = sum(
        weights(layer.cross_attention.key) + weights(layer.cross_attention.value)
        for layer in model.decoder
    )
    per_src = weights(model.encoder) + of_memory
    per_tgt = weights(model.decoder) - of_memory + weights(model.projection)
    return 6.0 * (per_src * src_tokens + per_tgt * tgt_tokens)


def _ceiling_gflops(device: torch.device, dtype: torch.dtype) -> float:
    """The best of many products of square matrices."""
    size = _CEILING_SIZES[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / _best_seconds(lambda: a @ b, device) / 1e9


def _best_seconds(work: Callable[[], object], device: torch.device) -> float:
    best, begun = float("inf"), time.perf_counter()
    while time.perf_counter() - begun < _CEILING_SECONDS:
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best
