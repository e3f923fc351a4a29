"""What options of the model and of training are worth at equal processor time.

python benchmarks/options.py CONFIG FOLDER [--seeds 1 2] [--only NAME ...] [--set KEY=VALUE]

The config says how long the default trains. For every other option, updates of it and of the
default are timed in turn, in processor seconds of one process with one thread; the option then
trains for as many updates as take the same time, with a warm-up and a schedule that are shorter or
longer in proportion. So no clock runs during the runs that count, and another program on the
machine does not change their result.

Runs and speeds stay in FOLDER, so that the command can be stopped and repeated, and several at once
share the runs among them. Prints a table of the scores on the validation text after the last
update.
"""

import argparse
import fcntl
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from seq2seq_cli.commands.dry_run import dry_run, timed_update
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.machine import retain_freed_pages, torch_environment
from seq2seq_cli.training.run import Run

SINUSOIDAL = ("model.positions=sinusoidal",)
ADAMW = ("training.optimizer=adamw", "training.lr=4e-3")
SCHEDULE_FREE = (
    "training.optimizer=schedule_free_adamw",
    "training.schedule=constant",
    "training.lr=1e-2",
)
SAMPLING = ("training.subword_sampling=0.1",)
R_DROP = ('training.consistency={"kind":"r_drop"}',)
SIMCUT = ('training.consistency={"kind":"simcut"}',)
EMA = ("training.ema_decay=0.999",)
OPTIONS: dict[str, tuple[str, ...]] = {
    "default": (),
    "rotary positions": ("model.positions=rotary",),
    "post-norm": ("model.norm=post",),
    "sinusoidal positions": SINUSOIDAL,
    "AdamW": ADAMW,
    "AdamW, sinusoidal positions": ADAMW + SINUSOIDAL,
    "schedule-free AdamW": SCHEDULE_FREE,
    "schedule-free AdamW, sinusoidal positions": SCHEDULE_FREE + SINUSOIDAL,
    "EMA": EMA,
    "EMA, AdamW, sinusoidal positions": EMA + ADAMW + SINUSOIDAL,
    "BPE-dropout": SAMPLING,
    "BPE-dropout, AdamW, sinusoidal positions": SAMPLING + ADAMW + SINUSOIDAL,
    "R-Drop": R_DROP,
    "R-Drop, AdamW, sinusoidal positions": R_DROP + ADAMW + SINUSOIDAL,
    "SimCut": SIMCUT,
    "SimCut, AdamW, sinusoidal positions": SIMCUT + ADAMW + SINUSOIDAL,
    "vocabulary by the size of the corpus": ("tokenizer.vocab_size=auto",),
    "2,000 entries": ("tokenizer.vocab_size=2000",),
    "4,000 entries": ("tokenizer.vocab_size=4000",),
    "16,000 entries": ("tokenizer.vocab_size=16000",),
    "weight decay": ("training.weight_decay=0.1",),
}
METRICS = ("loss", "accuracy", "bleu", "exact_match")
ONE_PROCESS = ("training.processes=1", "training.save_every=null")
ONLY_AT_THE_END = ("validation.unit=steps", "validation.every=1000000")


def relative_time(default: Config, other: Config, updates: int) -> float:
    """Return the median of the pairs' processor times, the other's over the default's."""

    def seconds(run: Run) -> float:
        started = time.process_time()
        timed_update(run)
        return time.process_time() - started

    def compare(ours: Run) -> float:
        def with_other(theirs: Run) -> float:
            for run in (ours, theirs) * 5:
                timed_update(run)
            ratios = []
            for number in range(updates):
                first, second = (ours, theirs) if number % 2 else (theirs, ours)
                taken = {id(run): seconds(run) for run in (first, second)}
                ratios.append(taken[id(theirs)] / taken[id(ours)])
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
    common = [*given.overrides, *ONE_PROCESS]
    with locked(given.folder / "speeds.lock"):
        speeds = measured_speeds(given.folder / "speeds.json", given, common)
    for seed in given.seeds:
        for name in given.only:
            run_dir = given.folder / f"{slug(name)}-{seed}"
            with locked(run_dir.with_suffix(".lock"), waits=False) as is_free:
                if is_free and scores_of(run_dir) is None:
                    length = schedule(load_config(given.config, common), speeds[name])
                    seeded = f"training.seed={seed}"
                    overrides = [*common, *ONLY_AT_THE_END, *length, *OPTIONS[name], seeded]
                    train(given.config, overrides, run_dir)
                print(f"{name}, seed {seed}: {scores_of(run_dir)}", file=sys.stderr, flush=True)
    print(table(given.folder, speeds))


def measured_speeds(stored: Path, given: argparse.Namespace, common: list[str]) -> dict[str, float]:
    """Return the time of an update of every option, relative to the default's."""
    speeds = json.loads(stored.read_text()) if stored.exists() else {"default": 1.0}
    for name in given.only:
        if name not in speeds:
            default, other = (
                load_config(given.config, [*common, *options]) for options in ((), OPTIONS[name])
            )
            speeds[name] = relative_time(default, other, given.updates)
            stored.write_text(json.dumps(speeds))
    return speeds


def schedule(default: Config, speed: float) -> list[str]:
    """Return updates and warm-up of an option that take as long as those of the default."""
    training = default.training
    assert training.max_steps is not None, "the config says how long the default trains"
    return [
        f"training.{name}={round(number / speed)}"
        for name, number in (
            ("max_steps", training.max_steps),
            ("warmup_steps", training.warmup_steps),
        )
        if number != "auto"
    ]


@contextmanager
def locked(path: Path, waits: bool = True) -> Iterator[bool]:
    """Hold a lock against other processes, and yield whether it is held: always, if this waits."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


if __name__ == "__main__":
    main()
