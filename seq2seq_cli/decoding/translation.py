"""Inputs and outputs of a translation: requirements, results, formats of lines."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from seq2seq_cli.errors import UserError

OutputFormat = Literal["text", "tsv", "jsonl", "nbest"]


@dataclass(frozen=True)
class TranslationInput:
    """A line to translate, and requirements that its translation must meet."""

    text: str
    prefix: str = ""  # that the translation must begin with
    required: tuple[str, ...] = ()  # words or phrases that it must contain
    tag: str | None = None  # a token before those of the text; None: `decoding.tag`
    features: str = ""  # if empty, a model that knows features reads them after a tab in the text

    @classmethod
    def from_json(cls, line: str) -> "TranslationInput":
        """Parse {"src": ..., "prefix": ..., "required": [...], "tag": ..., "features": ...}.

        All but src are optional. A blank line becomes an empty input, so that outputs keep their
        line numbers.
        """
        if not line.strip():
            return cls("")
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            given = None
        known = given if isinstance(given, dict) else {}
        src, prefix, tag = known.get("src"), known.get("prefix", ""), known.get("tag")
        required, features = known.get("required", []), known.get("features", "")
        is_list = isinstance(required, list)
        texts = [src, prefix, features, *([] if tag is None else [tag])]
        texts += required if is_list else [None]
        if not all(isinstance(text, str) for text in texts):
            raise UserError(
                'not of the form {"src": "...", "prefix": "...", "required": ["..."], '
                f'"tag": "...", "features": "..."}}: {line.strip()[:80]}'
            )
        return cls(str(src), prefix, tuple(required), tag, features)


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
    """One translation of a line; None stands for what the search was not asked for."""

    text: str
    tokens: tuple[str, ...]  # as SentencePiece writes them
    score: float | None = None  # by which a beam search ranks
    log_probs: tuple[float, ...] | None = None  # of the tokens, EOS last
    alignment: tuple[tuple[int, int], ...] | None = None  # source and target words, by number
    attention: tuple[tuple[float, ...], ...] | None = field(default=None, repr=False)  # by words

    @property
    def log_prob(self) -> float | None:
        return sum(self.log_probs) if self.log_probs is not None else None

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


Write = Callable[[int, TranslationInput, Sequence[Translation]], list[str]]


def pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """Write aligned words as "0-0 1-2": source and target, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def _text(number: int, line: TranslationInput, translations: Sequence[Translation]) -> list[str]:
    return [translation.text for translation in translations]


def _tsv(number: int, line: TranslationInput, translations: Sequence[Translation]) -> list[str]:
    source = " ".join(line.text.split())
    return ["\t".join([source, *_columns(translation)]) for translation in translations]


def _columns(translation: Translation) -> list[str]:
    numbers = (translation.score, translation.log_prob)
    columns = [translation.text, *(f"{number:.4f}" for number in numbers if number is not None)]
    return columns + ([pharaoh(translation.alignment)] if translation.alignment is not None else [])


def _jsonl(number: int, line: TranslationInput, translations: Sequence[Translation]) -> list[str]:
    best = translations[0].report()
    best["translation"] = best.pop("text")
    alternatives = [translation.report() for translation in translations[1:]]
    report = {"src": line.text, **best} | ({"n_best": alternatives} if alternatives else {})
    return [json.dumps(report, ensure_ascii=False)]


def _nbest(number: int, line: TranslationInput, translations: Sequence[Translation]) -> list[str]:
    """Write Moses' n-best format: number ||| translation ||| features ||| score."""
    return [
        f"{number} ||| {translation.text} ||| log_prob= {translation.log_prob or 0:.4f} ||| "
        f"{(translation.log_prob or 0) if translation.score is None else translation.score:.4f}"
        for translation in translations
    ]


WRITERS: dict[OutputFormat, Write] = {"text": _text, "tsv": _tsv, "jsonl": _jsonl, "nbest": _nbest}
