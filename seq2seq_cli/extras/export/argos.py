"""Writes a run as a package that LibreTranslate and Argos Translate install: an .argosmodel file.

Argos Translate gives text to one SentencePiece model, its pieces to CTranslate2, and the pieces of
the translation to the same SentencePiece model. What this toolkit does to text before and after
SentencePiece is therefore put into the rules of that model, and what its search never outputs gets
an impossible bias.
"""

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.languages import LanguagePair, language_name, languages_of
from seq2seq_cli.config.schema import Config
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.extras.export import ctranslate2
from seq2seq_cli.extras.export.comparison import Source
from seq2seq_cli.extras.export.search_options import notes
from seq2seq_cli.extras.export.sentence_splitter import write_sentence_splitter
from seq2seq_cli.extras.export.sentencepiece_rules import with_quoting
from seq2seq_cli.files import fsync, read_json, write_atomic, write_json
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, PAD_ID, UNK_ID, Tokenizers

LIBRARY = "argostranslate"
SUFFIX = ".argosmodel"
# Argos Translate lets CTranslate2 cut translations after 256 tokens, its default.
MOST_POSITIONS = 256
HAS_TAGS = False
# What Argos Translate gives to CTranslate2 with ARGOS_BEAM_SIZE=1; its default is 4.
_OPTIONS: dict[str, Any] = {"replace_unknowns": True, "max_batch_size": 32, "batch_type": "tokens"}
_OPTIONS |= {"beam_size": 1, "length_penalty": 0.2}
_NAMES = {name: name for name in ("beam_size", "length_penalty", "replace_unk")}  # not missing
_MODEL, _TOKENIZER, _SPLITTER = "model", "sentencepiece.model", "minisbd/rules.onnx"
# The codes of LibreTranslate for languages with a region or a script; elsewhere it is ISO 639.
_CODES = {"zh-hans": "zh", "zh-cn": "zh", "zh-sg": "zh", "pt-br": "pb"}
_CODES |= dict.fromkeys(("zh-hant", "zh-tw", "zh-hk", "zh-mo"), "zt")

_USAGE = """```python
from argostranslate import package, translate

package.install_from_path("{file}")
print(translate.translate("a sentence", "{src}", "{tgt}"))
```

LibreTranslate finds it too, if it runs for the same user: `libretranslate --load-only {src},{tgt}`.
Nothing is downloaded: the package has its own rules for where a sentence ends (`{splitter}`).

Argos Translate searches with a beam of 4 and ends a translation after {longest} tokens. It writes
a space for `_` and `▁`.
{notes}"""
_TAG = "Argos Translate cannot give a tag: export again with `--tag` for another one."


def usage(config: Config, tokenizers: Tokenizers) -> str:
    """Return code that uses the package, and what it does not do."""
    languages = languages_of(config.data)
    assert languages is not None, "missing() is asked first"
    src, tgt = map(code_of, languages)
    return _USAGE.format(
        file=f"{package_name(languages)}{SUFFIX}",
        src=src,
        tgt=tgt,
        splitter=_SPLITTER,
        longest=MOST_POSITIONS,
        notes=notes(config, tokenizers, _NAMES, tag=_TAG, features=""),
    )


def missing(config: Config) -> str | None:
    """Return what a package needs to be told of the run; None if the config says it all."""
    if languages_of(config.data) is None:
        return "nothing names its languages: give them as --langs de-en"
    if all(corpus.tag for corpus in config.data.train) and config.decoding.tag is None:
        tags = ", ".join(config.train_text.tags)
        return f"all its sources have a tag, which Argos Translate cannot give: choose --tag {tags}"
    return None


def write_model(model: Transformer, config: Config, tokenizers: Tokenizers, folder: Path) -> None:
    """Write the CTranslate2 model with the tag, if there is one, and the SentencePiece model."""
    pieces = tokenizers.src.pieces_of(tokenizers.src.tag_ids(config.decoding.tag))
    never = (PAD_ID, BOS_ID) if config.decoding.replace_unk else (PAD_ID, BOS_ID, UNK_ID)
    ctranslate2.write_weights(
        model, tokenizers, folder / _MODEL, first_piece=next(iter(pieces), None), never=never
    )
    write_atomic(folder / _TOKENIZER, with_quoting(tokenizers.src.model))


def write_metadata(folder: Path, languages: LanguagePair, inner_marks: str) -> None:
    """Write what Argos Translate shows of a package, and rules for the ends of sentences."""
    src, tgt = languages
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9.0",
        "from_code": code_of(src),
        "from_name": language_name(src),
        "to_code": code_of(tgt),
        "to_name": language_name(tgt),
    }
    write_json(folder / "metadata.json", metadata)
    splitter = folder / _SPLITTER
    splitter.parent.mkdir()
    write_sentence_splitter(splitter, inner_marks)


def package_name(languages: LanguagePair) -> str:
    """Return the name of a package's folder, under which Argos Translate installs it."""
    return f"translate-{code_of(languages.src)}_{code_of(languages.tgt)}-seq2seq"


def search(decoding: DecodingConfig) -> dict[str, Any]:
    """Return what the compared search has beside being greedy."""
    unlike_ours = {"max_len_factor": 0.0, "max_len_extra": MOST_POSITIONS}
    return {"replace_unk": decoding.replace_unk, **unlike_ours}


def source_ids(folder: Path, lines: Sequence[str]) -> list[list[int]]:
    """Return the ids of lines in CTranslate2's vocabulary, as Argos Translate splits them."""
    processor, ids = _processor(folder), ctranslate2.source_vocabulary(folder / _MODEL)
    unknown = ids[read_json(folder / _MODEL / "config.json")["unk_token"]]
    pieces = (processor.encode(_as_utf8(line), out_type=str) for line in lines)
    return [[ids.get(piece, unknown) for piece in line] for line in pieces]


def translate(folder: Path, sources: Sequence[Source]) -> list[str]:
    """Return translations of sentences, computed as Argos Translate does, in fp32 and greedily."""
    from ctranslate2 import Translator

    processor = _processor(folder)
    translator = Translator(str(folder / _MODEL), device="cpu", compute_type="float32")
    pieces = [processor.encode(_as_utf8(source.text), out_type=str) for source in sources]
    results = translator.translate_batch(pieces, **_OPTIONS)
    return [_without_underscores(processor.decode_pieces(x.hypotheses[0])) for x in results]


def shown(translation: Translation) -> str:
    """Return a translation of this toolkit as Argos Translate writes it."""
    return _without_underscores(translation.text)


def pack(folder: Path, output: Path) -> None:
    """Write the folder as a zip; the same files always give the same bytes."""
    part = output.with_name(f"{output.name}.part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                name = path.relative_to(folder.parent).as_posix()
                entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                entry.create_system = 3  # Unix, where the attributes are from
                with path.open("rb") as file, archive.open(entry, "w", force_zip64=True) as packed:
                    while data := file.read(1 << 20):
                        packed.write(data)
        fsync(part)
        part.replace(output)
        fsync(output.parent)
    finally:
        part.unlink(missing_ok=True)


def code_of(language: str) -> str:
    """Return the code by which LibreTranslate knows a language."""
    code = language.lower()
    return _CODES.get(code, code)


def _processor(folder: Path) -> Any:
    from sentencepiece import SentencePieceProcessor

    return SentencePieceProcessor(model_file=str(folder / _TOKENIZER))


def _as_utf8(line: str) -> str:
    return line.encode("utf-8", "replace").decode("utf-8")


def _without_underscores(text: str) -> str:
    return " ".join(re.sub("[▁_]", " ", text).split())
