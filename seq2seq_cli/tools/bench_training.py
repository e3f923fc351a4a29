"""How fast a config trains here, where the time goes, and what the machine could do at most."""

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from seq2seq_cli.config.schema import Config
from seq2seq_cli.model.malloc import retain_freed_pages
from seq2seq_cli.tools.dry_run import DryRun, dry_run, peak_memory_mb

_CEILING_SECONDS = 1.0
_CEILING_SIZES = {"cpu": 2_048, "cuda": 8_192}


@dataclass(frozen=True)
class Speed:
    """Of the updates after warm-up; all processes together, times as the first one saw them."""

    precision: str
    processes: int
    threads: int  # of each process
    updates: int
    tokens_per_second: float  # target tokens, padding excluded
    tokens_per_update: float
    padding: float  # share of the positions of both sides
    ms_per_update: float
    ms_data: float
    ms_forward: float  # loss included, and the gradient of the output layer, which comes with it
    ms_backward: float  # clipping included, and waiting for the other processes
    ms_optimizer: float
    peak_memory_mb: float  # of all processes; resident, or allocated on their GPUs
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
            ("processes", f"{self.processes}, each with {self.threads} threads"),
        ]
        return "\n".join(f"{label:<20} {text}" for label, text in rows)

    @property
    def share_of_ceiling(self) -> float:
        """Of what square matrix products reach in the precision that was used."""
        bf16, fp32 = self.ceiling_bf16_gflops, self.ceiling_fp32_gflops
        return self.gflops / (bf16 if self.precision == "bf16" else fp32)


def measure_training(config: Config, warmup: int, updates: int) -> Speed | None:
    """Train for a moment, in a folder that is thrown away; UserError as for `train`.

    None in torchrun's processes but the first.
    """
    return dry_run(functools.partial(_measure, warmup, updates), config)


def _measure(warmup: int, updates: int, trial: DryRun) -> Speed:
    retain_freed_pages()
    run, ranks = trial.run, trial.run.ranks
    num_tokens, num_src_tokens, num_positions = [], [], []
    for step in range(1, warmup + updates + 1):
        batches = trial.update()
        if step > warmup:
            num_tokens.append(sum(batch.num_tokens for batch in batches))
            num_src_tokens.append(sum(batch.num_src_tokens for batch in batches))
            num_positions.append(sum(batch.num_positions for batch in batches))
    ms = {name: 1000 * sum(times[warmup:]) / updates for name, times in trial.seconds.items()}
    tokens, src_tokens = sum(num_tokens), sum(num_src_tokens)
    seconds = sum(ms.values()) / 1000 * updates
    memory = ranks.all_reduce_sum(peak_memory_mb(run.device))
    with ranks.all_threads():
        devices = ranks.world_size if run.device.type == "cuda" else 1
        ceilings = [
            devices * _ceiling_gflops(run.device, dtype) if ranks.is_main else 0.0
            for dtype in (torch.float32, torch.bfloat16)
        ]
    ranks.barrier()
    return Speed(
        precision="bf16" if run.use_bf16 else "fp32",
        processes=ranks.world_size,
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
        gflops=_flops(run.model, src_tokens, tokens) / seconds / 1e9,
        ceiling_fp32_gflops=ceilings[0],
        ceiling_bf16_gflops=ceilings[1],
    )


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
