"""Plants faults of every kind into a real text, and counts what `seq2seq clean` finds of them.

python benchmarks/cleaning_faults.py FOLDER train.de train.en

Prints for each kind how many are found by its rule, found by another one, and missed, and for each
rule how many pairs it rejects into which no fault was planted: real faults, or wrongly dropped.
"""

import argparse
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

EACH = 500
CYRILLIC = str.maketrans("abcdefghijklmnopqrstuvwxyz", "абцдефгхийклмнопярстуввхыз")
Pair = tuple[str, str]


def repeated(text: str) -> str:
    words = text.split()
    return f"{text} " + " ".join(words[-2:] * 4)


FAULTS: dict[str, Callable[[Pair, Pair], Pair]] = {  # from a pair, and another one
    "empty": lambda pair, other: (pair[0], " "),
    "control": lambda pair, other: (pair[0], pair[1].replace(" ", " \x0b", 1) + "\x1b"),
    "replaced": lambda pair, other: (pair[0].replace("e", "\ufffd"), pair[1] + "\ufffd"),
    "mojibake": lambda pair, other: (f"{pair[0]} Schön!".encode().decode("latin-1"), pair[1]),
    "words": lambda pair, other: (f"{pair[0]} {other[0]} " * 40, f"{pair[1]} {other[1]} " * 40),
    "word_length": lambda pair, other: (
        "".join(f"{pair[0]}{other[0]}{pair[0]}".split()) * 2,
        "".join(f"{pair[1]}{other[1]}{pair[1]}".split()) * 2,
    ),
    "markup": lambda pair, other: (f"<p>{pair[0]}</p>", f"{pair[1]}&nbsp;"),
    "letters": lambda pair, other: (f"{pair[0][:8]} 3+4*5=23 | [7/8]", f"{pair[1][:8]} 3+4*5=23 |"),
    "script": lambda pair, other: (pair[0], pair[1].lower().translate(CYRILLIC)),
    "ratio": lambda pair, other: (pair[0], f"{pair[1]} {other[1]} {pair[1]} {other[1]} {other[1]}"),
    "copy": lambda pair, other: (pair[0], pair[0].upper()),
    "addresses": lambda pair, other: (pair[0], f"{pair[1]} http://example.org/"),
    "repetition": lambda pair, other: (repeated(pair[0]), repeated(pair[1])),
    "numbers": lambda pair, other: (f"{pair[0]} (1971)", f"{pair[1]} (1968)"),
    "language": lambda pair, other: (pair[0], other[0]),
    "held_out": lambda pair, other: pair,
    "duplicate": lambda pair, other: pair,
    "near_duplicate": lambda pair, other: (f"{pair[0].upper()}!", pair[1].replace(" ", "  ")),
}


def plant(pairs: list[Pair], folder: Path) -> list[str]:
    """Write the text with faults; return the kind of each line, "" for none."""
    draw = random.Random(1)
    rows: list[tuple[str, Pair]] = [("", pair) for pair in pairs]
    held_out = draw.sample(pairs, EACH)
    for kind, damage in FAULTS.items():
        originals = held_out if kind == "held_out" else draw.sample(pairs, EACH)
        rows += [(kind, damage(pair, draw.choice(pairs))) for pair in originals]
    (folder / "test.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in held_out))
    for side, name in enumerate(("x.src", "x.tgt")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for _, pair in rows))
    return [kind for kind, _ in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("folder", "src", "tgt"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--langs", default="de-en")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    sides = (path.read_text().split("\n")[:-1] for path in (given.src, given.tgt))
    kinds = plant(list(zip(*sides, strict=True)), given.folder)
    text = (given.folder / "x.src", given.folder / "x.tgt")
    options = ("--against", given.folder / "test.tsv", "--identify-languages")
    output = ("--langs", given.langs, "-o", given.folder / "out.tsv", "--force")
    command = (sys.executable, "-m", "seq2seq_cli", "clean", *text, *options, *output)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = (given.folder / "out.rejected.tsv").read_text().split("\n")[:-1]
    rejected = {int(line): rule for rule, line, *_ in (line.split("\t") for line in lines)}
    found = Counter((kind, rejected.get(line, "")) for line, kind in enumerate(kinds, 1))
    print(f"{kinds.count(''):,} pairs, and {EACH} faults of each kind")
    print("| rule | found | by another rule | missed | others rejected |\n|---|--:|--:|--:|--:|")
    for kind in FAULTS:
        all_found = sum(count for (one, rule), count in found.items() if one == kind and rule)
        own, others = found[kind, kind], found["", kind]
        print(f"| `{kind}` | {own} | {all_found - own} | {EACH - all_found} | {others:,} |")


if __name__ == "__main__":
    main()
