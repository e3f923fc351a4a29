"""Translations with the kernels of every instruction set of this machine: are they the same?

python benchmarks/instruction_sets.py RUN SRC [--lines 1000]

SRC is a text file. Each set translates its lines with greedy search and with beam 5, in int8 and in
fp32; the table counts the lines that differ from those of the first set.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from seq2seq_cli.native.library import KERNELS, choose_kernels

MODES = [(beam, precision) for beam in (1, 5) for precision in ("int8", "fp32")]


def translate(run: str, source: Path, kernels: str, beam: int, precision: str) -> list[str]:
    options = ["--beam-size", str(beam), "--precision", precision, "--device", "cpu"]
    command = [sys.executable, "-m", "seq2seq_cli", "translate", run, "--input", str(source)]
    done = subprocess.run(
        [*command, *options], env=os.environ | {"SEQ2SEQ_CPU_ISA": kernels},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("source", type=Path)
    parser.add_argument("--lines", type=int, default=1_000)
    given = parser.parse_args()
    sets = [name for name in KERNELS if choose_kernels(name)]
    print(
        "| search | precision | lines | " + " | ".join(sets) + " |\n" + "|---" * (3 + len(sets)),
        "|",
    )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        lines = given.source.read_text(encoding="utf-8").splitlines()[: given.lines]
        source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for beam, precision in MODES:
            found = [translate(given.run, source, name, beam, precision) for name in sets]
            differing = [
                str(sum(one != first for one, first in zip(lines, found[0], strict=True)))
                for lines in found
            ]
            search = "greedy" if beam == 1 else f"beam {beam}"
            print(
                f"| {search} | {precision} | {len(found[0])} | {' | '.join(differing)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
