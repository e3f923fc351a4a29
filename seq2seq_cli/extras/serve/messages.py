"""The messages between the server and its model processes: lines of JSON over sockets."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

WITH_PYTORCH = b"t"  # sent with the connection of a worker that may need it at once
_MIN_BEAM_WITH_CONSTRAINTS = 5


class SearchOptions(NamedTuple):
    """Options of a search; sentences with the same ones are translated together."""

    n_best: int = 1
    with_constraints: bool = False
    alignment: bool = False
    attention: bool = False
    log_probs: bool = False

    @property
    def has_details(self) -> bool:
        """Return True if more than texts is asked for."""
        return self.alignment or self.attention or self.log_probs

    @property
    def width(self) -> int:
        """The minimum beam size."""
        return max(self.n_best, _MIN_BEAM_WITH_CONSTRAINTS if self.with_constraints else 1)


class SentenceInput(NamedTuple):
    """A sentence to translate, and phrases that its translation must contain."""

    text: str
    required: tuple[str, ...] = ()

    @property
    def cost(self) -> int:
        """Return an estimate of its number of tokens: one for every four bytes, and EOS."""
        return 1 + (len(self.text.encode()) + 3) // 4


class SentenceOutput(NamedTuple):
    """A translation of a sentence, with the requested details."""

    text: str
    alignment: Sequence[tuple[int, int]] = ()  # source word, target word
    attention: tuple[tuple[float, ...], ...] = ()  # of target words over source words
    tokens: tuple[str, ...] = ()
    log_probs: tuple[float, ...] = ()  # of the tokens, EOS last
    source_words: Sequence[tuple[int, int]] = ()  # in the sentence, without its tag and features


class Batch(NamedTuple):
    """Sentences for one run, by its number."""

    run: int
    options: SearchOptions
    sentences: tuple[SentenceInput, ...]

    @classmethod
    def from_json(cls, message: Any) -> "Batch":
        run, options, sentences = message
        inputs = tuple(SentenceInput(text, tuple(required)) for text, required in sentences)
        return cls(run, SearchOptions(*options), inputs)


class BatchResult(NamedTuple):
    """The n best translations of every sentence, or the reason why there are none."""

    outputs: tuple[tuple[SentenceOutput, ...] | str, ...]
    num_tokens: int  # of the best translations
    at_length_limit: int  # number of translations truncated at the length limit
    seconds: float

    @classmethod
    def from_json(cls, message: Any) -> "BatchResult":
        all_outputs, *numbers = message
        outputs = tuple(
            each if isinstance(each, str) else tuple(SentenceOutput(*output) for output in each)
            for each in all_outputs
        )
        return cls(outputs, *numbers)


def packed(message: Any) -> bytes:
    """Return a message as a line of JSON in ASCII."""
    return f"{json.dumps(message)}\n".encode()
