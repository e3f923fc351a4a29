"""`seq2seq vocab`: learns the tokenizers of a config, and checks what is in a vocabulary."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.leakage import count_corpus
from seq2seq_cli.text.quoting import SPACE
from seq2seq_cli.tokenizers.tokenizer import Tokenizer, fit_tokenizers, save_tokenizers
from seq2seq_cli.tokenizers.training_text import LEAST_FREQUENCY
from seq2seq_cli.tokenizers.vocabulary_size import with_vocab_size

_EXAMPLES = 3
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_NUM_SPECIAL = 4


@dataclass(frozen=True)
class VocabularyAudit:
    """The size of a vocabulary, and how much of it rare characters take."""

    entries: int
    rare_characters: int  # single characters that occur fewer than LEAST_FREQUENCY times
    examples: list[str]


def audit_vocabulary(
    tokenizer: Tokenizer, counts: Sequence[int], symbols: Collection[str]
) -> VocabularyAudit:
    """Find the entries that are rare characters; `counts`: of each token in the training text."""
    frequencies: Counter[str] = Counter()
    single: list[str] = []
    for piece, count in list(zip(tokenizer.pieces(), counts, strict=True))[_NUM_SPECIAL:]:
        text = piece.replace(SPACE, "")
        if piece in symbols or piece in tokenizer.features or _BYTE.fullmatch(piece):
            continue
        single += [text] if len(text) == 1 else []
        for character in text:
            frequencies[character] += int(count)
    rare = [character for character in single if frequencies[character] < LEAST_FREQUENCY]
    examples = list(dict.fromkeys(rare))[:_EXAMPLES]
    return VocabularyAudit(len(tokenizer), len(rare), examples)


def build_vocabulary(config: Config, folder: Path) -> list[str]:
    """Write each tokenizer and a readable list of its pieces; return a report.

    The report lists the files and shows the first pairs as pieces. Raises UserError for text that
    cannot be read and for a run folder, before anything is written.
    """
    if RunFolder(folder).config.exists():
        raise UserError(f"{folder} is the folder of a run, which has a vocabulary: choose another")
    text, on_bad_line = config.train_text, config.data.on_bad_line
    counts, _ = count_corpus(text, None, on_bad_line)
    config = with_vocab_size(config, counts.pairs // text.num_directions)
    tokenizers = fit_tokenizers(text, config.tokenizer, on_bad_line)
    folder.mkdir(parents=True, exist_ok=True)
    report = []
    for path, tokenizer in save_tokenizers(RunFolder(folder), tokenizers).items():
        pieces = "".join(f"{piece}\n" for piece in tokenizer.pieces())
        write_atomic(path.with_suffix(".vocab"), pieces.encode("utf-8"))
        report.append(f"{path}: {len(tokenizer):,} {tokenizer.kind} entries")
    readable = (p for p in read_pairs(text, on_bad_line) if p and not p.is_empty)
    for pair in islice(readable, _EXAMPLES):
        features = tokenizers.src.pieces_of(tokenizers.src.feature_ids(pair.features))
        report.append(f"  {' '.join([*features, *tokenizers.src.to_pieces(pair.src)])}")
        report.append(f"  {' '.join(tokenizers.tgt.to_pieces(pair.tgt))}")
    return report
