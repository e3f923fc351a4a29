"""export(): writes a run in another format, and compares tokens and translations of both."""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator, input_of
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.export import ctranslate2, huggingface
from seq2seq_cli.files import write_atomic
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.tokenizer import Tokenizers, save_tokenizers

logger = logging.getLogger(__name__)

FormatName = Literal["ctranslate2", "huggingface"]

_LINES_TO_COMPARE = 200
_SHARE_EQUAL = 0.97  # of translations; fp32 sums in another order occasionally change a token

# Lines that are difficult for tokenizers; their ids are compared in every export.
DIFFICULT_LINES = (
    "<s> </s> <pad> <unk> <0x41> ▁",
    "a<s>b</s>c<pad>d<unk>e<0x41>f<0xE2><0x82>g",
    "</s>",
    "▁a ▁▁ b▁ ▁",
    "a\tb\u00a0c  d\u3000e\u2028f\x1cg ",
    "Kwyjibo Zxqv Qwrtz a Kwyjibo",
    "ÄÖÜ äöü ß ŒÆ ĳ №½ ﬁ ①",
    "你好，世界。こんにちは！カタカナ 안녕하세요",
    "Привет, мир! שלום مرحبا हिन्दी ไทย",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 \U0010ffff",
    "\x00\x01\x7f\u200b\u200d\ufeff\ufffd\ufffe",
    "||| \\n {} && <b>a</b> &amp; http://a.b/c?d=e#f",
)


class Format(Protocol):
    """The module of a format: what it supports, writing it, and using the result."""

    MOST_POSITIONS: int  # of a source with EOS, and of a target with BOS

    def unsupported(self, model: Transformer, tokenizers: Tokenizers) -> str | None:
        """Return the reason why the format cannot represent a model; None if it can."""

    def write_model(
        self, model: Transformer, config: Config, tokenizers: Tokenizers, folder: Path
    ) -> None:
        """Write everything but our tokenizer files and the README."""

    def readme(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return a README with code that uses the model with the run's search options."""

    def source_ids(self, folder: Path, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of lines according to the other program, without EOS."""

    def translate_ids(
        self, folder: Path, sources: Sequence[Ids], max_lengths: Sequence[int]
    ) -> list[list[str]]:
        """Return greedy translations by the other program, as tokens.

        A source is its ids without EOS, those of its tag and features before those of the text.
        """


FORMATS: dict[FormatName, Format] = {"ctranslate2": ctranslate2, "huggingface": huggingface}


def export(run_dir: Path, file_format: FormatName, output: Path, *, which: str = "best") -> str:
    """Write the folder and compare; return a report of how many translations are equal.

    Raises UserError if the output is not empty, if the format cannot represent the model, if a line
    has other ids there, or if too many translations differ.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not an empty folder")
    translator = Translator.load(run_dir, "cpu", ["decoding.precision=fp32"], which=which)
    config, tokenizers = translator.config, translator.tokenizers
    target = FORMATS[file_format]
    if reason := target.unsupported(translator.model, tokenizers):
        raise UserError(f"--format {file_format} does not support this model: {reason}")
    target.write_model(translator.model, config, tokenizers, output)
    save_tokenizers(RunFolder(output), tokenizers)
    write_atomic(output / "README.md", target.readme(config, tokenizers).encode("utf-8"))
    inputs = _validation_inputs(translator, run_dir)
    _check_ids(target, output, [*DIFFICULT_LINES, *(line.text for line in inputs)], tokenizers)
    compared = _comparable(target, translator, inputs)
    if not compared:
        return f"wrote {output}; there are no validation lines to compare translations of"
    inputs, sources, limits = map(list, zip(*compared, strict=True))
    ours = _greedy(translator).search(inputs, report=lambda cuts: None)  # it says nothing new
    theirs = target.translate_ids(output, sources, limits)
    equal = sum(a == list(b[0].tokens) for a, b in zip(theirs, ours, strict=True))
    report = f"{equal} of {len(inputs)} greedy translations of validation lines are equal"
    if equal < _SHARE_EQUAL * len(inputs):
        raise UserError(f"{output} does not translate as the run does: {report}")
    return f"wrote {output}: {report}"


def _check_ids(target: Format, output: Path, lines: Sequence[str], tokenizers: Tokenizers) -> None:
    ids = tokenizers.src.to_ids_batch(lines)
    for line, ours, theirs in zip(lines, ids, target.source_ids(output, lines), strict=True):
        if ours != theirs:
            raise UserError(f"{output} has other tokens than the run for the line {short(line)!r}")


def _greedy(translator: Translator) -> Translator:
    """Return a translator that searches greedily, whatever the config says."""
    names = ("max_len_factor", "max_len_extra", "tokens_per_batch")
    options = {name: getattr(translator.config.decoding, name) for name in names}
    config = translator.config.model_copy(update={"decoding": DecodingConfig(**options)})
    model, tokenizers = translator.model, translator.tokenizers
    return Translator(model, tokenizers, config, statistics=translator.statistics)


def _comparable(
    target: Format, translator: Translator, inputs: Sequence[TranslationInput]
) -> list[tuple[TranslationInput, Ids, int]]:
    """Return inputs with their ids and the longest translation of each.

    Left out are lines that are split into segments, as other programs do not split lines, and those
    for which the format has no positions.
    """
    config = translator.config
    compared = []
    for line, segments in zip(inputs, translator.cut(inputs)[0], strict=True):
        if len(segments) == 1:
            source = segments[0].src_ids
            limit = config.decoding.max_length(len(source))
            is_rotary = config.model.positions == "rotary"
            if is_rotary or max(len(source), limit) < target.MOST_POSITIONS:
                compared.append((line, source, limit))
    return compared


def _validation_inputs(translator: Translator, run_dir: Path) -> list[TranslationInput]:
    """Return some validation sources; none, with a warning, if the text no longer exists.

    Paths in a config are relative to where training was started: the current folder, or a parent of
    the run folder.
    """
    text, on_bad_line = translator.config.valid_text, translator.config.data.on_bad_line
    if text is None:
        return []
    for folder in (Path(), *run_dir.resolve().parents):
        moved = text.in_folder(folder)
        if all(path.is_file() for path in moved.files):
            pairs = itertools.islice(read_pairs(moved, on_bad_line), _LINES_TO_COMPARE)
            return [input_of(pair) for pair in pairs if pair is not None]
    logger.warning(
        f"the run's validation text {text.files[0]} does not exist, so that translations are "
        "not compared"
    )
    return []
