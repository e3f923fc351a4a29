"""The KV cache of the model: keys and values that later positions attend to.

`decoding/engines/cpu_decoder.py` lays the same numbers out in its own way.

B sentences, M memory positions, S source positions, H heads, K size of one head.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor


class KeysValues(NamedTuple):
    """The keys and values that queries attend to."""

    k_BHMK: Tensor
    v_BHMK: Tensor

    def extend(self, new: "KeysValues") -> "KeysValues":
        """Return these positions followed by new ones."""
        return KeysValues(*(torch.cat(pair, dim=2) for pair in zip(self, new, strict=True)))

    def select(self, rows_B: Tensor) -> "KeysValues":
        """Return the given sentences, in that order."""
        return KeysValues(*(states[rows_B] for states in self))


@dataclass
class LayerCache:
    """What one decoder layer attends to."""

    memory: KeysValues  # of the encoder's output, computed once per sentence
    past: KeysValues | None = None  # of the target so far, which grows at each step

    def select(self, rows_B: Tensor) -> "LayerCache":
        past = self.past.select(rows_B) if self.past is not None else None
        return LayerCache(self.memory.select(rows_B), past)


@dataclass
class Cache:
    """The cache of all layers between the steps of a search; the caller owns it."""

    layers: list[LayerCache]
    mask_B11S: Tensor  # padding mask of the source
    length: int = 0  # target positions decoded so far

    def select(self, rows_B: Tensor) -> "Cache":
        """Return the given sentences, in that order."""
        layers = [layer.select(rows_B) for layer in self.layers]
        return replace(self, layers=layers, mask_B11S=self.mask_B11S[rows_B])
