"""What the server and its model processes say to each other, as JSON over sockets."""

import json
import struct
from typing import Any, NamedTuple

_LENGTH = struct.Struct("!I")
BEAM_WITH_CONSTRAINTS = 5  # at least


class SearchOptions(NamedTuple):
    """What is wanted of a search; sentences with the same options are translated together."""

    n_best: int = 1
    with_constraints: bool = False
    alignment: bool = False
    attention: bool = False
    log_probs: bool = False

    @property
    def width(self) -> int:
        """Return the hypotheses of a sentence, if the run's own search has only one."""
        return max(self.n_best, BEAM_WITH_CONSTRAINTS if self.with_constraints else 1)


class SentenceInput(NamedTuple):
    """A sentence to translate, and phrases that its translation must contain."""

    text: str
    required: tuple[str, ...] = ()

    @property
    def cost(self) -> int:
        """Return its number of tokens, nearly: one for every four bytes, and EOS."""
        return 1 + (len(self.text.encode()) + 3) // 4


class SentenceOutput(NamedTuple):
    """A translation of a sentence, with what was asked for."""

    text: str
    alignment: tuple[tuple[int, int], ...] = ()  # source word, target word
    attention: tuple[tuple[float, ...], ...] = ()  # of target words over source words
    tokens: tuple[str, ...] = ()
    log_probs: tuple[float, ...] = ()  # of the tokens, EOS last


class Batch(NamedTuple):
    """Sentences for one run, by its number."""

    run: int
    options: SearchOptions
    sentences: tuple[SentenceInput, ...]


class BatchResult(NamedTuple):
    """The n best translations of every sentence, or why there are none."""

    outputs: tuple[tuple[SentenceOutput, ...] | str, ...]
    num_tokens: int  # of the best translations
    at_length_limit: int  # translations that are as long as they may be
    seconds: float


def packed(message: Any) -> bytes:
    """Return a message as JSON, after its length."""
    data = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(data)) + data


def length_of(header: bytes) -> int:
    return int(_LENGTH.unpack(header)[0])


HEADER_BYTES = _LENGTH.size


def unpacked(data: bytes) -> Any:
    return json.loads(data.decode("utf-8", "surrogatepass"))


def batch_of(message: Any) -> Batch:
    """Read a batch that was sent as JSON."""
    run, options, sentences = message
    return Batch(
        run,
        SearchOptions(*options),
        tuple(SentenceInput(text, tuple(required)) for text, required in sentences),
    )


def result_of(message: Any) -> BatchResult:
    """Read a result that was sent as JSON."""
    outputs, *numbers = message
    return BatchResult(
        tuple(
            each if isinstance(each, str) else tuple(SentenceOutput(*output) for output in each)
            for each in outputs
        ),
        *numbers,
    )
