"""Scores of given translations: log-probability and attention of every token.

S source positions, T target positions.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class GivenScore(NamedTuple):
    """The score of a given translation under the model."""

    log_probs: list[float]  # of every token, EOS last
    # Of every token over the source, both without EOS; rows sum to 1.
    attention_TS: NDArray[np.float32] | None

    def without_control_tokens(self, length: int) -> "GivenScore":
        """Return the score without attention to the first `length` tokens, the control tokens."""
        if self.attention_TS is None or not length:
            return self
        return self._replace(attention_TS=normalized_rows(self.attention_TS[:, length:]))


NOT_SCORED = GivenScore([], None)


def normalized_rows(attention_TS: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return attention whose rows sum to 1, unless all of a row is zero."""
    smallest = np.finfo(attention_TS.dtype).tiny  # for a head that attends to EOS alone
    return attention_TS / np.maximum(attention_TS.sum(axis=-1, keepdims=True), smallest)


def without_eos(attention_TS: NDArray[np.float32]) -> NDArray[np.float32]:
    """Remove the last column and row, EOS of source and target; the rows sum to 1 again."""
    return normalized_rows(attention_TS[..., :-1, :-1])
