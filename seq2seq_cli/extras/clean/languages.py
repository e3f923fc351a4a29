"""The identification of languages, for `clean --identify-languages`."""

import functools
from collections.abc import Iterable

import numpy as np
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.clean.rules import Batch, Mask, Rule, Side

_MIN_LETTERS = 20  # of a line: shorter ones are seldom identified correctly
_MIN_PROBABILITY = 0.9
_SAME = {"nb": "no", "nn": "no", "yue": "zh"}  # what some versions of the model do not distinguish


@functools.cache
def _identifier() -> LanguageIdentifier:
    """Load the model, which takes a second."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def check_known(languages: Iterable[str]) -> None:
    """Raise UserError for a language that cannot be identified."""
    known = _identifier().labels
    for language in languages:
        if code_of(language) not in known:
            raise UserError(
                f"--identify-languages does not know {language}; it knows {', '.join(known)}"
            )


def code_of(language: str) -> str:
    """Return the model's code for a language: pt for pt-BR."""
    primary = language.split("-")[0].lower()
    return primary if primary in _identifier().labels else _SAME.get(primary, primary)


def language_rule(src: str, tgt: str) -> Rule:
    """Return a rule that rejects pairs of which a side is in another language than these."""

    def is_other(side: Side, expected: str, i: int) -> bool:
        language, probability = _identifier().classify(side.lines[i])
        return bool(language != expected and probability >= _MIN_PROBABILITY)

    def rejects(batch: Batch) -> Mask:
        found = np.zeros(len(batch.pairs), np.bool_)
        for side, language in zip(batch.sides, (src, tgt), strict=True):
            is_side_other = functools.partial(is_other, side, code_of(language))
            found |= batch.where(is_side_other, ~found & (side.letters_N >= _MIN_LETTERS))
        return found

    return Rule(f"another language, at {_MIN_PROBABILITY:.0%} or more", rejects)
