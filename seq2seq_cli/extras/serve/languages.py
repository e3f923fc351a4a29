"""Languages of requests: which of the served ones a code means, and which a text is in."""

import functools
from collections.abc import Iterable
from typing import NamedTuple

from babel.core import get_global, parse_locale
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from seq2seq_cli.config.text import is_language
from seq2seq_cli.extras.serve.documents.paragraphs import has_letters

# Codes that LibreTranslate, browsers and older programs use, and their BCP 47 codes.
_OTHER_CODES = {"zt": "zh-Hant", "pb": "pt-BR", "iw": "he", "in": "id", "ji": "yi"}
_OTHER_CODES |= {"tl": "fil", "jw": "jv"}
_LONGEST_CODE = 35  # characters that programs have to know (RFC 5646, 4.4.1)
_SAME_LANGUAGE = {"nb": "no", "nn": "no"}  # for clients, which know one Norwegian


class Detected(NamedTuple):
    """A language, with its probability (in percent) among all languages of the world."""

    confidence: float
    language: str


class _Parts(NamedTuple):
    """A code with what it leaves out: zh is zh, Hans, CN."""

    language: str
    script: str | None = None
    region: str | None = None


def find_language(asked: str, known: Iterable[str]) -> str | None:
    """Return the known code that a client means; None if there is none.

    That is the same code; else the only one of the language; else one in the same script,
    preferably of the same region.
    """
    wanted = asked.strip().replace("_", "-")
    codes = list(known)
    for code in codes:
        if code.lower() == wanted.lower():
            return code
    if not is_language(wanted) or len(wanted) > _LONGEST_CODE:
        return None
    meant = _parts(wanted)
    near = [code for code in codes if _parts(code).language == meant.language]
    if len(near) > 1:
        near = [code for code in near if _parts(code).script == meant.script]
        near.sort(key=lambda code: _parts(code).region != meant.region)
    return near[0] if near else None


@functools.lru_cache(maxsize=1_000)
def _parts(code: str) -> _Parts:
    """Return the parts of a code, with the script and region that CLDR says are likely."""
    language, hyphen, rest = code.partition("-")
    code = _OTHER_CODES.get(language.lower(), language) + hyphen + rest
    try:
        language, region, script, *_ = parse_locale(code, sep="-")
    except ValueError:
        return _Parts(language.lower())
    likely = get_global("likely_subtags")
    for known in ((language, script, region), (language, region), (language, script), (language,)):
        if full := likely.get("_".join(part for part in known if part)):
            _, likely_region, likely_script, *_ = parse_locale(full)
            script, region = script or likely_script, region or likely_region
            break
    return _Parts(_SAME_LANGUAGE.get(language, language), script, region)


@functools.cache
def load_detector() -> LanguageIdentifier:
    """Load what `detect` needs, which takes a second."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def detect(text: str, languages: Iterable[str]) -> list[Detected]:
    """Return the languages, the most probable first.

    Languages unknown to the detector come last, with a confidence of 0. Scripts and regions of a
    language are not distinguished.
    """
    ranked = load_detector().rank(text) if has_letters(text) else []
    order: dict[str, tuple[int, float]] = {}
    for place, (label, share) in enumerate(ranked):
        order.setdefault(_parts(label).language, (place, share))
    unknown = (len(ranked), 0.0)
    found = [(code, *order.get(_parts(code).language, unknown)) for code in languages]
    found.sort(key=lambda each: each[1])
    return [Detected(round(100 * float(share), 1), code) for code, _, share in found]
