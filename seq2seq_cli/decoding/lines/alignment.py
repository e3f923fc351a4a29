"""Word alignments: attention between tokens turned into attention between words.

S source tokens and T target tokens of a segment; N source words and M target words of the whole
line.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.text.words import split_words, words_of_spans
from seq2seq_cli.tokenizers.tokenizer import Tokenizer


class Placed(NamedTuple):
    """A segment whose translation has its place in the text of the line's translation."""

    segment: Segment
    attention_TS: NDArray[np.float32]  # of every target token over the source tokens; rows sum to 1
    spans: Sequence[tuple[int, int]]  # of the target tokens in the text
    copies: dict[int, int]  # target tokens that copy the text of a source token


def align(
    line: str, text: str, placed: Sequence[Placed], tokenizer: Tokenizer
) -> tuple[tuple[tuple[int, int], ...], NDArray[np.float32]]:
    """Return the source word with the most attention for each target word, and all attention, MN.

    Words are what `split_words` finds. The attention of a target word is the mean over its tokens;
    a source token that spans several words gives each of them an equal share.
    """
    attention_MN = np.zeros((len(split_words(text)), len(split_words(line))), np.float32)
    num_tokens_M = np.zeros(len(attention_MN), np.float32)
    for part in placed if len(attention_MN) else ():
        tgt_words = words_of_spans(text, part.spans)
        src_words = source_words(part.segment, tokenizer)
        tokens, words = _expanded(src_words)
        shares = np.float32(1) / np.array([len(token_words) for token_words in src_words])
        attention_TN = np.zeros((len(tgt_words), attention_MN.shape[1]), np.float32)
        np.add.at(attention_TN.T, words, (part.attention_TS * shares)[:, tokens].T)
        tokens, words = _expanded(tgt_words)
        np.add.at(attention_MN, words, attention_TN[tokens])
        np.add.at(num_tokens_M, words, 1)
        for token, copied in part.copies.items():
            share, tgt, src = part.attention_TS[token, copied], tgt_words[token], src_words[copied]
            if len(tgt) == len(src):  # a copy of several words is aligned word by word
                for target, source in zip(tgt, src, strict=True):
                    attention_MN[target, src.start : src.stop] -= share / len(src)
                    attention_MN[target, source] += share
    attention_MN /= np.maximum(num_tokens_M, 1)[:, None]
    sources = attention_MN.argmax(axis=1).tolist() if attention_MN.size else []
    links = sorted((source, target) for target, source in enumerate(sources))
    return tuple(links), attention_MN


def source_words(segment: Segment, tokenizer: Tokenizer) -> list[range]:
    """Return the words of the line that each token of the segment belongs to."""
    text, spans = tokenizer.spans(segment.sentence)
    own = spans[segment.first_token : segment.first_token + len(segment.ids)]
    return [
        range(segment.first_word + words.start, segment.first_word + words.stop)
        for words in words_of_spans(text, own)
    ]


def _expanded(words: Sequence[range]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of tokens and words, one pair for each word of a token."""
    tokens = [token for token, token_words in enumerate(words) for _ in token_words]
    indices = [word for token_words in words for word in token_words]
    return np.array(tokens, np.int64), np.array(indices, np.int64)
