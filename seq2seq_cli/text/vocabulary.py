"""`seq2seq vocab`: the tokenizers of a config alone, and a look at them."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from seq2seq_cli.config import Config
from seq2seq_cli.run_folder import RunFolder, write_atomically
from seq2seq_cli.text.parallel import audit_training_text, read_pairs
from seq2seq_cli.text.tokenizer import Tokenizer, fit_tokenizers

_EXAMPLES = 3


def build_vocabulary(config: Config, folder: Path) -> Iterator[str]:
    """Write each tokenizer and a readable list of its pieces; yields lines to print.

    Raises UserError for text that cannot be read; then nothing is written.
    """
    data = config.data
    audit_training_text(data.train, None, data.on_bad_line)
    tokenizers = fit_tokenizers(data.train, config.tokenizer, data.on_bad_line)
    folder.mkdir(parents=True, exist_ok=True)
    paths = RunFolder(folder).tokenizer_paths(config.tokenizer.shared)
    for path, tokenizer in dict(zip(paths, tokenizers, strict=True)).items():
        _write(path, tokenizer)
        yield f"{path}: {len(tokenizer):,} {config.tokenizer.kind} entries"
    pairs = (pair for pair in read_pairs(data.train, data.on_bad_line) if pair is not None)
    for pair in islice((pair for pair in pairs if not pair.is_empty), _EXAMPLES):
        for tokenizer, text in zip(tokenizers, pair, strict=True):
            yield f"  {' '.join(tokenizer.to_pieces(text))}"


def _write(path: Path, tokenizer: Tokenizer) -> None:
    write_atomically(path, lambda part: part.write_bytes(tokenizer.model))
    pieces = "".join(f"{piece}\n" for piece in tokenizer.pieces())
    write_atomically(path.with_suffix(".vocab"), lambda part: part.write_text(pieces, "utf-8"))
