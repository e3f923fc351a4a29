"""What each fast path is worth: the whole update without it, in turn with the update that has all.

python benchmarks/ablation.py benchmarks/tiny.yaml [--rounds 3] [--updates 60] [--only NAME ...]

Run it from the repository's root on an otherwise idle machine. Every measurement is `bench train`
in a process of its own, in which one thing is replaced by its plain twin.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

from seq2seq_cli.config_file import load_config
from seq2seq_cli.data.batches import IGNORED, Batch
from seq2seq_cli.model import attention, dropout
from seq2seq_cli.model.layout import Padded
from seq2seq_cli.training import benchmark, loss, optimizer
from seq2seq_cli.training.benchmark import measure_training


def nothing() -> None:
    """All fast paths as they are."""


def padded_batches() -> None:
    original = loss.BatchLoss.__init__

    def init(self, *arguments):
        original(self, *arguments)
        self.layout = Padded

    loss.BatchLoss.__init__ = init


def plain_loss() -> None:
    def sequence_loss(states, projection, labels, label_smoothing):
        logits = F.linear(states, projection).float()
        return F.cross_entropy(
            logits,
            labels,
            ignore_index=IGNORED,
            reduction="sum",
            label_smoothing=label_smoothing,
        )

    loss.sequence_loss = sequence_loss


def plain_dropout() -> None:
    dropout.Dropout.forward = lambda self, x: F.dropout(x, self.p, self.training)


def default_allocator() -> None:
    benchmark.keep_freed_memory = lambda: False


def fused_attention() -> None:
    attention._LONGEST_WEIGHTS = 0


def short_rows() -> None:
    Batch.widen = lambda self, positions: self


def unfused_adam() -> None:
    original = optimizer.OPTIMIZERS["adamw"]
    optimizer.OPTIMIZERS["adamw"] = lambda *a, **k: original(*a, **{**k, "fused": False})


def everything_plain() -> None:
    for replace in (padded_batches, plain_loss, plain_dropout, default_allocator):
        replace()
    for replace in (fused_attention, short_rows, unfused_adam):
        replace()


VARIANTS: dict[str, tuple[Callable[[], None], list[str]]] = {
    "all": (nothing, []),
    "fp32 instead of bf16": (nothing, ["training.precision=fp32"]),
    "cross_entropy of all logits": (plain_loss, []),
    "F.dropout": (plain_dropout, []),
    "glibc's own allocation": (default_allocator, []),
    "padded batches": (padded_batches, []),
    "PyTorch's fused attention": (fused_attention, []),
    "sentences under 16 positions as they are": (short_rows, []),
    "AdamW in a loop": (unfused_adam, []),
    "two workers": (nothing, ["training.workers=2"]),
    "nothing fast, bf16": (everything_plain, []),
    "nothing fast, fp32": (everything_plain, ["training.precision=fp32"]),
}


def measure(config: str, variant: str, updates: int) -> None:
    """In a process of its own: prints tokens per second and peak memory."""
    replace, overrides = VARIANTS[variant]
    replace()
    speed = measure_training(load_config(Path(config), overrides), updates // 3, updates)
    if speed is not None:
        print(speed.tokens_per_second, speed.peak_memory_mb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--measure", choices=VARIANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        measure(given.config, given.measure, given.updates)
        return
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in given.only}
    for _ in range(given.rounds):
        for name in given.only:
            command = [sys.executable, __file__, given.config, "--measure", name]
            output = subprocess.run(
                [*command, "--updates", str(given.updates)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            rate, memory = map(float, output.split())
            found[name].append((rate, memory))
            print(f"{name}: {rate:,.0f} tokens/s, {memory:,.0f} MB", file=sys.stderr, flush=True)
    print("| without | tokens/s, median (min to max) | of all | peak MB |\n|---|---|---|---|")
    for name, runs in found.items():
        rates = [rate for rate, _ in runs]
        ratios = [rate / whole for rate, (whole, _) in zip(rates, found["all"], strict=True)]
        print(
            f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {max(memory for _, memory in runs):,.0f} |"
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
