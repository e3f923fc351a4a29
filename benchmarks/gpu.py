"""What only a GPU can show, in at most eight minutes: `make gpu`.

python benchmarks/gpu.py [--device cuda] [--only PART ...]

Tests marked `gpu`; two updates compared with the CPU's; training of three shapes with
`training.compile` off and on; greedy and beam search. Prints Markdown tables for gpu.md. With
`--device cpu` it makes the same tables of a small shape, to try the script; without a GPU and this
option only the tests are run, and skipped.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

LIMIT = 480  # seconds
PARTS = ("tests", "updates", "training", "decoding")
SHAPES = {
    "tiny": {"d_model": 128, "d_ff": 256, "heads": 4, "layers": 4},
    "base": {"d_model": 512, "d_ff": 2048, "heads": 8, "layers": 6},
    "big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "layers": 6},
}
TOKENS = {"tiny": 32_768, "base": 32_768, "big": 16_384}
CONFIG = """\
data:
  train: {{src: {folder}/text.src, tgt: {folder}/text.tgt}}
  valid: {{src: {folder}/valid.src, tgt: {folder}/valid.tgt}}
tokenizer: {{kind: word, vocab_size: 8000}}
model: {model}
training: {{max_steps: 2, tokens_per_batch: {tokens}, lr: 5e-4, warmup_steps: 1}}
validation: {{decode: false}}
decoding: {{beam_size: 1}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    given = parser.parse_args()
    started = time.monotonic()
    deadline = started + LIMIT
    if "tests" in given.only:
        print(run_tests(), flush=True)
    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: everything else is skipped; --device cpu tries the script")
        return
    name = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    shapes = SHAPES if given.device == "cuda" else {"tiny": SHAPES["tiny"]}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_text(folder)
        for shape, model in shapes.items():
            tokens = TOKENS[shape] if given.device == "cuda" else 2_048
            options = {"model": json.dumps(model | {"dropout": 0.1}), "tokens": tokens}
            text = CONFIG.format(folder=folder, **options)
            (folder / f"{shape}.yaml").write_text(text)
        for part in (compare_updates, time_training, time_decoding):
            if part.__name__.rpartition("_")[2] in given.only:
                part(folder, given.device, shapes, deadline)
    print(f"\n{time.monotonic() - started:.0f} seconds")


def run_tests() -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    command += ["tests", "--ignore", "tests/extras"]  # whose packages may be missing
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (result.stdout or result.stderr).strip().splitlines()
    return f"tests marked gpu: {lines[-1] if lines else 'no output'}"


def write_text(folder: Path) -> None:
    """Write pairs as long as the sentences of Multi30k: random words, most of them frequent."""
    source = random.Random(1)
    words = [f"w{number}" for number in range(7_900)]
    weights = [1 / (rank + 10) for rank in range(len(words))]
    for name, count in (("text", 30_000), ("valid", 512)):
        with (
            (folder / f"{name}.src").open("w") as src,
            (folder / f"{name}.tgt").open("w") as tgt,
        ):
            for _ in range(count):
                sentence = source.choices(words, weights, k=max(3, round(source.gauss(13, 4))))
                src.write(" ".join(sentence) + "\n")
                tgt.write(" ".join(reversed(sentence)) + "\n")


def compare_updates(folder: Path, device: str, shapes: dict[str, object], deadline: float) -> None:
    """Two updates in fp32 without dropout: losses and weights of both devices."""
    print("\n| two updates | loss on the CPU | on the device | largest difference of a weight |")
    print("|---|--:|--:|--:|")
    for shape in list(shapes)[:2]:
        if time.monotonic() > deadline - 120:
            print("| (no time left) | | | |")
            return
        losses, weights = [], []
        for where in ("cpu", device):
            run = folder / f"{shape}-{where}-{len(losses)}"
            seq2seq(
                *("train", folder / f"{shape}.yaml", "--run-dir", run, "--device", where),
                *settings("training.precision=fp32", "model.dropout=0", "training.log_every=1"),
                *settings("training.tokens_per_batch=2048"),
            )
            points = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            losses.append(next(p["train/loss"] for p in reversed(points) if "train/loss" in p))
            weights.append(load_file(run / "model.safetensors"))
        difference = max((weights[1][n] - w).abs().max().item() for n, w in weights[0].items())
        print(f"| {shape} | {losses[0]:.6f} | {losses[1]:.6f} | {difference:.1e} |", flush=True)


def time_training(folder: Path, device: str, shapes: dict[str, object], deadline: float) -> None:
    """`seq2seq bench train`: the share is of the measured speed of large products in bf16."""
    print("\n| training | compile | target tokens/s | share of the peak | peak MB |")
    print("|---|---|--:|--:|--:|")
    for shape in shapes:
        for compiles in ("false", "true") if device == "cuda" else ("false",):
            if time.monotonic() > deadline - 90:
                print(f"| {shape} | {compiles} | no time left | | |")
                continue
            output = seq2seq(
                *("bench", "train", folder / f"{shape}.yaml", "--device", device, "--json"),
                *("--updates", 10, "--warmup", 5, *settings(f"training.compile={compiles}")),
            )
            speed = json.loads(output)
            rate, memory = speed["tokens_per_second"], speed["peak_memory_mb"]
            share = f"{speed['share_of_ceiling']:.0%}"
            print(f"| {shape} | {compiles} | {rate:,.0f} | {share} | {memory:,.0f} |", flush=True)


def time_decoding(folder: Path, device: str, shapes: dict[str, object], deadline: float) -> None:
    """Translations of an untrained model: as long as the limit of length lets them be."""
    print("\n| decoding | beam | precision | sentences/s | tokens/s | p50 ms | MB |")
    print("|---|--:|---|--:|--:|--:|--:|")
    for shape in list(shapes)[:2]:
        run = folder / f"decoding-{shape}"
        seq2seq("train", folder / f"{shape}.yaml", "--run-dir", run, "--device", device)
        for beam in (1, 5):
            if time.monotonic() > deadline - 45:
                print(f"| {shape} | {beam} | no time left | | | | |")
                continue
            output = seq2seq(
                *("bench", "translate", run, "--device", device, "--json", "--lines", 256),
                *settings(f"decoding.beam_size={beam}", "decoding.max_len_factor=0"),
                *settings("decoding.max_len_extra=30"),
            )
            for speed in json.loads(output):
                print(
                    f"| {shape} | {beam} | {speed['precision']} "
                    f"| {speed['sentences_per_second']:,.1f} | {speed['tokens_per_second']:,.0f} "
                    f"| {speed['p50_ms']:.1f} | {speed['memory_mb']:,.0f} |",
                    flush=True,
                )


def settings(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def seq2seq(*arguments: object) -> str:
    command = [sys.executable, "-m", "seq2seq_cli", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
    return result.stdout


if __name__ == "__main__":
    main()
