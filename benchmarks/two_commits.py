"""What a refactoring changed between two checkouts: bits and speed, which should be nothing.

python benchmarks/two_commits.py BEFORE AFTER [--rounds 7]
    [--only training translating speed] [--model RUN --input FILE]

BEFORE and AFTER are folders of checkouts, with the decoder compiled in both. Every command is a
process of its own, with one checkout on PYTHONPATH.

* training: for each kind, ten updates with a validation after five, and six updates that
  are resumed to ten; the weights, the optimizer's state and the logged losses are compared.
* translating: 200 translations with scores, for each kind of search, precision and engine.
* speed: training and translating in turn, one after the other; ratio after / before of the medians,
  with the range of the ratios of single rounds; with RUN, only translating 200 lines of FILE by it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safetensors.numpy import load_file

COMMON = (
    *("training.schedule=constant", "training.warmup_steps=4"),
    *("training.save_every=1", "training.log_every=1", "validation.every=5", "training.device=cpu"),
)
TRAINING = {
    "adamw": (),
    "post-norm, separate vocabularies": (
        "model.norm=post",
        "tokenizer.shared=false",
        "model.tie_embeddings=false",
    ),
    "rotary, gelu, ema": (
        "model.positions=rotary",
        "model.activation=gelu",
        "training.ema_decay=0.9",
    ),
    "schedule-free": ("training.optimizer=schedule_free_adamw",),
    "muon": ("training.optimizer=muon",),
    "r-drop": ("training.consistency={kind: r_drop}",),
    "simcut": ("training.consistency={kind: simcut}",),
    "subword sampling": ("training.subword_sampling.tgt=0.1",),
    "bf16": ("training.precision=bf16",),
    "two processes": ("training.processes=2",),
    "two processes, sharded": ("training.processes=2", "training.shard=full"),
}
SEARCH = {
    "greedy": (),
    "beam 5": ("decoding.beam_size=5", "decoding.n_best=2"),
    "sampling": ("decoding.sampling=true",),
}
PRECISIONS = ("fp32", "int8")
ENGINES = ("native", "torch", "plain")
SPEED = """
import sys, time
from seq2seq_cli import Translator
run, src, *overrides = sys.argv[1:]
translator = Translator.load(run, "cpu", overrides)
lines = open(src, encoding="utf-8").read().splitlines()[:200]
passes = []
for _ in range(5):
    started = time.perf_counter()
    translator.translate(lines)
    passes.append(time.perf_counter() - started)
print(min(passes))
"""


def run(checkout: Path, *arguments: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "2"}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=checkout, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, f"{' '.join(command)} in {checkout}:\n{done.stderr}"
    return done.stdout


def train(checkout: Path, folder: Path, options: tuple[str, ...], steps: int = 10) -> None:
    given = (*COMMON, *options, f"training.max_steps={steps}")
    overrides = [word for option in given for word in ("--set", option)]
    command = ("train", "configs/quickstart.yaml", "--run-dir", folder)
    run(checkout, "-m", "seq2seq_cli", *command, *overrides)


def contents(folder: Path) -> dict[str, object]:
    """Return all tensors of a run's last checkpoint and its best model, and what was logged."""
    found: dict[str, object] = {}
    last = sorted((folder / "checkpoints").iterdir())[-1]
    for path in (folder / "model.safetensors", *sorted(last.rglob("*.safetensors"))):
        tensors = load_file(path)
        found |= {f"{path.name}: {name}": tensor.tobytes() for name, tensor in tensors.items()}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        names = ("train/loss", "train/gradient_norm", "valid/loss", "valid/bleu")
        found |= {f"{name} at {point['step']}": point[name] for name in names if name in point}
    assert len(found) > 100
    return found


def compare_training(before: Path, after: Path, temporary: Path) -> Iterator[tuple[str, bool]]:
    for name, options in TRAINING.items():
        sides = []
        for side, checkout in (("before", before), ("after", after)):
            whole, resumed = (temporary / f"{side} {kind} {name}" for kind in ("whole", "resumed"))
            train(checkout, whole, options)
            train(checkout, resumed, options, steps=6)
            train(checkout, resumed, options)
            sides.append((contents(whole), contents(resumed)))
        yield f"training, {name}", sides[0] == sides[1]


def compare_translations(before: Path, after: Path, model: Path) -> Iterator[tuple[str, bool]]:
    for kind, options in SEARCH.items():
        for precision in PRECISIONS:
            for engine in ENGINES if precision == "fp32" else ENGINES[:2]:
                settings = (
                    *options,
                    f"decoding.precision={precision}",
                    f"decoding.engine={engine}",
                )
                overrides = [word for option in settings for word in ("--set", option)]
                command = ("translate", model, "--device", "cpu")
                files = ("--input", "data/quickstart/test.de", "--format", "jsonl", *overrides)
                texts = [
                    run(checkout, "-m", "seq2seq_cli", *command, *files)
                    for checkout in (before, after)
                ]
                yield f"translating, {kind}, {precision}, {engine}", texts[0] == texts[1]


def measure(
    before: Path, after: Path, model: Path, text: Path | None, rounds: int
) -> Iterator[tuple[str, str]]:
    def training(checkout: Path) -> float:
        command = ("bench", "train", "configs/quickstart.yaml", "--json", "--device", "cpu")
        report = json.loads(run(checkout, "-m", "seq2seq_cli", *command))
        return 1 / float(report["tokens_per_second"])

    def translating(checkout: Path, *overrides: str) -> float:
        lines = text or "data/quickstart/test.de"
        return float(run(checkout, "-c", SPEED, model, lines, *overrides))

    tasks = {} if text else {"training": training}
    for kind in ("greedy", "beam 5"):
        for precision in PRECISIONS:
            settings = (*SEARCH[kind], f"decoding.precision={precision}")
            tasks[f"translating, {kind}, {precision}"] = lambda checkout, settings=settings: (
                translating(checkout, *settings)
            )
    for name, seconds in tasks.items():
        pairs = []
        for number in range(rounds):
            order = (before, after) if number % 2 == 0 else (after, before)
            times = {checkout: seconds(checkout) for checkout in order}
            pairs.append((times[before], times[after]))
        ratios = sorted(b / a for b, a in pairs)
        ratio = statistics.median(b for b, _ in pairs) / statistics.median(a for _, a in pairs)
        yield name, f"speed after / before {ratio:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parts = ["training", "translating", "speed"]
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--input", type=Path)
    given = parser.parse_args()
    if (given.model is None) != (given.input is None):
        parser.error("--model and --input belong together")
    before, after = given.before.resolve(), given.after.resolve()
    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        model = temporary / "model"
        if "training" in given.only:
            for what, is_equal in compare_training(before, after, temporary):
                print(f"{what:50} {'equal' if is_equal else 'DIFFERENT'}", flush=True)
        if given.model:
            model, given.input = given.model.resolve(), given.input.resolve()
        elif given.only != ["training"]:
            train(before, model, (), steps=300)
        if "translating" in given.only:
            for what, is_equal in compare_translations(before, after, model):
                print(f"{what:50} {'equal' if is_equal else 'DIFFERENT'}", flush=True)
        if "speed" in given.only:
            for what, result in measure(before, after, model, given.input, given.rounds):
                print(f"{what:50} {result}", flush=True)


if __name__ == "__main__":
    main()
