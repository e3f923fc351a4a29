"""Packages that LibreTranslate and Argos Translate install: .argosmodel files.

Argos Translate splits text with a SentencePiece model, gives the pieces to CTranslate2, and joins
the pieces of the translation with the same SentencePiece model. What this toolkit does to text
before and after SentencePiece is therefore put into the rules of that model, and tokens that its
search never outputs get an impossible bias.
"""

import logging
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.languages import language_name, languages_of
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.tokenizer import SUBWORDS
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.export.ctranslate2 import CTranslate2, source_vocabulary
from seq2seq_cli.extras.export.format import Source, is_imported, possible_tags
from seq2seq_cli.extras.export.vocabularies import processor_of, spm_of
from seq2seq_cli.files import own_part, read_json, replacing, write_atomic, write_json
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, PAD_ID, UNK_ID, Tokenizers

if TYPE_CHECKING:
    from seq2seq_cli.decoding.translation import Translation
    from seq2seq_cli.decoding.translator import Translator

logger = logging.getLogger(__name__)

_MODEL, _TOKENIZER = "model", "sentencepiece.model"
# What Argos Translate passes to CTranslate2 with ARGOS_BEAM_SIZE=1 (the default is 4).
_OPTIONS: dict[str, Any] = {
    "replace_unknowns": True,
    "max_batch_size": 32,
    "batch_type": "tokens",
    "beam_size": 1,
    "length_penalty": 0.2,
}
# LibreTranslate's own codes; it uses ISO 639 for other languages.
_CODES = {"zh-hans": "zh", "zh-cn": "zh", "zh-sg": "zh", "pt-br": "pb"}
_CODES |= dict.fromkeys(("zh-hant", "zh-tw", "zh-hk", "zh-mo"), "zt")

_FEATURES = "its sources have features, which Argos Translate cannot give"
_USAGE = """```python
from argostranslate import package, translate

package.install_from_path("{file}")
print(translate.translate("a sentence", "{src}", "{tgt}"))
```

LibreTranslate finds it too, if it runs for the same user: `libretranslate --load-only {src},{tgt}`.
Argos Translate splits text into sentences with MiniSBD, whose model for the source language it
downloads once.

Argos Translate searches with a beam of 4 and ends a translation after {longest} tokens. It writes
a space for `_` and `▁`.
{notes}"""


class Argos(CTranslate2):
    """A zip with a CTranslate2 model, a SentencePiece model and the names of the languages."""

    name = "argos"
    needs_sentencepiece = True
    library = "argostranslate"
    max_positions = 256  # Argos Translate lets CTranslate2 cut translations there, its default
    has_tags = False
    has_min_length = False
    search_options: ClassVar = {
        name: name for name in ("beam_size", "length_penalty", "replace_unk")
    }
    tag_usage = "Argos Translate cannot give a tag: export again with `--tag` for another one."

    def limits(self, config: Config) -> str | None:
        """One SentencePiece model reads sources without features and writes targets."""
        kind = config.tokenizer.kind
        if config.train_text.has_features:
            return _FEATURES
        if not config.tokenizer.shared and kind.tgt in SUBWORDS and kind.src not in SUBWORDS:
            return (
                "one SentencePiece model reads the source and writes the target, but only the "
                "target's vocabulary has bytes"
            )
        return super().limits(config)

    def limits_of_run(self, translator: "Translator") -> str | None:
        """The config of a trimmed run names no text, so its vocabulary shows the features."""
        if translator.tokenizers.src.features:
            return _FEATURES
        return super().limits_of_run(translator)

    def require(self, config: Config, tokenizers: Tokenizers) -> None:
        """Also warn if sources may need a tag, which is not known of trimmed and imported runs."""
        if languages_of(config.data) is None:
            raise UserError(
                "--format argos: nothing names the languages: give them as --langs de-en"
            )
        if config.train_text.is_tagged and config.decoding.tag is None:
            known = ", ".join(config.train_text.tags)
            raise UserError(
                "--format argos: all sources have a tag, which Argos Translate cannot give: choose "
                f"--tag {known}"
            )
        if config.decoding.tag is None and (symbols := possible_tags(config, tokenizers)):
            logger.warning(
                f"Argos Translate adds no tag to the text; the vocabulary has the symbols {symbols}"
                ": if sources need one of them, choose it with --tag"
            )

    def check_output(self, output: Path) -> None:
        """Also raise UserError for a suffix that cannot be installed."""
        if output.suffix != ".argosmodel":
            raise UserError(
                f"--output {output}: the name of a package for Argos Translate ends in .argosmodel"
            )
        if output.exists():
            raise UserError(f"{output} exists; remove it, or choose another --output")

    @contextmanager
    def opened(self, output: Path, config: Config) -> Iterator[Path]:
        """Give a temporary folder, which becomes the package if the block succeeds."""
        output.parent.mkdir(parents=True, exist_ok=True)
        with own_part(output.absolute()) as temporary:
            folder = temporary / _package_name(config)
            yield folder
            with replacing(output) as part, zipfile.ZipFile(part, "w") as archive:
                for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                    name = path.relative_to(folder.parent).as_posix()
                    entry = zipfile.ZipInfo(name)  # of 1980: the same files give the same bytes
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                    entry.create_system = 3  # Unix, where the attributes are from
                    archive.writestr(entry, path.read_bytes())

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return code that uses the package, and what it does not do."""
        src, tgt = _codes(config)
        return _USAGE.format(
            file=f"{_package_name(config)}.argosmodel",
            src=src,
            tgt=tgt,
            longest=self.max_positions,
            notes=self.notes(config, tokenizers),
        )

    def write(self, translator: "Translator", folder: Path) -> None:
        """Write a CTranslate2 model with the tag, a SentencePiece model, and names of languages."""
        plugins.require("ctranslate2", "export", f"--format {self.name}")
        from seq2seq_cli.extras.export.ctranslate2_weights import write_weights
        from seq2seq_cli.extras.export.sentencepiece_rules import with_quoting

        decoding, tokenizers = translator.config.decoding, translator.tokenizers
        pieces = tokenizers.src.pieces_of(tokenizers.src.tag_ids(decoding.tag))
        never = (PAD_ID, BOS_ID) if decoding.replace_unk else (PAD_ID, BOS_ID, UNK_ID)
        first_piece, path = next(iter(pieces), None), folder / _MODEL
        write_weights(translator.model, tokenizers, path, first_piece=first_piece, never=never)
        own = spm_of(tokenizers)[0] if is_imported(tokenizers) else None
        write_atomic(folder / _TOKENIZER, own or with_quoting(tokenizers.src.model))
        metadata = {"package_version": "1.0", "argos_version": "1.9.0"}
        codes, languages = _codes(translator.config), languages_of(translator.config.data)
        for name, code, language in zip(("from", "to"), codes, languages or (), strict=True):
            metadata |= {f"{name}_code": code, f"{name}_name": language_name(language)}
        write_json(folder / "metadata.json", metadata)

    def compared_search(self, decoding: DecodingConfig) -> dict[str, Any]:
        """Argos Translate replaces unknown tokens, and outputs 1 to 256 tokens."""
        limits = {"max_len_factor": 0.0, "max_len_extra": self.max_positions, "min_len_extra": 1}
        return {"replace_unk": decoding.replace_unk, **limits}

    def source_ids(self, folder: Path, lines: list[str], tokenizers: Tokenizers) -> list[list[int]]:
        known = {*source_vocabulary(folder / _MODEL)}
        unknown = read_json(folder / _MODEL / "config.json")["unk_token"]
        split = _pieces(processor_of(folder / _TOKENIZER), lines)
        return [
            tokenizers.src.ids_of([piece if piece in known else unknown for piece in pieces])
            for pieces in split
        ]

    def translate(self, folder: Path, sources: list[Source], tokenizers: Tokenizers) -> list[str]:
        from ctranslate2 import Translator

        processor = processor_of(folder / _TOKENIZER)
        translator = Translator(str(folder / _MODEL), device="cpu", compute_type="float32")
        pieces = _pieces(processor, [source.text for source in sources])
        found = [r.hypotheses[0] for r in translator.translate_batch(pieces, **_OPTIONS)]
        if is_imported(tokenizers):  # Argos Translate would write the tags of the output
            tgt = tokenizers.tgt
            found = [[p for p in hypothesis if not tgt.begins_with_tag(p)] for hypothesis in found]
        return [_without_underscores(processor.decode_pieces(pieces)) for pieces in found]

    def shown(self, translation: "Translation") -> str:
        return _without_underscores(translation.text)


def _package_name(config: Config) -> str:
    """Return the name of a package's folder, under which Argos Translate installs it."""
    return f"translate-{'_'.join(_codes(config))}-seq2seq"


def _codes(config: Config) -> list[str]:
    """Return the codes by which LibreTranslate knows the languages."""
    languages = languages_of(config.data)
    assert languages is not None, "require() is called first"
    return [_CODES.get(language.lower(), language.lower()) for language in languages]


def _pieces(processor: Any, lines: list[str]) -> list[list[str]]:
    """Split lines, whose lone surrogates become question marks."""
    encoded = [line.encode("utf-8", "replace").decode("utf-8") for line in lines]
    return processor.encode(encoded, out_type=str)


def _without_underscores(text: str) -> str:
    """Also without U+FFFD, which SentencePiece writes for invalid bytes, unlike this program."""
    return " ".join(re.sub("[▁_]", " ", text.replace("\ufffd", "")).split())


FORMAT = Argos()
