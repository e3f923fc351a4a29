"""Which model of its run a file of weights holds, with its validation scores: facts in the file.

They were measured with these weights, whatever the run has logged before or since.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq_cli.config.metrics import METRICS, RENAMED_METRICS, Metric
from seq2seq_cli.model.weights import read_facts


class ModelScores(NamedTuple):
    """A model's name within its run, such as `step 500`, and its finite scores."""

    model: str
    scores: Mapping[Metric, float]


def facts_of(model: str, metrics: Mapping[Metric, float]) -> dict[str, Any]:
    """Return what `save_tensors` is to write with the weights."""
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return {"model": model, "scores": finite}


def read_model_scores(path: Path) -> ModelScores | None:
    """Return the scores of the weights in a file; None if it has none, as in checkpoints.

    Raises UserError if it is missing or damaged, and OSError if it cannot be read.
    """
    facts = read_facts(path)
    scores = facts.get("scores")
    if not isinstance(scores, dict):
        return None
    current = {RENAMED_METRICS.get(name, name): score for name, score in scores.items()}
    known = {name: current[name] for name in METRICS if isinstance(current.get(name), float)}
    return ModelScores(str(facts.get("model")), known) if known else None
