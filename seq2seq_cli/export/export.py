"""export(): write a run in another format, then translate with both and compare."""

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.export import ctranslate2
from seq2seq_cli.run_folder import RunFolder, write_bytes
from seq2seq_cli.text.parallel import read_pairs
from seq2seq_cli.text.tokenizer import save_tokenizers

logger = logging.getLogger(__name__)

Format = Literal["ctranslate2"]

_LINES_TO_COMPARE = 200
_SHARE_EQUAL = 0.97  # of them; fp32 sums in another order turn a token now and then

_Translate = Callable[[Path, Sequence[list[str]], list[int]], list[list[str]]]
_OTHERS: dict[Format, _Translate] = {"ctranslate2": ctranslate2.translate_pieces}
_README = {"ctranslate2": ctranslate2.README}


def export(run_dir: Path, file_format: Format, output: Path, *, last: bool = False) -> str:
    """Write the folder and compare; returns a line that says how many translations are equal.

    Raises UserError for an output that is not empty, a model that the format cannot hold, and when
    too many of the validation text's translations differ.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists and is not an empty folder")
    translator = Translator.load(run_dir, "cpu", last=last, exact=True)
    ctranslate2.write_ctranslate2(
        translator.model, translator.config.model, translator.tokenizers, output
    )
    paths = list(save_tokenizers(RunFolder(output), translator.tokenizers))
    readme = _README[file_format]
    for name, path in (("SRC", paths[0]), ("TGT", paths[-1])):
        readme = readme.replace(name, f'"{path.name}"')
    write_bytes(output / "README.md", readme.encode("utf-8"))
    lines = _validation_lines(translator)
    if not lines:
        return f"{output} is written; there is no validation text to compare translations of"
    pieces = [translator.tokenizers.src.to_pieces(line) for line in lines]
    ours = [found[0].tokens for found in translator.search_greedily(lines)]
    limits = [translator.longest(len(of_line)) for of_line in pieces]
    theirs = _OTHERS[file_format](output, pieces, limits)
    equal = sum(tuple(one) == other for one, other in zip(theirs, ours, strict=True))
    report = f"{equal} of {len(lines)} greedy translations of validation lines are equal"
    if equal < _SHARE_EQUAL * len(lines):
        raise UserError(f"{output} does not translate as the run does: {report}")
    return f"{output} is written: {report}"


def _validation_lines(translator: Translator) -> list[str]:
    """Some that are translated in one piece; none where the text is gone."""
    data = translator.config.data
    if data.valid is None or not all(path.is_file() for path in data.valid.files):
        return []
    pairs = itertools.islice(read_pairs(data.valid, data.on_bad_line), _LINES_TO_COMPARE)
    lines = [pair.src for pair in pairs if pair is not None]
    src = translator.tokenizers.src
    return [line for line in lines if 0 < len(src.to_ids(line)) <= data.max_length]
