"""export(): writes a run in another format with a model card, and compares both."""

from dataclasses import dataclass
from pathlib import Path

from seq2seq_cli.config.languages import languages_from_option
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Languages
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.export.comparison import compare
from seq2seq_cli.extras.export.limits import format_named, unsupported
from seq2seq_cli.extras.export.model_card import UNKNOWN_LICENSE, CardOptions, model_card
from seq2seq_cli.files import write_atomic
from seq2seq_cli.run_folder import RunFolder


@dataclass(frozen=True)
class ExportOptions:
    """What of a run is exported."""

    which: str = "best"  # weights, as --model names them
    langs: str | None = None  # as de-en; None: data.languages
    tag: str | None = None  # in place of decoding.tag
    license: str = UNKNOWN_LICENSE


def export(
    run_dir: Path, format_name: str, output: Path, options: ExportOptions = ExportOptions()
) -> str:
    """Write the export and compare; return a report of how many translations are equal.

    Raises UserError if the output exists, if the format cannot represent the run, if a line has
    other ids there, or if too many translations differ.
    """
    target = format_named(format_name)
    target.check_output(output)
    tag = [] if options.tag is None else [f"decoding.tag={options.tag}"]
    overrides = ["decoding.precision=fp32", *tag]
    translator = Translator.load(run_dir, "cpu", overrides, which=options.which)
    translator.config = _with_languages(translator.config, options.langs)
    config, tokenizers = translator.config, translator.tokenizers
    reason = unsupported(format_name, config, tokenizers)
    if reason := reason or target.capabilities().missing(translator.model):
        raise UserError(f"--format {format_name} does not support this model: {reason}")
    target.require(config)
    usage = target.usage(config, tokenizers)
    card_options = CardOptions(target.library, usage, options.license, options.which)
    run = RunFolder(run_dir)
    written = _with_languages(load_config(run.config), options.langs)
    card = model_card(run, written, translator.statistics, card_options)
    with target.opened(output, config) as folder:
        target.write(translator, folder)
        write_atomic(folder / "README.md", card.encode("utf-8"))
        report = compare(target, translator, run_dir, folder)
    return f"wrote {output}: {report}"


def _with_languages(config: Config, langs: str | None) -> Config:
    """Return the config with other languages of source and target."""
    if langs is None:
        return config
    src, tgt = languages_from_option(langs)
    if config.data.direction == "reverse":
        src, tgt = tgt, src
    data = config.data.model_copy(update={"languages": Languages(src=src, tgt=tgt)})
    return config.model_copy(update={"data": data})
