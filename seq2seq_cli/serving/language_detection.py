"""Which language a text is in, of those that are served."""

import copy
import functools
from collections.abc import Iterable
from typing import NamedTuple

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from seq2seq_cli.documents.paragraphs import has_letters


class Detected(NamedTuple):
    """A language, and how probable it is among all languages of the world, from 0 to 100."""

    language: str
    confidence: float


@functools.cache
def _identifier(codes: tuple[str, ...] | None = None) -> LanguageIdentifier:
    """Return an identifier of some languages, or of all that the library knows."""
    if codes is None:
        return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier = copy.copy(_identifier())  # which shares what is large
    identifier.set_languages(codes)
    return identifier


def load_detector(languages: Iterable[str]) -> None:
    """Load what `detect` needs, which takes a second."""
    detect("Hello", languages)


def detect(text: str, languages: Iterable[str]) -> list[Detected]:
    """Return the languages, the most probable first.

    Those that the detector does not know come last, with a confidence of 0.
    """
    by_base = {code.partition("-")[0].lower(): code for code in languages}
    known = tuple(sorted(by_base.keys() & {*_identifier().labels}))
    order = list(known)
    confidences = dict.fromkeys(by_base, 0.0)
    if known and has_letters(text):
        order = [code for code, _ in _identifier(known).rank(text)]
        confidences |= {code: 100 * float(share) for code, share in _identifier().rank(text)}
    order += [base for base in by_base if base not in known]
    return [Detected(by_base[base], round(confidences[base], 1)) for base in order]
