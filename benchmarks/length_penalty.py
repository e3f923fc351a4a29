"""Whether a length penalty that is chosen on some validation lines is better on others.

python benchmarks/length_penalty.py RUN ... --src VALID.SRC --ref VALID.TGT

Every run translates the text with a beam of 5 and several length penalties. A penalty is then
chosen as a run chooses its own (`training/choose_search.py`), on random lines of one half of the
text, for several gains that a step of it must be worth; its BLEU on the other half is compared
with the BLEU of a penalty of 1.
"""

import argparse
import random
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.training.run import nothing

PENALTIES = (0.6, 0.8, 1.0, 1.2, 1.4)
ONE = PENALTIES.index(1.0)
GAINS = (0.0, 0.1, 0.2, 0.3, 0.5)
TRIALS = 60  # random halves for each run


def translations(run: Path, sources: list[str], penalty: float) -> list[str]:
    translator = Translator.load(run, "cpu")
    search = {"beam_size": 5, "length_penalty": penalty, "n_best": 1}
    options = translator.config.decoding.model_copy(update=search)
    inputs = [TranslationInput(source) for source in sources]
    found = translator.with_options(options).search(inputs, report=nothing)
    return [best.text for best, *_ in found]


def climb(score: Callable[[int], float], gain: float) -> int:
    """Return the position of the chosen penalty."""
    best = ONE
    for step in (1, -1):
        while 0 <= best + step < len(PENALTIES) and score(best + step) - score(best) > gain:
            best += step
        if best != ONE:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--src", required=True, type=Path)
    parser.add_argument("--ref", required=True, type=Path)
    given = parser.parse_args()
    sources, references = (
        path.read_text(encoding="utf-8").splitlines() for path in (given.src, given.ref)
    )
    bleu = BLEU()
    counts = []  # of each run, by penalty: what BLEU counts in each line
    print("| run | " + " | ".join(f"{penalty:g}" for penalty in PENALTIES) + " |")
    print("|---" * (len(PENALTIES) + 1) + "|")
    for run in given.runs:
        translated = [translations(run, sources, penalty) for penalty in PENALTIES]
        counts.append(
            [np.array(bleu._extract_corpus_statistics(texts, [references])) for texts in translated]
        )
        found = [bleu.corpus_score(texts, [references]) for texts in translated]
        cells = [f"{one.score:.2f} ({one.sys_len / one.ref_len:.2f})" for one in found]
        print(f"| {run.name} | " + " | ".join(cells) + " |", flush=True)

    def score(of_run: list[np.ndarray], position: int, lines: list[int]) -> float:
        return bleu._compute_score_from_stats(of_run[position][lines].sum(0).tolist()).score

    half = len(sources) // 2
    print("\n| lines | gain of a step | other than 1 | BLEU on other lines, mean | worst |")
    print("|--:|--:|--:|--:|--:|")
    for size in (100, 200, half):
        for gain in GAINS:
            random_source = random.Random(0)
            gains, moved = [], 0
            for of_run in counts:
                for _ in range(TRIALS):
                    order = random_source.sample(range(len(sources)), len(sources))
                    chosen_on, tested_on = order[:size], order[half:]
                    chosen = climb(lambda p: score(of_run, p, chosen_on), gain)  # noqa: B023
                    moved += chosen != ONE
                    gains.append(score(of_run, chosen, tested_on) - score(of_run, ONE, tested_on))
            cells = [f"{gain:g}", f"{100 * moved / len(gains):.0f} %"]
            cells += [f"{statistics.mean(gains):+.2f}", f"{min(gains):.2f}"]
            print(f"| {size} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
