"""Codes of languages: which one is meant by the code that a client uses."""

from collections.abc import Iterable
from typing import NamedTuple

from babel.core import get_global, parse_locale

from seq2seq_cli.config.text import is_language

# Codes that LibreTranslate, browsers and older programs use, by those of BCP 47.
_OTHER_CODES = {"zt": "zh-Hant", "pb": "pt-BR", "iw": "he", "in": "id", "ji": "yi"}
_SAME_LANGUAGE = {"nb": "no", "nn": "no"}  # for clients, which know one Norwegian


class _Parts(NamedTuple):
    """A code with what it leaves out: zh is zh, Hans, CN."""

    language: str
    script: str | None = None
    region: str | None = None


def find_language(asked: str, known: Iterable[str]) -> str | None:
    """Return the one of the known codes that is meant; None if none is near.

    It is the same code, or the same language in the same script, from the same region if there are
    several; or the only one of the language.
    """
    wanted = asked.strip().replace("_", "-")
    codes = list(known)
    for code in codes:
        if code.lower() == wanted.lower():
            return code
    if not is_language(wanted):
        return None
    meant = _parts(wanted)
    near = [(code, _parts(code)) for code in codes]
    near = [(code, parts) for code, parts in near if parts.language == meant.language]
    if len(near) > 1:
        near = [(code, parts) for code, parts in near if parts.script == meant.script]
        near.sort(key=lambda each: each[1].region != meant.region)
    return near[0][0] if near else None


def base_language(code: str) -> str:
    """Return the language of a code without script and region."""
    return _parts(code).language


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
