"""Which language a text is in, of those that are served."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from py3langid.langid import MODEL_FILE, LanguageIdentifier

from seq2seq_cli.extras.serve.documents.paragraphs import has_letters
from seq2seq_cli.extras.serve.language_codes import base_language


class Detected(NamedTuple):
    """A language, and how probable it is among all languages of the world, from 0 to 100."""

    language: str
    confidence: float


@functools.cache
def load_detector() -> LanguageIdentifier:
    """Load what `detect` needs, which takes a second."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def detect(text: str, languages: Iterable[str]) -> list[Detected]:
    """Return the languages, the most probable first.

    Those that the detector does not know come last, with a confidence of 0. Scripts and regions of
    one language are not told apart.
    """
    ranked = load_detector().rank(text) if has_letters(text) else []
    order = {language: (place, share) for place, (language, share) in enumerate(ranked)}
    unknown = (len(order), 0.0)
    found = [(code, *order.get(base_language(code), unknown)) for code in languages]
    found.sort(key=lambda each: each[1])
    return [Detected(code, round(100 * float(share), 1)) for code, _, share in found]
