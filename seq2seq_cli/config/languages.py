"""The languages that a run translates from and to."""

import re
from pathlib import Path
from typing import NamedTuple

from seq2seq_cli.config.text import Corpus, DataConfig, is_language, without_compression
from seq2seq_cli.errors import UserError

_IN_A_NAME = re.compile(r"([A-Za-z]{2})(?:[-_]([A-Za-z]{2,4}))?")


class LanguagePair(NamedTuple):
    """The codes of two languages."""

    src: str
    tgt: str


def language_pair(text: str) -> LanguagePair:
    """Read a pair such as de-en, or zh-Hans:en where a code has a hyphen; raises UserError."""
    src, colon, tgt = text.partition(":" if ":" in text else "-")
    if not (colon and is_language(src) and is_language(tgt)):
        raise UserError(f"{text} is no pair of language codes such as de-en, or zh-Hans:en")
    return LanguagePair(src, tgt)


def languages_of(data: DataConfig) -> LanguagePair | None:
    """Return the languages that a run translates from and to; None if nothing names them."""
    if data.languages is not None:
        pair = LanguagePair(data.languages.src, data.languages.tgt)
    else:
        codes = [_code_in(name) for name in _names_of_sides(data.train[0])]
        if len(codes) != 2 or None in codes or codes[0] == codes[1]:
            return None
        pair = LanguagePair(*(code for code in codes if code is not None))
    return LanguagePair(pair.tgt, pair.src) if data.direction == "reverse" else pair


def _names_of_sides(corpus: Corpus) -> list[str]:
    """Return what may name the languages: extensions of two files, or the fields of pairs."""
    if corpus.src is not None and corpus.tgt is not None:
        paths = (corpus.src, corpus.tgt)
        return [Path(without_compression(path.name)).suffix.removeprefix(".") for path in paths]
    return [name.rpartition(".")[2] for name in corpus.fields or ()]


def _code_in(name: str) -> str | None:
    """Return the language code that a name such as de or pt_BR is; None if it is none."""
    if not (match := _IN_A_NAME.fullmatch(name)):
        return None
    language, region = match[1].lower(), match[2]
    return f"{language}-{region}" if region else language
