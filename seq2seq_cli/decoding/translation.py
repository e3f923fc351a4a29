"""A line to translate, with requirements, and its translation.

N words of a line and M words of its translation.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from seq2seq_cli.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TranslationInput:
    """A line to translate, and requirements that its translation must meet."""

    text: str
    prefix: str = ""  # that the translation must begin with
    required: tuple[str, ...] = ()  # words or phrases that it must contain
    tag: str | None = None  # a token before the text; None: `decoding.tag`
    features: str = ""  # if empty, a model that knows features reads them after a tab in the text

    def __post_init__(self) -> None:
        if isinstance(self.required, str | bytes) or not isinstance(self.required, Iterable):
            raise TypeError("required is a list of words; a single one is [word]")
        object.__setattr__(self, "required", tuple(self.required))
        for name, value in vars(self).items():
            for text in value if name == "required" else [value]:
                if not isinstance(text, str) and (name, text) != ("tag", None):
                    raise TypeError(f"{name} takes str, not {type(text).__name__}")

    @classmethod
    def from_json(cls, line: str) -> "TranslationInput":
        """Parse an object with `src` and perhaps prefix, required, tag and features.

        A blank line is an empty input, so that outputs keep their line numbers.
        """
        if not line.strip():
            return cls("")
        try:
            given = json.loads(line)
            if isinstance(given, dict) and isinstance(given.get("required", []), list | None):
                names = ("prefix", "required", "tag", "features")
                known = {name: given[name] for name in names if given.get(name) is not None}
                src: Any = given.get("src")
                return cls(src, **known)
        except (ValueError, RecursionError, TypeError):  # TypeError: not of text
            pass
        raise UserError(
            'not of the form {"src": "...", "prefix": "...", "required": ["..."], '
            f'"tag": "...", "features": "..."}}: {line.strip()[:80]}'
        )


@contextmanager
def naming_line(number: int | None) -> Iterator[None]:
    """Add the number of a line, if given, to a UserError of the block; the first has number 0."""
    try:
        yield
    except UserError as error:
        if number is None:
            raise
        raise type(error)(f"line {number + 1:,}: {error}") from None


@dataclass(frozen=True)
class Translation:
    """One translation of a line; fields that were not requested are None."""

    text: str
    tokens: tuple[str, ...]  # as SentencePiece writes them
    score: float | None = None  # by which a beam search ranks
    log_probs: tuple[float, ...] | None = None  # of the tokens, EOS last
    alignment: tuple[tuple[int, int], ...] | None = None  # source and target words, by number
    attention_MN: "NDArray[np.float32] | None" = field(default=None, repr=False, compare=False)

    @property
    def log_prob(self) -> float | None:
        return sum(self.log_probs) if self.log_probs is not None else None

    @property
    def attention(self) -> tuple[tuple[float, ...], ...] | None:
        """Rounded attention of each word over the words of the line; None if not requested."""
        if self.attention_MN is None:
            return None
        return tuple(tuple(round(share, 4) for share in row) for row in self.attention_MN.tolist())

    def report(self) -> dict[str, Any]:
        """Return the fields that are known, for JSON."""
        known = {
            "text": self.text,
            "score": self.score,
            "log_prob": self.log_prob,
            "tokens": self.tokens,
            "token_log_probs": self.log_probs,
            "alignment": self.alignment,
            "attention": self.attention,
        }
        return {name: value for name, value in known.items() if value is not None}
