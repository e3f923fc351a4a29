"""Minutes from launch to a given validation BLEU: this trainer, and a Hugging Face loop.

python benchmarks/time_to_quality.py [CONFIG] [--target 36.0] [--seeds 3] [--set KEY=VALUE ...]
python benchmarks/time_to_quality.py [CONFIG] --lay-out FOLDER [--set KEY=VALUE ...]
python benchmarks/time_to_quality.py --hf PYTHON --work FOLDER [--bf16] [--minutes M]

Run it from the repository's root, with Multi30k in data/multi30k, on an otherwise idle machine.
The clock starts before the process does: imports, vocabulary, token ids and validations count, and
the cache of token ids is empty. `--lay-out` writes text and vocabulary of a config for
`peers/huggingface_recipe.py`, which `--hf` runs with that Python, and gives up after `--minutes`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.text.corpus import readable_pairs
from seq2seq_cli.tokenizers.tokenizer import fit_tokenizers
from seq2seq_cli.tokenizers.vocabulary import with_vocab_size

HERE = Path(__file__).parent


def lay_out(config: Config, work: Path) -> None:
    """Write the raw text and the SentencePiece vocabulary, as the Hugging Face loop reads them."""
    work.mkdir(parents=True, exist_ok=True)
    assert config.valid_text is not None, "the loop validates"
    for text, name in ((config.valid_text, "valid"), (config.train_text, "train")):
        pairs = list(readable_pairs(text, config.data.on_bad_line))
        for side in ("src", "tgt"):
            lines = [f"{getattr(pair, side)}\n" for pair in pairs]
            (work / f"{name}.{side}").write_text("".join(lines), encoding="utf-8")
    config = with_vocab_size(config, len(pairs))
    (work / "tokenizer.model").write_bytes(
        fit_tokenizers(config.train_text, config.tokenizer).src.model
    )


def points_of(process: subprocess.Popen, log: Path) -> Iterator[dict]:
    """Yield the points that a run logs, as it logs them."""
    position = 0
    while True:
        is_over = process.poll() is not None
        if log.exists():
            with log.open() as file:
                file.seek(position)
                while (line := file.readline()).endswith("\n"):
                    position += len(line.encode())
                    yield json.loads(line)
        if is_over:
            return
        time.sleep(0.05)


def ours(config: str, overrides: list[str], seed: int, target: float) -> tuple[float, int]:
    """Return minutes and updates until the target; infinity if the run ends before."""
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"--set={override}" for override in [*overrides, f"training.seed={seed}"]]
        command = [sys.executable, "-m", "seq2seq_cli", "train", config, *settings]
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, "--run-dir", f"{folder}/run"],
            env=os.environ | {"XDG_CACHE_HOME": f"{folder}/cache"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for point in points_of(process, Path(folder, "run", "metrics.jsonl")):
                minutes = (time.monotonic() - started) / 60
                if (bleu := point.get("valid/bleu")) is None:
                    continue
                print(f"{point['step']} {minutes:.2f} min {bleu:.2f}", file=sys.stderr, flush=True)
                if bleu >= target:
                    return minutes, point["step"]
            return float("inf"), 0
        finally:
            process.terminate()
            process.wait()


def huggingface(
    python: str, work: Path, bf16: bool, seed: int, target: float, limit: float
) -> tuple[float, int]:
    """Return minutes and updates until the target; infinity if the run ends before."""
    script = str(HERE / "peers/huggingface_recipe.py")
    command = [python, script, str(work), f"--target={target}", f"--seed={seed}"]
    command += [f"--minutes={limit}"]
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "--bf16"] if bf16 else command, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            minutes = (time.monotonic() - started) / 60
            point = json.loads(line)
            print(f"{minutes:.2f} min {line.strip()}", file=sys.stderr, flush=True)
            if point.get("bleu", 0.0) >= target:
                return minutes, point["update"]
    return float("inf"), 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", default="configs/multi30k_en_de.yaml")
    parser.add_argument("--target", type=float, default=36.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--lay-out", type=Path, metavar="FOLDER")
    parser.add_argument("--hf", metavar="PYTHON")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    given = parser.parse_args()
    if given.lay_out:
        lay_out(load_config(Path(given.config), given.overrides), given.lay_out)
        return
    found = []
    print("| seed | updates | minutes |\n|--:|--:|--:|")
    for seed in range(1, given.seeds + 1):
        if given.hf:
            result = huggingface(
                given.hf, given.work, given.bf16, seed, given.target, given.minutes
            )
        else:
            result = ours(given.config, given.overrides, seed, given.target)
        found.append(result[0])
        print(f"| {seed} | {result[1]:,} | {result[0]:.2f} |", flush=True)
    print(f"median {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f}) minutes")


if __name__ == "__main__":
    main()
