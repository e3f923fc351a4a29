"""What the options of the model are worth at equal processor time, against the default.

python benchmarks/model_options.py CONFIG FOLDER [--seeds 1 2] [--only NAME ...] [--set KEY=VALUE]

The config says how long the default trains. For every other option, updates of it and of the
default are timed in turn, in processor seconds of one process with one thread; the option then
trains for as many updates as take the same time, with a schedule that ends there. So no clock runs
during the runs that count, and another program on the machine does not change their result.

Runs and speeds stay in FOLDER, so that the command can be stopped and repeated. Prints a table of
the scores on the validation text after the last update.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.machine import torch_environment
from seq2seq_cli.model.malloc import retain_freed_pages
from seq2seq_cli.tools.dry_run import DryRun, dry_run

OPTIONS: dict[str, tuple[str, ...]] = {
    "default": (),
    "rotary positions": ("model.positions=rotary",),
    "QK-norm": ("model.attention_scale=cosine",),
}
METRICS = ("loss", "accuracy", "bleu", "exact_match")
ONE_PROCESS = ("training.processes=1", "training.save_every=null")
ONLY_AT_THE_END = ("validation.unit=steps", "validation.every=1000000")


def relative_time(default: Config, other: Config, updates: int) -> float:
    """Return the median of the pairs' processor times, the other's over the default's."""

    def seconds(trial: DryRun) -> float:
        started = time.process_time()
        trial.update()
        return time.process_time() - started

    def compare(ours: DryRun) -> float:
        def with_other(theirs: DryRun) -> float:
            for trial in (ours, theirs) * 5:
                trial.update()
            ratios = []
            for number in range(updates):
                first, second = (ours, theirs) if number % 2 else (theirs, ours)
                taken = {trial: seconds(trial) for trial in (first, second)}
                ratios.append(taken[theirs] / taken[ours])
            return statistics.median(ratios)

        ratio = dry_run(with_other, other)
        assert ratio is not None
        return ratio

    retain_freed_pages()
    ratio = dry_run(compare, default)
    assert ratio is not None, "torchrun did not start this"
    return ratio


def scores_of(run_dir: Path) -> dict[str, float] | None:
    """Return the scores of a finished run, its number of updates and its processor seconds."""
    finished = run_dir / "seconds.json"
    if not finished.exists():
        return None
    seconds = json.loads(finished.read_text())
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    scores = json.loads([line for line in lines if '"valid/loss"' in line][-1])
    found = {name: scores[f"valid/{name}"] for name in METRICS}
    return found | {"updates": scores["step"], "seconds": seconds}


def train(config: Path, overrides: list[str], run_dir: Path) -> None:
    """Train, and note the processor seconds; with start, vocabulary and validation."""
    command = [sys.executable, "-m", "seq2seq_cli", "train", str(config)]
    sets = [part for override in overrides for part in ("--set", override)]
    before = children_seconds()
    subprocess.run(
        [*command, "--run-dir", str(run_dir), *sets],
        check=True,
        env=torch_environment() | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    (run_dir / "seconds.json").write_text(json.dumps(children_seconds() - before))


def children_seconds() -> float:
    """Return the processor seconds of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def table(folder: Path, speeds: dict[str, float]) -> str:
    rows = [
        "| option | time of an update | updates | runs | loss | accuracy | BLEU | exact match |",
        "|---|--:|--:|--:|---|---|---|---|",
    ]
    for name, speed in speeds.items():
        found = [scores_of(path) for path in sorted(folder.glob(f"{slug(name)}-[0-9]*"))]
        runs = [scores for scores in found if scores is not None]
        if runs:
            cells = []
            for metric, digits in (("loss", 3), ("accuracy", 1), ("bleu", 1), ("exact_match", 1)):
                values = sorted(scores[metric] for scores in runs)
                spread = " to ".join(f"{v:.{digits}f}" for v in (values[0], values[-1]))
                mean = f"{statistics.mean(values):.{digits}f}"
                cells.append(f"{mean} ({spread})" if len(values) > 1 else mean)
            updates = f"{runs[0]['updates']:,}"
            rows.append(
                " | ".join([f"| {name}", f"{speed:.2f}", updates, str(len(runs)), *cells]) + " |"
            )
    return "\n".join(rows)


def slug(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="*", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--updates", type=int, default=30, help="pairs of updates that are timed")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    stored = given.folder / "speeds.json"
    speeds = json.loads(stored.read_text()) if stored.exists() else {"default": 1.0}
    common = [*given.overrides, *ONE_PROCESS]
    default = load_config(given.config, common)
    steps = default.training.max_steps
    assert steps is not None, "the config says how long the default trains"
    for seed in given.seeds:
        for name in given.only:
            options = OPTIONS[name]
            if name not in speeds:
                other = load_config(given.config, [*common, *options])
                speeds[name] = relative_time(default, other, given.updates)
                stored.write_text(json.dumps(speeds))
            run_dir = given.folder / f"{slug(name)}-{seed}"
            if scores_of(run_dir) is None:
                length = (f"training.max_steps={round(steps / speeds[name])}",)
                overrides = [*common, *ONLY_AT_THE_END, *options, *length, f"training.seed={seed}"]
                train(given.config, overrides, run_dir)
            print(f"{name}, seed {seed}: {scores_of(run_dir)}", file=sys.stderr, flush=True)
    print(table(given.folder, speeds))


if __name__ == "__main__":
    main()
