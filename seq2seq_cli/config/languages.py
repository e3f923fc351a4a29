"""The languages that a run translates from and to."""

import re
from typing import NamedTuple

from seq2seq_cli import plugins
from seq2seq_cli.config.text import Corpus, DataConfig, format_of, is_language
from seq2seq_cli.errors import UserError, short

_IN_A_NAME = re.compile(r"([A-Za-z]{2})(?:[-_]([A-Za-z]{2,4}))?")


class LanguagePair(NamedTuple):
    src: str
    tgt: str


def languages_of(data: DataConfig) -> LanguagePair | None:
    """Return the languages that a run translates from and to; None if they are unknown."""
    if data.languages is not None:
        pair: LanguagePair | None = LanguagePair(data.languages.src, data.languages.tgt)
    else:
        pair = languages_in_names(data.train[0]) if data.train else None
    return LanguagePair(*reversed(pair)) if pair and data.direction == "reverse" else pair


def languages_in_names(corpus: Corpus) -> LanguagePair | None:
    """Return the languages in the names of a text's files or fields; None if there are none."""
    if corpus.src is not None and corpus.tgt is not None:
        names = [format_of(path).removeprefix(".") for path in (corpus.src, corpus.tgt)]
    else:
        names = [name.rpartition(".")[2] for name in corpus.fields or ("", "")]
    found = [_IN_A_NAME.fullmatch(name) for name in names]
    codes = ["-".join(filter(None, (m[1].lower(), m[2]))) for m in found if m is not None]
    return LanguagePair(*codes) if len({*codes}) == 2 else None


def languages_from_option(given: str) -> LanguagePair:
    """Read the languages of an option such as `--langs de-en` or `--langs de-pt_BR`."""
    codes = [code.replace("_", "-") for code in given.split("-")]
    if len(codes) != 2 or not all(map(is_language, codes)):
        raise UserError(
            f"--langs {short(given)}: write two language codes, as in de-en; one with a region has "
            "an underscore, as in de-pt_BR"
        )
    return LanguagePair(*codes)


def language_name(code: str) -> str:
    """Return the English name of a language; its code if unknown.

    Raises UserError if the package babel, which has the names of CLDR, is not installed.
    """
    plugins.require("babel", "export", "the name of a language")
    from babel import Locale, UnknownLocaleError

    try:
        name = Locale.parse(code, sep="-").get_display_name("en")
    except (UnknownLocaleError, ValueError):  # no language with data, but perhaps with a name
        name = Locale("en").languages.get(code.split("-")[0].lower())
    return name or code
