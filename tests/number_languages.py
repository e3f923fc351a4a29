"""Names of digits in two languages, which a tiny model learns to translate both ways in seconds."""

import re
from pathlib import Path
from typing import Any

from number_task import FAST, NAMES, number_pairs, numbers_config, write_pairs

GERMAN = ("null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
_TO_GERMAN = dict(zip(NAMES, GERMAN, strict=True))


def in_german(text: str) -> str:
    """Translate the names of digits in a text, as the model does."""
    return re.sub("|".join(NAMES), lambda name: _TO_GERMAN[name[0]], text)


def both_ways(count: int, seed: int) -> list[tuple[str, str]]:
    pairs = [(names, in_german(names)) for _, names in number_pairs(count, seed)]
    return [pair if n % 2 else pair[::-1] for n, pair in enumerate(pairs)]


def languages_config(folder: Path) -> dict[str, Any]:
    """A config for a run that is served twice, as `en-de` and as `de-en`."""
    config = numbers_config(folder, 1, **FAST, max_steps=160)
    config["data"]["train"] = write_pairs(folder, "train", both_ways(1_500, seed=1))
    config["data"]["valid"] = write_pairs(folder, "valid", both_ways(60, seed=2))
    return config
