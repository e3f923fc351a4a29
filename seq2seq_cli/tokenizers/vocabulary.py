"""Vocabularies: `vocab_size: auto`, `seq2seq vocab`, and an audit of rare characters."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.tokenizer import MOST_WHOLE_TOKENS, SUBWORDS, VocabSizes
from seq2seq_cli.config.types import SIDES, Side, TokenizerKind
from seq2seq_cli.console import counted
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import features_in, read_pairs
from seq2seq_cli.text.leakage import count_corpus
from seq2seq_cli.text.quoting import SPACE
from seq2seq_cli.tokenizers.tokenizer import (
    EOS_ID,
    Tokenizer,
    fit_tokenizers,
    lines_to_learn,
    save_tokenizers,
)
from seq2seq_cli.tokenizers.training_text import LEAST_FREQUENCY, num_frequent_characters

logger = logging.getLogger(__name__)

_EXAMPLES = 3

# Sentence pairs, and a number of subwords that translates well after training on them. From a
# million on they are from Gowda & May 2020, "Finding the Optimal Vocabulary Size for Neural
# Machine Translation"; their 1,000 to 2,000 for 30,000 pairs cost 6 BLEU here
# (benchmarks/translation_quality.md).
_PIECES_BY_PAIRS = [(4_000, 1_000), (30_000, 8_000), (1_000_000, 8_000), (4_500_000, 32_000)]
_FEWEST_PIECES = 300
_BYTES_AND_SPECIAL = 260  # entries of every vocabulary of subwords
_ROUNDED_TO = 100


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
    for token, (piece, count) in enumerate(zip(tokenizer.pieces(), counts, strict=True)):
        text = piece.replace(SPACE, "")
        is_special = token <= EOS_ID or tokenizer.is_byte(token)
        if is_special or piece in symbols or piece in tokenizer.features:
            continue
        single += [text] if len(text) == 1 else []
        for character in text:
            frequencies[character] += int(count)
    rare = [character for character in single if frequencies[character] < LEAST_FREQUENCY]
    examples = list(dict.fromkeys(rare))[:_EXAMPLES]
    return VocabularyAudit(len(tokenizer), len(rare), examples)


def build_vocabulary(config: Config, folder: Path) -> list[str]:
    """Write each tokenizer and a list of its pieces; return a report that shows the first pairs.

    Raises UserError for unreadable text and for a run folder, before anything is written.
    """
    if RunFolder(folder).config.exists():
        raise UserError(f"{folder} is the folder of a run, which has a vocabulary: choose another")
    text, on_bad_line = config.train_text, config.data.on_bad_line
    (counts,) = count_corpus(text, [], on_bad_line)
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


def num_pieces(kind: TokenizerKind, num_pairs: int) -> int:
    """Return the number of pieces to learn from this many pairs, without characters and bytes.

    It grows with the pairs, on straight lines between the logarithms of good sizes, and stays the
    same beyond the last one. Characters and words are not pieces: all of them are learned.
    """
    if kind not in SUBWORDS:
        return MOST_WHOLE_TOKENS
    if num_pairs >= _PIECES_BY_PAIRS[-1][0]:
        return _PIECES_BY_PAIRS[-1][1]
    spans = list(pairwise(_PIECES_BY_PAIRS))
    (x0, y0), (x1, y1) = next((s for s in spans if num_pairs < s[1][0]), spans[-1])
    slope = math.log(y1 / y0) / math.log(x1 / x0)
    return max(_FEWEST_PIECES, round(y0 * math.pow(num_pairs / x0, slope)))


def with_vocab_size(config: Config, num_pairs: int) -> Config:
    """Return the config with numbers in place of `tokenizer.vocab_size: auto`.

    `num_pairs`: all of the training text, each counted once if it is read in both directions. A
    vocabulary of `tokenizer.reuse` keeps its size.
    """
    tokenizer = config.tokenizer
    asked = tokenizer.vocab_size
    if "auto" not in (asked.src, asked.tgt):
        return config
    sizes: dict[Side, int]
    if tokenizer.reuse is not None:
        reused = fit_tokenizers(config.train_text, tokenizer, config.data.on_bad_line)
        sizes = {"src": len(reused.src), "tgt": len(reused.tgt)}
    elif tokenizer.shared:
        sizes = dict.fromkeys(SIDES, _vocab_size(config, num_pairs, *SIDES))
    else:
        asking = (side for side in SIDES if asked.of(side) == "auto")
        sizes = {side: _vocab_size(config, num_pairs, side) for side in asking}
    return config.updated(tokenizer={"vocab_size": asked.resolve(VocabSizes(**sizes))})


def _vocab_size(config: Config, num_pairs: int, *sides: Side) -> int:
    """Return the size of a vocabulary of one side, or of both."""
    tokenizer = config.tokenizer
    kind = tokenizer.kind.of(sides[0])
    size = num_pieces(kind, num_pairs)
    if kind not in SUBWORDS:
        return size
    text, on_bad_line = config.train_text, config.data.on_bad_line
    options = tokenizer.with_symbols(text.tags)
    features = features_in(text, on_bad_line) if "src" in sides else []
    lines = lines_to_learn(text, options, on_bad_line, *sides)
    size += num_frequent_characters(lines, tokenizer.min_character_frequency)
    size += _BYTES_AND_SPECIAL + len(options.user_defined_symbols) + len(features)
    size = math.ceil(size / _ROUNDED_TO) * _ROUNDED_TO
    option = "vocab_size" if len(sides) == 2 else f"vocab_size.{sides[0]}"
    logger.info(f"tokenizer.{option} {size:,}, for {counted(num_pairs, 'pair')}")
    return size
