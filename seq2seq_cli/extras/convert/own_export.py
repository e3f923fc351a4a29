"""The tokenizers of runs that this program has exported: their folders are imported as they are."""

from pathlib import Path

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.convert.foreign import Vocabulary
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizer, Tokenizers


def own_tokenizers(folder: Path) -> Tokenizers | None:
    """Return the tokenizers of an exported model; None if the folder has none."""
    run = RunFolder(folder)
    one, (src, tgt) = run.new_tokenizer_paths(is_one=True)[0], run.new_tokenizer_paths(is_one=False)
    if one.is_file():
        tokenizer = Tokenizer.load(one)
        return Tokenizers(tokenizer, tokenizer)
    if src.is_file() and tgt.is_file():
        first, second = Tokenizer.load(src), Tokenizer.load(tgt)
        if first.pieces() == second.pieces():
            second = Tokenizer.load(tgt, first)
        return Tokenizers(first, second)
    return None


def own_vocabulary(tokenizer: Tokenizer, size: int, path: Path) -> Vocabulary:
    """Return the vocabulary of a tokenizer; UserError if the weights have other rows."""
    if len(tokenizer) != size:
        raise UserError(f"{path} does not fit its tokenizer, which has {len(tokenizer):,} entries")
    return Vocabulary(tuple(tokenizer.pieces()), UNK_ID, EOS_ID, BOS_ID)
