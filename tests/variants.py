"""Variants of a test of which `make test` runs half."""

from collections.abc import Iterable
from typing import Any

import pytest


def half_of_them_slow(variants: Iterable[Any]) -> list[Any]:
    """Mark half of the values of a parameter as slow; of a product, each half has every factor."""
    return [
        pytest.param(value, marks=pytest.mark.slow) if number.bit_count() % 2 else value
        for number, value in enumerate(variants)
    ]
