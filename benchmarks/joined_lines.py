"""BLEU of lines that are joined, 2, 5 or all to one, beside the same lines one by one.

python benchmarks/joined_lines.py RUN SRC REF [--set KEY=VALUE ...]

References are joined in the same way. "As it is" leaves the cutting to the run, "whole" gives each
line to the model uncut (up to data.max_length), "each" cuts at every end of a sentence. "Words" is
the share of the references' words that there are.
"""

import argparse
from pathlib import Path

from sacrebleu import corpus_bleu

from seq2seq_cli import Translator
from seq2seq_cli.decoding.translation import TranslationInput

COUNTS = (1, 2, 5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("src", type=Path)
    parser.add_argument("ref", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args()
    src, ref = (path.read_text("utf-8").splitlines() for path in (given.src, given.ref))
    cutting = Translator.load(given.run, overrides=given.overrides)
    precision = cutting.backend.precision
    whole = Translator(cutting.model, cutting.tokenizers, cutting.config, precision=precision)
    ways = {"as it is": (cutting, False), "whole": (whole, False), "each": (cutting, True)}
    print("| lines joined | " + " | ".join(f"{way}: BLEU, words" for way in ways) + " |")
    print("|--:|" + "--:|" * len(ways))
    for count in (*COUNTS, len(src)):
        lines, references = (
            [" ".join(side[start : start + count]) for start in range(0, len(side), count)]
            for side in (src, ref)
        )
        cells = []
        for translator, each in ways.values():
            sentences = [TranslationInput(line) for line in lines]
            found = [t[0].text for t in translator.search(sentences, split_sentences=each)]
            num_words = [sum(len(line.split()) for line in side) for side in (found, references)]
            bleu = corpus_bleu(found, [references]).score
            cells.append(f"{bleu:.2f}, {num_words[0] / num_words[1]:.0%}")
        print(f"| {count} | " + " | ".join(cells) + " |", flush=True)
    (joined,) = cutting.translate([" ".join(src)])
    num_kept = sum(line in joined for line in cutting.translate(src))
    print(f"\nOf all in one line, {num_kept} of {len(src)} translations are those of the lines.")


if __name__ == "__main__":
    main()
