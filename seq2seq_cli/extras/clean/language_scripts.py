"""The scripts that languages are written in, by the names of `scripts.py`."""

_BY_SCRIPT = {  # the scripts of `scripts.py`: first the subtags of ISO 15924, then languages
    "Latin": "latn af az bs ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it lt lv ms mt "
    "nb nl nn no pl pt ro sk sl sq sv sw tl tr uz vi",
    "Cyrillic": "cyrl be bg kk ky mk mn ru tg tt uk",
    "Arabic": "arab ar ckb fa ps sd ug ur",
    "Devanagari": "deva hi mr ne sa",
    "Bengali": "beng as bn",
    "Hebrew": "hebr he yi",
    "Ethiopic": "ethi am ti",
    "Greek": "grek el",
    "Armenian": "armn hy",
    "Georgian": "geor ka",
    "Gujarati": "gujr gu",
    "Kannada": "knda kn",
    "Malayalam": "mlym ml",
    "Oriya": "orya or",
    "Gurmukhi": "guru pa",
    "Sinhala": "sinh si",
    "Tamil": "taml ta",
    "Telugu": "telu te",
    "Thai": "thai th",
    "Lao": "laoo lo",
    "Khmer": "khmr km",
    "Myanmar": "mymr my",
    "Tibetan": "tibt bo dz",
    "Han": "hans hant zh yue",
    "Han Kana": "jpan ja",
    "Han Hangul": "kore ko",
    "Latin Cyrillic": "sr",
}
_SCRIPTS = {
    code: scripts.split() for scripts, codes in _BY_SCRIPT.items() for code in codes.split()
}


def scripts_of(language: str) -> list[str] | None:
    """Return the scripts of a language (BCP 47, such as sr-Latn); None if they are not known."""
    primary, *subtags = language.lower().split("-")
    has_script = subtags and len(subtags[0]) == 4 and subtags[0].isalpha()
    return _SCRIPTS.get(subtags[0] if has_script else primary)
