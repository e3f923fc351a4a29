"""export(): write a run in another format, then let both programs read and translate the same."""

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator
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
_SHARE_EQUAL = 0.97  # of them; fp32 sums in another order turn a token now and then

# What other programs' tokenizers stumble over; every run is asked for the ids of these.
UNTAME_LINES = (
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


class Format(NamedTuple):
    """What another program reads, and how it translates."""

    unsupported: Callable[[Transformer, Tokenizers], str | None]  # why it cannot hold a model
    write: Callable[[Transformer, Config, Tokenizers, Path], None]
    source_ids: Callable[[Path, Sequence[str]], list[list[int]]]  # without EOS
    translate: Callable[
        [Path, Sequence[str], Sequence[int]], list[list[str]]
    ]  # to tokens, greedily
    readme: Callable[[Config, Tokenizers], str]


FORMATS: dict[FormatName, Format] = {
    "ctranslate2": Format(
        ctranslate2.unsupported,
        ctranslate2.write_ctranslate2,
        ctranslate2.source_ids,
        ctranslate2.translate_lines,
        ctranslate2.readme,
    ),
    "huggingface": Format(
        huggingface.unsupported,
        huggingface.write_huggingface,
        huggingface.source_ids,
        huggingface.translate_lines,
        huggingface.readme,
    ),
}


def export(run_dir: Path, file_format: FormatName, output: Path, *, which: str = "best") -> str:
    """Write the folder and compare; returns a line that says how many translations are equal.

    Raises UserError for an output that is not empty, a model that the format cannot hold, a line
    that is other ids there, and when too many translations differ.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not an empty folder")
    translator = Translator.load(run_dir, "cpu", ["decoding.precision=fp32"], which=which)
    tokenizers = translator.tokenizers
    form = FORMATS[file_format]
    if reason := form.unsupported(translator.model, tokenizers):
        raise UserError(f"--format {file_format} cannot hold this model: {reason}")
    form.write(translator.model, translator.config, tokenizers, output)
    save_tokenizers(RunFolder(output), tokenizers)
    write_atomic(output / "README.md", form.readme(translator.config, tokenizers).encode("utf-8"))
    lines = _validation_lines(translator, run_dir)
    _must_have_our_ids(form, output, [*UNTAME_LINES, *lines], tokenizers)
    lines = _in_one_piece(translator, lines)
    if not lines:
        return f"{output} is written; there is no validation text to compare translations of"
    found = _greedy(translator).search([TranslationInput(line) for line in lines])
    limits = [translator.longest(len(ids)) for ids in tokenizers.src.to_ids_batch(lines)]
    theirs = form.translate(output, lines, limits)
    equal = sum(a == list(b[0].tokens) for a, b in zip(theirs, found, strict=True))
    report = f"{equal} of {len(lines)} greedy translations of validation lines are equal"
    if equal < _SHARE_EQUAL * len(lines):
        raise UserError(f"{output} does not translate as the run does: {report}")
    return f"{output} is written: {report}"


def _must_have_our_ids(
    form: Format, output: Path, lines: Sequence[str], tokenizers: Tokenizers
) -> None:
    ids = tokenizers.src.to_ids_batch(lines)
    for line, ours, theirs in zip(lines, ids, form.source_ids(output, lines), strict=True):
        if ours != theirs:
            raise UserError(f"{output} has other tokens than the run for the line {short(line)!r}")


def _greedy(translator: Translator) -> Translator:
    """Whatever the config says: nothing but the likeliest token each time."""
    bounds = ("max_len_factor", "max_len_extra", "tokens_per_batch")
    kept = {name: getattr(translator.config.decoding, name) for name in bounds}
    config = translator.config.model_copy(update={"decoding": DecodingConfig(**kept)})
    model, tokenizers = translator.model, translator.tokenizers
    return Translator(model, tokenizers, config, statistics=translator.statistics)


def _in_one_piece(translator: Translator, lines: Sequence[str]) -> list[str]:
    """Those that are translated as they are: other programs do not cut lines."""
    segments, _ = translator.cut([TranslationInput(line) for line in lines])
    return [line for line, of_line in zip(lines, segments, strict=True) if len(of_line) == 1]


def _validation_lines(translator: Translator, run_dir: Path) -> list[str]:
    """Some of them; none where the text is gone, which is said.

    Paths of a config are relative to where training was started: to here, or to a folder that the
    run is in.
    """
    data = translator.config.data
    if data.valid is None:
        return []
    for folder in (Path(), *run_dir.resolve().parents):
        files = {name: folder / path for name, path in data.valid if path is not None}
        if all(path.is_file() for path in files.values()):
            corpus = data.valid.model_copy(update=files)
            pairs = itertools.islice(read_pairs(corpus, data.on_bad_line), _LINES_TO_COMPARE)
            return [pair.src for pair in pairs if pair is not None]
    logger.warning(
        f"the run's validation text {data.valid.files[0]} is not there; translations are not "
        "compared"
    )
    return []
