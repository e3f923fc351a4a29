"""Codes of languages: their names, and other codes that clients use for them."""

from collections.abc import Iterable

from babel import Locale, UnknownLocaleError

# The codes of LibreTranslate and of browsers, by ours, in lower case.
_ALIASES = {
    "zh": "zh-hans",
    "zt": "zh-hant",
    "pb": "pt-br",
    "zh-cn": "zh-hans",
    "zh-sg": "zh-hans",
    "zh-tw": "zh-hant",
    "zh-hk": "zh-hant",
    "nb": "no",
    "iw": "he",
}


def language_name(code: str, display: str = "en") -> str:
    """Return the name of a language in another one, such as German for de; its code if unknown."""
    try:
        name = Locale.parse(code, sep="-").get_display_name(display)
    except (UnknownLocaleError, ValueError):
        name = Locale.parse(display).languages.get(code.lower())
    return name or code


def find_language(asked: str, known: Iterable[str]) -> str | None:
    """Return the one of the known codes that is meant: itself, an alias, or the only near one."""
    codes = {code.lower(): code for code in known}
    wanted = asked.strip().lower().replace("_", "-")
    for name in (wanted, _ALIASES.get(wanted), *(a for a, b in _ALIASES.items() if b == wanted)):
        if name in codes:
            return codes[name]
    near = [c for c in codes if c.partition("-")[0] == wanted.partition("-")[0]]
    return codes[near[0]] if len(near) == 1 else None
