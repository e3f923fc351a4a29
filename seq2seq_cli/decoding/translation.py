"""Sentences with what is asked of their translations, and what is known of these."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from seq2seq_cli.errors import UserError

OutputFormat = Literal["text", "tsv", "jsonl", "nbest"]


@dataclass(frozen=True)
class Sentence:
    """A line to translate."""

    text: str
    prefix: str = ""  # how the translation must begin
    required: tuple[str, ...] = ()  # words or phrases that must stand in it

    @classmethod
    def from_json(cls, line: str) -> "Sentence":
        """{"src": ..., "prefix": ..., "required": [...]}, the last two optional.

        A blank line is an empty sentence, so that its place in the output stays.
        """
        if not line.strip():
            return cls("")
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            given = None
        known = given if isinstance(given, dict) else {}
        src, prefix = known.get("src"), known.get("prefix", "")
        required = known.get("required", [])
        is_list = isinstance(required, list)
        texts = [src, prefix, *(required if is_list else [None])]
        if not all(isinstance(text, str) for text in texts):
            raise UserError(
                f'not of the form {{"src": "...", "prefix": "...", "required": ["..."]}}: '
                f"{line.strip()[:80]}"
            )
        return cls(str(src), prefix, tuple(required))


@dataclass(frozen=True)
class Translation:
    """One translation of a sentence."""

    text: str
    tokens: tuple[str, ...]  # as SentencePiece writes them
    score: float | None = None  # that beam search ranks by
    log_probs: tuple[float, ...] | None = None  # of the tokens, EOS at last; when asked for
    alignment: tuple[tuple[int, int], ...] | None = None  # source and target words, by number
    attention: tuple[tuple[float, ...], ...] | None = field(default=None, repr=False)  # by words

    @property
    def log_prob(self) -> float | None:
        return sum(self.log_probs) if self.log_probs is not None else None

    def report(self) -> dict[str, Any]:
        """All that is known, for JSON."""
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


Write = Callable[[int, Sentence, Sequence[Translation]], list[str]]


def pharaoh(translation: Translation) -> str:
    """Aligned words as "0-0 1-2": source and target, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in translation.alignment or ())


def _text(number: int, sentence: Sentence, found: Sequence[Translation]) -> list[str]:
    return [translation.text for translation in found]


def _tsv(number: int, sentence: Sentence, found: Sequence[Translation]) -> list[str]:
    source = " ".join(sentence.text.split())
    return ["\t".join([source, *_columns(translation)]) for translation in found]


def _columns(translation: Translation) -> list[str]:
    numbers = (translation.score, translation.log_prob)
    columns = [translation.text, *(f"{number:.4f}" for number in numbers if number is not None)]
    return columns + ([pharaoh(translation)] if translation.alignment is not None else [])


def _jsonl(number: int, sentence: Sentence, found: Sequence[Translation]) -> list[str]:
    best = found[0].report()
    best["translation"] = best.pop("text")
    alternatives = [translation.report() for translation in found[1:]]
    report = {"src": sentence.text, **best} | ({"n_best": alternatives} if alternatives else {})
    return [json.dumps(report, ensure_ascii=False)]


def _nbest(number: int, sentence: Sentence, found: Sequence[Translation]) -> list[str]:
    """The form of Moses: number ||| translation ||| features ||| score."""
    return [
        f"{number} ||| {one.text} ||| log_prob= {one.log_prob or 0:.4f} ||| "
        f"{(one.log_prob or 0) if one.score is None else one.score:.4f}"
        for one in found
    ]


WRITERS: dict[OutputFormat, Write] = {"text": _text, "tsv": _tsv, "jsonl": _jsonl, "nbest": _nbest}
