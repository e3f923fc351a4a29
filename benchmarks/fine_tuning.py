"""What optimizers and learning rates gain and forget in fine-tuning, for as many updates.

python benchmarks/fine_tuning.py CONFIG RUN FOLDER [--only NAME ...]

CONFIG names the text of a domain, with general text mixed in, `data.valid` of the domain,
`data.general` and the number of updates; all else is left to `preset: fine_tuning`. Every variant
starts from RUN. Runs stay in FOLDER, so that the command can be stopped and repeated. Prints a
table of the scores on both held-out texts before the first update and after the last one.
"""

import argparse
import json
from pathlib import Path

from options import ONE_PROCESS, ONLY_AT_THE_END, slug, train

VARIANTS = {
    f"{optimizer} {lr}": (f"training.optimizer={optimizer}", f"training.lr={lr}")
    for optimizer, rates in (("adamw", ("1e-4", "3e-4", "1e-3")), ("muon", ("2e-3", "5e-3")))
    for lr in rates
}
SCORES = ("valid/loss", "valid/bleu", "general/loss", "general/bleu")
SETTINGS = (*ONE_PROCESS, *ONLY_AT_THE_END, "validation.metric=bleu", "training.schedule=linear")


def points(run_dir: Path) -> dict[int, dict[str, float]]:
    """Return the scores of a run by the number of updates."""
    found: dict[int, dict[str, float]] = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        point = json.loads(line)
        found.setdefault(point["step"], {}).update({n: point[n] for n in SCORES if n in point})
    return {step: scores for step, scores in found.items() if len(scores) == len(SCORES)}


def row(name: str, scores: dict[str, float], seconds: str) -> str:
    cells = (f"{scores[n]:.3f}" if n.endswith("loss") else f"{scores[n]:.2f}" for n in SCORES)
    return f"| {name} | {' | '.join(cells)} | {seconds} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    given = parser.parse_args()
    rows = ["| variant | domain: loss | BLEU | general: loss | BLEU | processor seconds |"]
    rows.append("|---|--:|--:|--:|--:|--:|")
    for name in given.only:
        run_dir = given.folder / slug(name)
        if not (run_dir / "seconds.json").exists():
            given.folder.mkdir(parents=True, exist_ok=True)
            train(given.config, [*SETTINGS, *VARIANTS[name]], run_dir, given.run)
        first, *_, last = (scores for _, scores in sorted(points(run_dir).items()))
        if len(rows) == 2:
            rows.append(row("before", first, ""))
        seconds = json.loads((run_dir / "seconds.json").read_text())
        rows.append(row(name, last, f"{seconds:.0f}"))
    print("\n".join(rows))


if __name__ == "__main__":
    main()
