"""`seq2seq bench train`: measures training speed, time per phase, memory, and utilization."""

import functools
import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from seq2seq_cli.commands.dry_run import DryRun, dry_run, peak_memory_mb
from seq2seq_cli.config.schema import Config

_CEILING_SECONDS = 1.0
_CEILING_SIZES = {"cpu": 2_048, "cuda": 8_192}


@dataclass(frozen=True)
class Speed:
    """Measurements of the updates after warm-up: totals of all processes, times of the main one."""

    precision: str
    processes: int
    threads: int  # of each process
    updates: int
    tokens_per_second: float  # target tokens, padding excluded
    tokens_per_update: float
    padding: float  # fraction of the positions of both sides
    ms_per_update: float
    ms_data: float
    ms_forward: float  # includes the loss, and the gradient of the output layer computed with it
    ms_backward: float  # includes gradient clipping, waiting and communication
    ms_waiting: float | None  # for the slowest process, on average; None if the model is sharded
    ms_communication: float | None  # summing the gradients of all processes after that
    ms_optimizer: float
    peak_memory_mb: float  # of all processes; resident, or allocated on their GPUs
    gflops: float  # GFLOP/s of products with weight matrices; without attention and embeddings
    ceiling_fp32_gflops: float  # GFLOP/s of square matrix products on all cores
    ceiling_bf16_gflops: float

    def report(self) -> dict[str, Any]:
        """Return the output of `bench train --json`."""
        return {**asdict(self), "share_of_ceiling": self.share_of_ceiling}

    def table(self) -> str:
        """Return the output of `bench train`."""
        parts = [
            ("  data", self.ms_data),
            ("  forward and loss", self.ms_forward),
            ("  backward, clipping", self.ms_backward),
            ("  optimizer", self.ms_optimizer),
        ]
        if self.processes > 1 and self.ms_waiting is not None and self.ms_communication is not None:
            parts.insert(3, ("    waiting for others", self.ms_waiting))
            parts.insert(4, ("    communication", self.ms_communication))
        rows = [
            ("target tokens/s", f"{self.tokens_per_second:,.0f}"),
            ("tokens per update", f"{self.tokens_per_update:,.0f} ({self.padding:.1%} padding)"),
            ("time per update", f"{self.ms_per_update:,.1f} ms"),
            *((name, f"{ms:,.1f} ms ({ms / self.ms_per_update:.0%})") for name, ms in parts),
            ("peak memory", f"{self.peak_memory_mb:,.0f} MB"),
            ("matrix products", f"{self.gflops:,.0f} GFLOP/s"),
            (
                "  ceiling",
                f"{self.ceiling_fp32_gflops:,.0f} GFLOP/s in fp32, "
                f"{self.ceiling_bf16_gflops:,.0f} in bf16",
            ),
            ("  utilization", f"{self.share_of_ceiling:.1%}, training in {self.precision}"),
            ("processes", f"{self.processes}, each with {self.threads} threads"),
        ]
        return "\n".join(f"{label:<20} {text}" for label, text in rows)

    @property
    def share_of_ceiling(self) -> float:
        """Utilization: the fraction of the ceiling in the precision of training."""
        bf16, fp32 = self.ceiling_bf16_gflops, self.ceiling_fp32_gflops
        return self.gflops / (bf16 if self.precision == "bf16" else fp32)


def measure_training(config: Config, warmup: int, updates: int) -> Speed | None:
    """Train briefly in a temporary folder and measure; UserError as for `train`.

    Returns None in all processes of torchrun but the main one.
    """
    return dry_run(functools.partial(_measure, warmup, updates), config)


def _measure(warmup: int, updates: int, trial: DryRun) -> Speed:
    run, parallel = trial.run, trial.run.parallel
    for _ in range(warmup):
        trial.update()
    parallel.waiting_and_communication()  # of the warm-up
    tokens = src_tokens = positions = 0
    for _ in range(updates):
        for batch in trial.update():
            tokens += batch.num_tokens
            src_tokens += batch.num_src_tokens
            positions += batch.num_positions
    ms = {name: 1000 * sum(times[warmup:]) / updates for name, times in trial.seconds.items()}
    passes = run.loss.passes
    seconds = sum(ms.values()) / 1000 * updates
    lost = parallel.waiting_and_communication()
    memory = parallel.all_reduce_sum(peak_memory_mb(run.device))
    with parallel.all_threads():
        devices = parallel.world_size if run.device.type == "cuda" else 1
        ceilings = [
            devices * _ceiling_gflops(run.device, dtype) if parallel.is_main else 0.0
            for dtype in (torch.float32, torch.bfloat16)
        ]
    parallel.barrier()
    return Speed(
        precision="bf16" if run.use_bf16 else "fp32",
        processes=parallel.world_size,
        threads=torch.get_num_threads(),
        updates=updates,
        tokens_per_second=tokens / seconds,
        tokens_per_update=tokens / updates,
        padding=1 - (tokens + src_tokens) / positions,
        ms_per_update=sum(ms.values()),
        **{f"ms_{name}": part for name, part in ms.items()},
        ms_waiting=None if lost is None else 1000 * lost[0] / updates,
        ms_communication=None if lost is None else 1000 * lost[1] / updates,
        peak_memory_mb=memory,
        gflops=passes * _flops(run.model, src_tokens, tokens) / seconds / 1e9,
        ceiling_fp32_gflops=ceilings[0],
        ceiling_bf16_gflops=ceilings[1],
    )


def _flops(model: Any, src_tokens: int, tgt_tokens: int) -> float:
    """Return the floating-point operations of training: 6 per matrix weight and token.

    The keys and values of cross-attention are computed from source tokens, everything else in the
    decoder from target tokens.
    """

    def weights(part: nn.Module) -> int:
        return sum(m.weight.numel() for m in part.modules() if isinstance(m, nn.Linear))

    memory = sum(
        weights(layer.cross_attention.key) + weights(layer.cross_attention.value)
        for layer in model.decoder
    )
    per_src = weights(model.encoder) + memory
    per_tgt = weights(model.decoder) - memory + weights(model.projection)
    return 6.0 * (per_src * src_tokens + per_tgt * tgt_tokens)


def _ceiling_gflops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the speed of the fastest of many products of square matrices."""
    size = _CEILING_SIZES[device.type]
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, begun = math.inf, time.perf_counter()
    while time.perf_counter() - begun < _CEILING_SECONDS:
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best / 1e9
