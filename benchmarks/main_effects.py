"""What each of many options is worth, estimated from runs in which all of them vary.

python benchmarks/main_effects.py CONFIG FOLDER [--set KEY=VALUE ...] [--vary KEY=VALUE ...]

A fractional factorial design of two levels (Box and Hunter 1961): every option has its other value
in half of the 16 runs, and every pair of options has each of its four combinations in four. An
effect, the mean of the runs with the other value minus the mean of the runs with the config's, so
has the precision of 16 runs. The first run is the config. With --vary, these values, at most seven,
are the other ones, in 8 runs.

An effect is mixed with interactions of other options: what is to become a default is confirmed by
runs of its own. Runs with other batches have as many tokens. Runs stay in FOLDER, so that the
command can be stopped and repeated, and several at once, with one thread each, share the runs.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from options import ONE_PROCESS, ONLY_AT_THE_END, locked, scores_of, train

from seq2seq_cli.config.loader import load_config

COLUMNS_OF_8_RUNS = (1, 2, 4, 7, 3, 5, 6)  # the products of others last
FACTORS = {  # the design's column of each option's other value
    "training.lr=3e-2": 1,
    'model.layers={"encoder":6,"decoder":2}': 2,
    "training.tokens_per_batch=2048": 4,
    "model.dropout=0.2": 8,
    "tokenizer.vocab_size=12000": 7,
    "model.d_ff=512": 11,
    "model.attention_dropout=0.1": 13,
    "training.label_smoothing=0.2": 14,
    "training.warmup_steps=50": 3,
    "model.activation_dropout=0.1": 5,
    "model.rotary_cross_attention=true": 6,
}


def is_other(run: int, column: int) -> bool:
    """Return the level of a column in a run, from the Hadamard matrix of Sylvester."""
    return (run & column).bit_count() % 2 == 1


def overrides_of(run: int, factors: dict[str, int], config: Path, common: list[str]) -> list[str]:
    """Return the options of a run, whose length is scaled to as many tokens as the config's."""
    chosen = [option for option, column in factors.items() if is_other(run, column)]
    ours, theirs = (load_config(config, [*common, *options]).training for options in ([], chosen))
    assert ours.max_steps and not isinstance(ours.tokens_per_batch, str)
    assert not isinstance(theirs.tokens_per_batch, str) and not isinstance(theirs.warmup_steps, str)
    scale = ours.tokens_per_batch / theirs.tokens_per_batch
    length = [
        f"training.max_steps={round(ours.max_steps * scale)}",
        f"training.warmup_steps={round(theirs.warmup_steps * scale)}",
    ]
    return [*common, *chosen, *length]


def measured(run_dir: Path) -> dict[str, float] | None:
    """Return the scores of a finished run on the validation text, and its processor minutes."""
    scores = scores_of(run_dir)
    if scores is None:
        return None
    searched = json.loads((run_dir / "search.json").read_text())["measured"]
    with_beam = [found["score"] for found in searched if found["beam_size"] > 1]
    return {
        "BLEU, greedy": scores["bleu"],
        "BLEU, beam": max(with_beam),
        "minutes": scores["seconds"] / 60,
    }


def table(found: dict[int, dict[str, float]], factors: dict[str, int]) -> str:
    """Return the effects, by least squares: with all runs, the differences of the means.

    With fewer runs than unknowns it is the solution of the least norm.
    """
    levels = [[is_other(run, column) for column in factors.values()] for run in found]
    design = np.c_[np.ones(len(found)), np.where(levels, 0.5, -0.5)]
    names = list(next(iter(found.values())))
    rows = [f"| effect of | {' | '.join(names)} |", f"|---|{'--:|' * len(names)}"]
    columns, freedom = [], len(found) - design.shape[1]
    for name in names:
        scores = np.array([of_run[name] for of_run in found.values()])
        effects, *_ = np.linalg.lstsq(design, scores)
        left = np.sum((scores - design @ effects) ** 2)
        error = 2 * (left / freedom / len(found)) ** 0.5 if freedom > 0 else math.nan
        columns.append([*effects, error])
    mean, *effects_OM, errors_M = zip(*columns, strict=True)
    for option, effects in zip(factors, effects_OM, strict=True):
        rows.append(f"| `{option}` | {' | '.join(f'{effect:+.2g}' for effect in effects)} |")
    if freedom > 0:
        rows.append(f"| standard error | {' | '.join(f'{error:.2g}' for error in errors_M)} |")
    rows.append(f"| mean of {len(found)} runs | {' | '.join(f'{value:.4g}' for value in mean)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--vary", nargs="*", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    if len(given.vary) > len(COLUMNS_OF_8_RUNS):
        parser.error(f"--vary: at most {len(COLUMNS_OF_8_RUNS)} values")
    factors = dict(zip(given.vary, COLUMNS_OF_8_RUNS, strict=False)) or FACTORS
    runs = range(8 if given.vary else 16)
    given.folder.mkdir(parents=True, exist_ok=True)
    common = [*given.overrides, *ONE_PROCESS, *ONLY_AT_THE_END]
    for run in runs:
        run_dir = given.folder / f"{run}"
        with locked(run_dir.with_suffix(".lock"), waits=False) as is_free:
            if is_free and measured(run_dir) is None:
                train(given.config, overrides_of(run, factors, given.config, common), run_dir)
            print(f"{run}: {measured(run_dir)}", file=sys.stderr, flush=True)
    found = {run: scores for run in runs if (scores := measured(given.folder / f"{run}"))}
    print(table(found, factors))


if __name__ == "__main__":
    main()
