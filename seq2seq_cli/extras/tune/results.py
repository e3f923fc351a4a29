"""What a search has found: a table of its trials, and the best config with its reasons."""

import itertools
import json
import math
from pathlib import Path

from seq2seq_cli.config.presets import Choice, commented_yaml
from seq2seq_cli.console import counted, table
from seq2seq_cli.extras.tune.space import Option
from seq2seq_cli.extras.tune.study import Study, Trial
from seq2seq_cli.files import write_atomic

_MOST_VALUES = 5  # whole numbers that are compared one by one; others are compared by thirds


def table_of(study: Study) -> str:
    """Return all trials, the best first, then those without a score to compare."""
    names = [option.name for option in study.options]
    head = ["trial", study.metric, "state", "updates", "minutes"]
    rows = [[*head, *(name.partition(".")[2] for name in names)]]
    for trial in ranked(study):
        score = "" if trial.score is None else f"{trial.score:.3f}"
        facts = [f"{trial.number:,}", score, trial.state, f"{trial.updates:,}"]
        values = [trial.values.get(name, "") for name in names]
        rows.append([*facts, f"{trial.seconds / 60:.1f}", *values])
    return table(rows)


def ranked(study: Study) -> list[Trial]:
    finished = sorted(study.finished, key=study.cost_of)
    return [*finished, *(trial for trial in study.trials if trial not in finished)]


def best_config(study: Study) -> Path:
    return study.folder / "best.yaml"


def write_best(study: Study) -> None:
    """Write the config of the best trial; a comment at each searched option says what it is worth.

    It has the options that differ from their defaults or were searched, and the size of the model,
    so that no preset is chosen.
    """
    best, first = study.best, study.trials[0]
    assert best is not None, "the caller has checked it"
    first_score = "none" if first.score is None else f"{first.score:.3f}"
    config = study.config_of(best)
    count = counted(len(study.finished), "finished trial")
    head = [
        f"Written by seq2seq tune: trial {best.number:,} of {len(study.trials):,}, with validation "
        f"{study.metric} {best.score:.3f}; trial 1, the config itself, has {first_score}. The "
        f"comment at each searched option names its range, and the best {study.metric} in parts of "
        f"the range, of {count}. Small differences are chance.",
        "All other options have the defaults of configs/reference.yaml.",
    ]
    reasons: dict[str, list[str]] = {"model.d_model": []}
    for option in study.options:
        section, name, *inner = option.name.split(".")
        reason = " ".join([*inner, evidence(option, study)])
        reasons.setdefault(f"{section}.{name}", []).append(reason)
    differing = config.model_dump(mode="json", exclude_defaults=True)
    choices = {}
    for section, options in config.model_dump(mode="json", exclude={"preset"}).items():
        for option, value in options.items():
            name = f"{section}.{option}"
            if name in reasons:
                choices[name] = Choice(value, "; ".join(reasons[name]))
            elif option in differing.get(section, {}):
                choices[name] = Choice(differing[section][option])
    write_atomic(best_config(study), commented_yaml(head, choices).encode())


def evidence(option: Option, study: Study) -> str:
    """Return what was searched, and the best score with each value or third of the range."""
    best: dict[float | str, float | None] = {}  # by value, the best first
    for trial in sorted(study.finished, key=study.cost_of):
        if (value := option.value_of(trial.values.get(option.name, ""))) is not None:
            best.setdefault(value, trial.score)
    numbers = {value: best[value] for value in best if not isinstance(value, str)}
    if option.choices or (option.is_whole and option.high - option.low < _MOST_VALUES):
        order = option.choices or sorted(numbers)
        groups = [(f"with {value}", [best[value]]) for value in order if value in best]
    else:
        groups = [
            (f"up to {float(f'{high:.3g}'):g}", [numbers[n] for n in numbers if low < n <= high])
            for low, high in itertools.pairwise([-math.inf, *thirds(option)])
        ]
    shown = [f"{scores[0]:.3f} {where}" for where, scores in groups if scores]
    return f"{option.values}: {', '.join(shown)}"


def thirds(option: Option) -> list[float]:
    """Return the upper ends of the thirds of a range, on the scale on which it is searched."""
    low, high = option.low, option.high
    if option.is_log:
        return [low * (high / low) ** (part / 3) for part in (1, 2)] + [high]
    return [low + (high - low) * part / 3 for part in (1, 2)] + [high]


def as_json(study: Study) -> str:
    """Return the output of `tune --json`."""
    best = study.best
    assert best is not None, "a search without one is an error"
    trials = [{**vars(trial), "run": str(study.run_of(trial).path)} for trial in study.trials]
    return json.dumps(
        {"metric": study.metric, "best": best.number, "config": str(best_config(study))}
        | {"seconds": study.seconds, "trials": trials},
        indent=2,
    )
