"""What each fast path is worth: the whole update without it, in turn with the update that has all.

python benchmarks/ablation.py benchmarks/tiny.yaml [--rounds 3] [--updates 60] [--only NAME ...]

Run it from the repository's root on an otherwise idle machine. Every measurement is `bench train`
in a process of its own, in which one thing is replaced by its plain twin. Replacing reaches only
that process, so that all but "two processes" train with one.
"""

import argparse
import gc
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.data.batches import IGNORE_INDEX
from seq2seq_cli.extras.bench.measure import measure_training
from seq2seq_cli.machine import torch_environment
from seq2seq_cli.model import attention
from seq2seq_cli.model.packing import Packed, Padded
from seq2seq_cli.native import fused
from seq2seq_cli.training.losses import cross_entropy as loss
from seq2seq_cli.training.optimizers import optimizer
from seq2seq_cli.training.parallel import strategy


def nothing() -> None:
    """Keep every optimization."""


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
            ignore_index=IGNORE_INDEX,
            reduction="sum",
            label_smoothing=label_smoothing,
        )

    loss.sequence_loss = sequence_loss


def default_allocator() -> None:
    strategy.retain_freed_pages = lambda: False


def plain_attention() -> None:
    attention.MultiHeadAttention._layouts_in_one_pass = lambda *_: None


def plain_residuals() -> None:
    def add(x, y, drop, norm=None, _=None):
        added = x + drop(y)
        return added if norm is None else norm(added)

    fused.add, fused.normalize = add, lambda x, norm: norm(x)


def plain_activations() -> None:
    fused.activate = lambda x, activation, drop, _: drop(activation(x))


def plain_softmax() -> None:
    def softmax(logits, labels, in_place):
        p = torch.softmax(logits, -1)
        of_labels = (x.gather(1, labels[:, None])[:, 0].float() for x in (logits, p))
        logit, probability = of_labels
        return p, logit, probability.log()

    fused.softmax = softmax


def rows_of_any_length() -> None:
    Packed.STEP = loss._CHUNK_STEP = 1


def all_logits_at_once() -> None:
    loss._CHUNK_BYTES = 1 << 40


def garbage_not_frozen() -> None:
    gc.freeze = lambda: None


def unfused_adam() -> None:
    original = optimizer.OPTIMIZERS["adamw"]
    optimizer.OPTIMIZERS["adamw"] = original._replace(options={**original.options, "fused": False})


def everything_plain() -> None:
    for replace in (padded_batches, plain_loss, default_allocator, unfused_adam):
        replace()


class Variant(NamedTuple):
    """What differs from the update that has all fast paths."""

    replace: Callable[[], None] = nothing
    overrides: tuple[str, ...] = ()
    environment: dict[str, str] = {}  # noqa: RUF012 (never written to)


_PLAIN = {"SEQ2SEQ_CPU_ISA": "plain"}  # for which no operation of training is in C
VARIANTS = {
    "nothing": Variant(),
    "fp32 instead of bf16": Variant(overrides=("training.precision=fp32",)),
    "cross_entropy of all logits": Variant(plain_loss),
    "logits of all tokens at once": Variant(all_logits_at_once),
    "attention in PyTorch": Variant(plain_attention),
    "residuals and norms in PyTorch": Variant(plain_residuals),
    "activations in PyTorch": Variant(plain_activations),
    "softmax of the loss in PyTorch": Variant(plain_softmax),
    "all four in PyTorch": Variant(environment=_PLAIN),
    "padded batches": Variant(padded_batches),
    "packed rows of any length": Variant(rows_of_any_length),
    "AdamW in a loop": Variant(unfused_adam),
    "garbage collector not frozen": Variant(garbage_not_frozen),
    "glibc's own allocation": Variant(default_allocator),
    "pages of 4 kB": Variant(environment={"THP_MEM_ALLOC_ENABLE": "0"}),
    "libgomp's own spinning": Variant(environment={"GOMP_SPINCOUNT": "300000"}),
    "two processes": Variant(overrides=("training.processes=2",)),
    "no optimization, bf16": Variant(everything_plain, environment=_PLAIN),
    "no optimization, fp32": Variant(everything_plain, ("training.precision=fp32",), _PLAIN),
}


def measure(config: str, name: str, updates: int) -> None:
    """In a process of its own: prints tokens per second and peak memory."""
    variant = VARIANTS[name]
    variant.replace()
    overrides = ["training.processes=1", *variant.overrides]
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
                env=torch_environment() | VARIANTS[name].environment,
            ).stdout
            rate, memory = map(float, output.split())
            found[name].append((rate, memory))
            print(f"{name}: {rate:,.0f} tokens/s, {memory:,.0f} MB", file=sys.stderr, flush=True)
    print("| changed | tokens/s, median (min to max) | relative | peak MB |\n|---|---|---|---|")
    for name, runs in found.items():
        rates = [rate for rate, _ in runs]
        ratios = [rate / whole for rate, (whole, _) in zip(rates, found["nothing"], strict=True)]
        print(
            f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {max(memory for _, memory in runs):,.0f} |"
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
