"""Finds the validation of a run's best model among its logged points."""

import math
from collections.abc import Iterable
from typing import Any

from seq2seq_cli.config.types import METRICS, Metric


def best_validation(points: Iterable[dict[str, Any]], metric: Metric) -> dict[str, Any] | None:
    """Return the point with the best score by a metric; None if none has a score.

    A tie is broken by the loss, and then by the step, as in training.
    """
    if metric == "auto":  # the run has no validation text
        return None
    sign = -1 if METRICS[metric].higher_is_better else 1
    names = (f"valid/{metric}", "valid/loss")
    scored = [
        (sign * point[names[0]], point[names[1]], point["step"], number, point)
        for number, point in enumerate(points)
        if all(_is_finite(point.get(name)) for name in names) and isinstance(point.get("step"), int)
    ]
    return min(scored)[-1] if scored else None


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)
