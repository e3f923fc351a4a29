"""export(): write a run in another format, then translate with both and compare."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from seq2seq_cli.config import ModelConfig
from seq2seq_cli.decoding.translation import Sentence
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.decoding_config import DecodingConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.export import ctranslate2, huggingface
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.run_folder import RunFolder, write_bytes
from seq2seq_cli.text.parallel import read_pairs
from seq2seq_cli.text.tokenizer import Tokenizers, save_tokenizers

FormatName = Literal["ctranslate2", "huggingface"]

_LINES_TO_COMPARE = 200
_SHARE_EQUAL = 0.97  # of them; fp32 sums in another order turn a token now and then


class Format(NamedTuple):
    """What another program reads, and how it translates."""

    write: Callable[[Transformer, ModelConfig, Tokenizers, Path], None]
    translate: Callable[
        [Path, Sequence[str], Sequence[int]], list[list[str]]
    ]  # to pieces, greedily
    readme: str


FORMATS: dict[FormatName, Format] = {
    "ctranslate2": Format(
        ctranslate2.write_ctranslate2, ctranslate2.translate_lines, ctranslate2.README
    ),
    "huggingface": Format(
        huggingface.write_huggingface, huggingface.translate_lines, huggingface.README
    ),
}


def export(run_dir: Path, file_format: FormatName, output: Path, *, which: str = "best") -> str:
    """Write the folder and compare; returns a line that says how many translations are equal.

    Raises UserError for an output that is not empty, a model that the format cannot hold, and when
    too many of the validation text's translations differ.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not an empty folder")
    translator = Translator.load(run_dir, "cpu", ["decoding.precision=fp32"], which=which)
    write, translate, readme = FORMATS[file_format]
    write(translator.model, translator.config.model, translator.tokenizers, output)
    paths = list(save_tokenizers(RunFolder(output), translator.tokenizers))
    for name, path in (("SRC", paths[0]), ("TGT", paths[-1])):
        readme = readme.replace(name, f'"{path.name}"')
    write_bytes(output / "README.md", readme.encode("utf-8"))
    lines = _validation_lines(translator)
    if not lines:
        return f"{output} is written; there is no validation text to compare translations of"
    found = _greedy(translator).search([Sentence(line) for line in lines])
    ours = [list(translations[0].tokens) for translations in found]
    limits = [translator.longest(len(translator.tokenizers.src.to_ids(line))) for line in lines]
    theirs = translate(output, lines, limits)
    equal = sum(one == other for one, other in zip(theirs, ours, strict=True))
    report = f"{equal} of {len(lines)} greedy translations of validation lines are equal"
    if equal < _SHARE_EQUAL * len(lines):
        raise UserError(f"{output} does not translate as the run does: {report}")
    return f"{output} is written: {report}"


def _greedy(translator: Translator) -> Translator:
    """Whatever the config says: nothing but the likeliest token each time."""
    bounds = ("max_len_factor", "max_len_extra", "tokens_per_batch")
    kept = {name: getattr(translator.config.decoding, name) for name in bounds}
    config = translator.config.model_copy(update={"decoding": DecodingConfig(**kept)})
    model, tokenizers = translator.model, translator.tokenizers
    return Translator(model, tokenizers, config, statistics=translator.statistics)


def _validation_lines(translator: Translator) -> list[str]:
    """Some that are translated in one piece; none where the text is gone."""
    data = translator.config.data
    if data.valid is None or not all(path.is_file() for path in data.valid.files):
        return []
    pairs = itertools.islice(read_pairs(data.valid, data.on_bad_line), _LINES_TO_COMPARE)
    lines = [pair.src for pair in pairs if pair is not None]
    pieces, _ = translator.cut([Sentence(line) for line in lines])
    return [line for line, of_line in zip(lines, pieces, strict=True) if len(of_line) == 1]
