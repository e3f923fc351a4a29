"""Print random words, each as its own inflected form, to train on beside a small lexicon.

    python data/make_copies.py mine/train.tsv > mine/copies.tsv

They have the letters and the lengths of the words in the first column of the file. From them a
model learns to copy the letters of words that it has never seen; the feature COPY tells them apart.
"""

import random
import sys
from pathlib import Path

COUNT = 5_000


def main() -> None:
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    words = sorted({line.split("\t")[0] for line in lines})
    letters = list("".join(words))
    chance = random.Random(1)
    for _ in range(COUNT):
        length = len(chance.choice(words))
        word = " ".join("".join(chance.choices(letters, k=length)).split())
        if word:
            print(word, "COPY", word, sep="\t")


if __name__ == "__main__":
    main()
