"""Which words of a translation look at which words of its source.

S source tokens and T target tokens of a segment; N source words and M target words of the whole
line.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.decoding.segmentation import Segment
from seq2seq_cli.text.tokenizer import Tokenizer
from seq2seq_cli.text.words import split_words, words_of_spans


class Placed(NamedTuple):
    """A segment of a line whose translation stands in a text."""

    segment: Segment
    attention_TS: Tensor  # of every target token over the source tokens; rows sum to 1
    spans: Sequence[tuple[int, int]]  # of the target tokens in the text
    copies: dict[int, int]  # by target token, the source token whose text it has


def align(
    line: str, text: str, placed: Sequence[Placed], tokenizer: Tokenizer
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[float, ...], ...]]:
    """Links of words, each target word's to what it looks at most, and the whole matrix, M x N.

    Words are those of `words.split_words`, of the line and of the text. A word looks at what its
    tokens look at in the mean; a token of several words gives each of them as much.
    """
    attention_MN = torch.zeros(len(split_words(text)), len(split_words(line)))
    num_tokens_M = torch.zeros(len(attention_MN))
    for part in placed if len(attention_MN) else ():
        tgt_words = words_of_spans(text, part.spans)
        src_words = _source_words(part.segment, tokenizer)
        tokens, words = _expanded(src_words)
        shares = 1 / torch.tensor([len(of_token) for of_token in src_words])
        attention_TN = torch.zeros(len(tgt_words), attention_MN.size(1))
        attention_TN.index_add_(1, words, (part.attention_TS * shares)[:, tokens])
        tokens, words = _expanded(tgt_words)
        attention_MN.index_add_(0, words, attention_TN[tokens])
        num_tokens_M.index_add_(0, words, torch.ones(len(words)))
        for token, copied in part.copies.items():
            share = part.attention_TS[token, copied]
            _align_copy(attention_MN, share, tgt_words[token], src_words[copied])
    attention_MN /= num_tokens_M.clamp(min=1)[:, None]
    links = [(source, target) for target, source in enumerate(attention_MN.argmax(dim=1).tolist())]
    matrix = (tuple(round(share, 4) for share in row) for row in attention_MN.tolist())
    return tuple(sorted(links)), tuple(matrix)


def _source_words(segment: Segment, tokenizer: Tokenizer) -> list[range]:
    """The words of the line that each token of the segment is part of."""
    text, spans = tokenizer.spans(segment.sentence)
    own = spans[segment.first_token : segment.first_token + len(segment.ids)]
    return [
        range(segment.first_word + words.start, segment.first_word + words.stop)
        for words in words_of_spans(text, own)
    ]


def _align_copy(attention_MN: Tensor, share: Tensor, tgt: range, src: range) -> None:
    """A copy of several words looks word by word at what it is a copy of."""
    if len(tgt) == len(src):
        for target, source in zip(tgt, src, strict=True):
            attention_MN[target, src.start : src.stop] -= share / len(src)
            attention_MN[target, source] += share


def _expanded(words: Sequence[range]) -> tuple[Tensor, Tensor]:
    """Numbers of tokens and of their words, a pair for each word of a token."""
    tokens = [token for token, of_token in enumerate(words) for _ in of_token]
    of_tokens = [word for of_token in words for word in of_token]
    return torch.tensor(tokens, dtype=torch.int64), torch.tensor(of_tokens, dtype=torch.int64)
