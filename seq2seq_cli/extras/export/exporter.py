"""export(): writes a run in another format with a model card, and compares both."""

from pathlib import Path

from seq2seq_cli.config.languages import languages_from_option
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Languages
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.export.comparison import compare
from seq2seq_cli.extras.export.limits import format_named, unsupported
from seq2seq_cli.extras.export.model_card import model_card
from seq2seq_cli.extras.export.parts import unknown_part
from seq2seq_cli.files import write_atomic
from seq2seq_cli.run_folder import RunFolder


def export(
    run_dir: Path,
    format_name: str,
    output: Path,
    which: str,
    langs: str | None,
    tag: str | None,
    license_name: str,
) -> str:
    """Write the export and compare; return a report of how many translations are equal.

    `which` names the weights, as --model does; `langs`, such as de-en, replaces data.languages, and
    `tag` decoding.tag. Raises UserError if the output exists, if the format cannot represent the
    run, if a line has other ids there, or if too many translations differ.
    """
    target = format_named(format_name)
    target.check_output(output)
    overrides = ["decoding.precision=fp32", *([] if tag is None else [f"decoding.tag={tag}"])]
    translator = Translator.load(run_dir, "cpu", overrides, which=which)
    translator.config = _with_languages(translator.config, langs)
    config, tokenizers = translator.config, translator.tokenizers
    reason = unsupported(format_name, config, tokenizers)
    if reason := reason or unknown_part(translator.model, target.model_parts()):
        raise UserError(f"--format {format_name} does not support this model: {reason}")
    target.require(config)
    run, usage = RunFolder(run_dir), target.usage(config, tokenizers)
    written = _with_languages(load_config(run.config), langs)
    about = (target.library, usage, license_name, which)
    card = model_card(run, written, translator.statistics, *about)
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
