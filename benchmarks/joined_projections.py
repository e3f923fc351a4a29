"""Whole updates with the projections of attention joined into one product, and with separate ones.

python benchmarks/joined_projections.py [--threads 1] [--rounds 8]

Both take turns in one process, on the same batches of random ids; run it on an otherwise idle
machine. Prints, for each model and precision, the time of separate products over that of joined
ones: median and quartiles of the pairs.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch

from seq2seq_cli.config.schema import ModelConfig, TrainingConfig
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.machine import retain_freed_pages
from seq2seq_cli.model import attention
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.optimizers.optimizer import build_optimizer

MODELS = {
    "d_model 128, 4+4 layers": {"d_model": 128, "d_ff": 256, "heads": 4, "dropout": 0.3},
    "d_model 256, 4+4 layers": {"d_model": 256, "d_ff": 1024, "heads": 4},
    "d_model 512, 6+6 layers": {"d_model": 512, "d_ff": 2048, "heads": 8, "layers": 6},
}
VOCABULARY, TOKENS, LENGTHS = 8_000, 2_048, (12, 14, 16, 18, 20)

joined = attention.MultiHeadAttention._project


def separate(self, states, layout, projections, start=0, rotation=None):
    assert not self.is_rotary
    return [
        attention._in_fp32_on_cpu(layout.split_heads(projection(states), self.heads))
        for projection in projections
    ]


def batch(length: int) -> Batch:
    src_BS, tgt_BT = torch.randint(4, VOCABULARY, (2, TOKENS // length, length)).unbind()
    return Batch(src_BS, tgt_BT, tgt_BT.clone(), tgt_BT.numel(), src_BS.numel())


def measure(options: dict, use_bf16: bool, rounds: int) -> list[float]:
    """Return the ratios of all pairs."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**options), VOCABULARY, VOCABULARY, shared=True, pad_id=0)
    optimizer = build_optimizer(model, TrainingConfig())
    loss_of = BatchLoss(model, label_smoothing=0.1, use_bf16=use_bf16)

    def seconds(project: Callable, batch: Batch) -> float:
        attention.MultiHeadAttention._project = project
        started = time.perf_counter()
        (loss_of(batch).total / batch.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - started

    batches = [batch(length) for length in LENGTHS]
    for project, each in itertools.product((joined, separate), batches):
        seconds(project, each)
    ratios = []
    for number, each in enumerate(batches * rounds):
        order = (joined, separate) if number % 2 else (separate, joined)
        taken = {project: seconds(project, each) for project in order}
        ratios.append(taken[separate] / taken[joined])
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    retain_freed_pages()
    print("| model | precision | separate / joined, median (quartiles) |\n|---|---|---|")
    for name, options in MODELS.items():
        for precision in ("bf16", "fp32"):
            ratios = measure(options, precision == "bf16", given.rounds)
            low, median, high = statistics.quantiles(ratios, n=4)
            print(f"| {name} | {precision} | {median:.2f} ({low:.2f} to {high:.2f}) |", flush=True)


if __name__ == "__main__":
    main()
