"""Seconds, memory and bytes of preparing large generated text, and of starting to train on it.

python benchmarks/large_text.py FOLDER 1 10 40

The numbers are millions of pairs. The folder gets files of a million pairs. Then, in processes of
their own: `preprocess`, a training of two updates, and two more of it after a restart. The
vocabulary is learnt from 100,000 sampled lines.
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import yaml

MILLION = 1_000_000
SYLLABLES = ["ka", "to", "mi", "re", "su", "no", "la", "vi", "po", "de", "ga", "ru", "shi", "en"]
NUM_WORDS = 20_000


def write_file(folder: Path, number: int) -> None:
    """Write a million pairs: 5 to 20 words, some more often than others, and them reversed."""
    path = folder / f"{number:04}"
    if path.with_suffix(".tgt").exists():
        return
    draw = random.Random(1)
    words = ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(NUM_WORDS)]
    reversed_words = [word[::-1] for word in words]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(NUM_WORDS)))
    draw = random.Random(number + 2)
    part = path.with_suffix(".part")
    with path.with_suffix(".src").open("w") as src, part.open("w") as tgt:
        for _ in range(MILLION):
            ids = draw.choices(range(NUM_WORDS), cum_weights=weights, k=draw.randint(5, 20))
            src.write(" ".join(words[i] for i in ids) + "\n")
            tgt.write(" ".join(reversed_words[i] for i in reversed(ids)) + "\n")
    part.rename(path.with_suffix(".tgt"))


def measured(*command: str) -> tuple[float, float]:
    """Run a command of seq2seq; return its seconds, and the MB of its largest process."""
    started = time.perf_counter()
    program = (
        "import resource, sys, os, atexit;"
        "from seq2seq_cli.cli import main;"
        "atexit.register(lambda: print('peak', max(resource.getrusage(who).ru_maxrss for who in "
        "(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)), file=sys.stderr));"
        "main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, *command], stderr=subprocess.PIPE, text=True, check=False
    )
    if run.returncode:
        sys.exit(run.stderr)
    seconds = time.perf_counter() - started
    (peak,) = (line.split()[1] for line in run.stderr.splitlines() if line.startswith("peak "))
    return seconds, int(peak) * 1_024 / MILLION


def size_of(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MILLION


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("millions", type=int, nargs="+")
    given = parser.parse_args()
    text = given.folder / "text"
    text.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(write_file, itertools.repeat(text), range(max(given.millions))))
    print("| million pairs | text, MB | ids, MB | command | seconds | MB of memory |")
    print("|--:|--:|--:|---|--:|--:|")
    for millions in given.millions:
        folder = given.folder / str(millions)
        folder.mkdir(exist_ok=True)
        for number in range(millions):
            for side in ("src", "tgt"):
                link = folder / f"{number:04}.{side}"
                link.unlink(missing_ok=True)
                link.symlink_to((text / link.name).resolve())
        os.environ["SEQ2SEQ_CACHE"] = str(folder / "cache")
        os.environ["SEQ2SEQ_CACHE_GB"] = "1000"
        config = folder / "large.yaml"
        sides = {side: str(folder / f"*.{side}") for side in ("src", "tgt")}
        settings = {
            "data": {"train": sides},
            "tokenizer": {"vocab_size": 8_000, "max_sentences": 100_000},
            "model": {"d_model": 64, "heads": 4, "layers": 1, "d_ff": 128},
            "training": {
                "max_steps": 2,
                "tokens_per_batch": 4_096,
                "warmup_steps": 1,
                "processes": 1,
            },
        }
        config.write_text(yaml.safe_dump(settings))
        run = ("train", str(config), "--run-dir", str(folder / "run"))
        commands = {
            "`preprocess`": ("preprocess", str(config)),
            "`train`, two updates": run,
            "`train`, two more": (*run, "--set", "training.max_steps=4"),
        }
        for name, command in commands.items():
            seconds, memory = measured(*command)
            size = sum(path.stat().st_size for path in folder.glob("*.???")) / MILLION
            print(
                f"| {millions} | {size:,.0f} | {size_of(folder / 'cache'):,.0f} | {name} | "
                f"{seconds:,.1f} | {memory:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
