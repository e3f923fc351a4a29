"""The scripts that languages are written in, by the names of `scripts.py`."""

_BY_SCRIPT = {
    "Latin": "af az bs ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it lt lv ms mt nb nl "
    "nn no pl pt ro sk sl sq sv sw tl tr uz vi",
    "Cyrillic": "be bg kk ky mk mn ru tg tt uk",
    "Arabic": "ar ckb fa ps sd ug ur",
    "Devanagari": "hi mr ne sa",
    "Bengali": "as bn",
    "Hebrew": "he yi",
    "Ethiopic": "am ti",
    "Greek": "el",
    "Armenian": "hy",
    "Georgian": "ka",
    "Gujarati": "gu",
    "Kannada": "kn",
    "Malayalam": "ml",
    "Oriya": "or",
    "Gurmukhi": "pa",
    "Sinhala": "si",
    "Tamil": "ta",
    "Telugu": "te",
    "Thai": "th",
    "Lao": "lo",
    "Khmer": "km",
    "Myanmar": "my",
    "Tibetan": "bo dz",
    "Han": "zh yue",
    "Han Kana": "ja",
    "Han Hangul": "ko",
    "Latin Cyrillic": "sr",
}
_BY_SUBTAG = {  # ISO 15924, where a language has several scripts
    "latn": ["Latin"],
    "cyrl": ["Cyrillic"],
    "arab": ["Arabic"],
    "deva": ["Devanagari"],
    "hans": ["Han"],
    "hant": ["Han"],
}
_SCRIPTS = {
    language: scripts.split() for scripts, codes in _BY_SCRIPT.items() for language in codes.split()
}


def scripts_of(language: str) -> list[str] | None:
    """Return the scripts of a language (BCP 47, such as sr-Latn); None if they are not known."""
    primary, *subtags = language.lower().split("-")
    named = [_BY_SUBTAG.get(tag) for tag in subtags if len(tag) == 4 and tag.isalpha()]
    return named[0] if named else _SCRIPTS.get(primary)
