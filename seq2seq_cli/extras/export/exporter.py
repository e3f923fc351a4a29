"""export(): writes a run in another format with a model card, and compares both."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from seq2seq_cli.config.languages import languages_from_option, languages_of
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Languages
from seq2seq_cli.decoding.engines.capabilities import Capabilities
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.export import argos, ctranslate2, huggingface
from seq2seq_cli.extras.export.comparison import Format, compare
from seq2seq_cli.extras.export.limits import OPTIONS, FormatName, unsupported
from seq2seq_cli.extras.export.model_card import UNKNOWN_LICENSE, CardOptions, model_card
from seq2seq_cli.files import write_atomic
from seq2seq_cli.model.attention import MultiHeadAttention, ScoreScale
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward, Residual
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.run_folder import RunFolder

# What every format can represent.
CAPABILITIES = Capabilities(
    options=OPTIONS,
    modules={
        *(Transformer, EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward, Residual),
        *(ScoreScale, Dropout),
        *(nn.ModuleList, nn.Embedding, nn.Linear, nn.LayerNorm, nn.Identity),
    },
    activations={nn.ReLU, nn.GELU},
)
FORMATS: dict[FormatName, Format] = {
    "ctranslate2": ctranslate2,
    "huggingface": huggingface,
    "argos": argos,
}


@dataclass(frozen=True)
class ExportOptions:
    """What of a run is exported."""

    which: str = "best"  # weights, as --model names them
    langs: str | None = None  # as de-en, if not those that the run names
    tag: str | None = None  # in place of decoding.tag
    license: str = UNKNOWN_LICENSE


def export(
    run_dir: Path,
    file_format: FormatName,
    output: Path,
    options: ExportOptions = ExportOptions(),
) -> str:
    """Write the export and compare; return a report of how many translations are equal.

    Raises UserError if the output exists, if the format cannot represent the run, if a line has
    other ids there, or if too many translations differ.
    """
    _check_output(output, is_file=file_format == "argos")
    translator = Translator.load(run_dir, "cpu", _overrides(options), which=options.which)
    translator.config = _with_languages(translator.config, options.langs)
    config, target = translator.config, FORMATS[file_format]
    reason = argos.missing(config) if file_format == "argos" else None
    reason = reason or unsupported(file_format, config, translator.tokenizers)
    if reason := reason or CAPABILITIES.missing(translator.model):
        raise UserError(f"--format {file_format} does not support this model: {reason}")
    usage = target.usage(config, translator.tokenizers)
    card_options = CardOptions(target.LIBRARY, usage, options.license, options.which)
    run = RunFolder(run_dir)
    written = _with_languages(load_config(run.config), options.langs)
    card = model_card(run, written, translator.statistics, card_options)
    if file_format != "argos":
        return f"wrote {output}: {_write(target, translator, run_dir, card, output)}"
    languages = languages_of(config.data)
    assert languages is not None, "missing() has asked for them"
    statistics = translator.statistics
    with tempfile.TemporaryDirectory(dir=output.absolute().parent) as temporary:
        folder = Path(temporary) / argos.package_name(languages)
        report = _write(target, translator, run_dir, card, folder)
        argos.write_metadata(folder, languages, statistics.src_inner_marks if statistics else "")
        argos.pack(folder, output)
    return f"wrote {output}: {report}"


def _check_output(output: Path, *, is_file: bool) -> None:
    if not is_file:
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise UserError(f"{output} exists and is not an empty folder")
        return
    if output.suffix != argos.SUFFIX:
        raise UserError(
            f"--output {output}: the name of a package for Argos Translate ends in {argos.SUFFIX}"
        )
    if output.exists():
        raise UserError(f"{output} exists; remove it, or choose another --output")
    output.parent.mkdir(parents=True, exist_ok=True)


def _overrides(options: ExportOptions) -> Sequence[str]:
    tag = [] if options.tag is None else [f"decoding.tag={options.tag}"]
    return ["decoding.precision=fp32", *tag]


def _with_languages(config: Config, langs: str | None) -> Config:
    """Return the config with other languages, which are those of source and target."""
    if langs is None:
        return config
    src, tgt = languages_from_option(langs)
    if config.data.direction == "reverse":
        src, tgt = tgt, src
    data = config.data.model_copy(update={"languages": Languages(src=src, tgt=tgt)})
    return config.model_copy(update={"data": data})


def _write(target: Format, translator: Translator, run_dir: Path, card: str, folder: Path) -> str:
    """Write a folder with model and card, and return how it compares."""
    target.write_model(translator.model, translator.config, translator.tokenizers, folder)
    write_atomic(folder / "README.md", card.encode("utf-8"))
    return compare(target, translator, run_dir, folder)
