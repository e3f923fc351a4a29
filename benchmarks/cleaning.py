"""Speed and memory of `seq2seq clean` on generated text, and of OpusFilter with the same rules.

python benchmarks/cleaning.py FOLDER 1 10
python benchmarks/cleaning.py FOLDER 0.1 --opusfilter VENV/bin/opusfilter

The numbers are millions of pairs. OpusFilter is measured on the last of them.
"""

import argparse
import itertools
import json
import resource
import subprocess
import time
from pathlib import Path

import yaml
from large_text import MILLION, measured, write_file

RULES = [
    {"LengthFilter": {"unit": "word", "min_length": 1, "max_length": 150}},
    {"LongWordFilter": {"threshold": 40}},
    {"HtmlTagFilter": {}},
    {"AlphabetRatioFilter": {"threshold": 0.5, "exclude_whitespace": True}},
    {"CharacterScoreFilter": {"scripts": ["Latin", "Latin"], "thresholds": [0.5, 0.5]}},
    {"LengthRatioFilter": {"unit": "char", "threshold": 3}},
    {"SimilarityFilter": {"threshold": 0.9}},
    {"RepetitionFilter": {"threshold": 3, "min_length": 3, "max_length": 40}},
    {"NonZeroNumeralsFilter": {"threshold": 0.5}},
]
# Those that OpusFilter has no filter for.
OTHERS = ("control", "replaced", "mojibake", "addresses")


def write_text(folder: Path, millions: float) -> tuple[Path, Path]:
    """Write the files of a text, of whole sentences and numbers now and then."""
    names = tuple(folder / f"{millions:g}.{side}" for side in ("src", "tgt"))
    if names[1].exists():
        return names
    count = round(millions * MILLION)
    with names[0].open("w") as src, names[1].open("w") as tgt:
        for number in range(-(-count // MILLION)):
            write_file(folder, number)
            part = folder / f"{number:04}"
            with part.with_suffix(".src").open() as left, part.with_suffix(".tgt").open() as right:
                rows = itertools.islice(zip(left, right, strict=True), count - number * MILLION)
                for i, (a, b) in enumerate(rows):
                    year = f" {1900 + i % 100}" if i % 10 == 0 else ""
                    src.write(f"{a.strip().capitalize()}{year}.\n")
                    tgt.write(f"{b.strip().capitalize()}{year}.\n")
    return names


def run_opusfilter(program: str, folder: Path, src: Path, tgt: Path) -> None:
    """Remove duplicates, then filter, in two processes; print seconds and memory."""
    for step in ("deduplicated", "kept"):
        for side in ("src", "tgt"):
            (folder / f"{step}.{side}").unlink(missing_ok=True)
    unique = ["deduplicated.src", "deduplicated.tgt"]
    steps = [
        {
            "type": "remove_duplicates",
            "parameters": {"inputs": [src.name, tgt.name], "outputs": unique},
        },
        {
            "type": "filter",
            "parameters": {"inputs": unique, "outputs": ["kept.src", "kept.tgt"], "filters": RULES},
        },
    ]
    config = {"common": {"output_directory": str(folder), "default_n_jobs": 2}, "steps": steps}
    (folder / "opusfilter.yaml").write_text(yaml.safe_dump(config))
    started = time.perf_counter()
    subprocess.run([program, "--overwrite", folder / "opusfilter.yaml"], check=True)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    kept = sum(1 for _ in (folder / "kept.src").open())
    print(f"| OpusFilter | {seconds:.1f} | {peak / 1024:.0f} | {kept:,} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("millions", type=float, nargs="+")
    parser.add_argument("--opusfilter")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    print("| million pairs | seconds | MB of memory | pairs a minute |")
    for millions in given.millions:
        src, tgt = write_text(given.folder, millions)
        output = ("-o", f"{given.folder}/out.src", "-o", f"{given.folder}/out.tgt", "--force")
        seconds, megabytes = measured("clean", str(src), str(tgt), *output, "--processes", "2")
        pace = millions * MILLION / seconds * 60
        print(f"| {millions:g} | {seconds:.1f} | {megabytes:.0f} | {pace:,.0f} |", flush=True)
    if given.opusfilter:
        without = [argument for rule in OTHERS for argument in ("--without", rule)]
        seconds, megabytes = measured("clean", str(src), str(tgt), *output, *without)
        kept = sum(1 for _ in (given.folder / "out.src").open())
        print(json.dumps(RULES))
        print(f"| seq2seq clean | {seconds:.1f} | {megabytes:.0f} | {kept:,} |")
        run_opusfilter(given.opusfilter, given.folder, src, tgt)


if __name__ == "__main__":
    main()
