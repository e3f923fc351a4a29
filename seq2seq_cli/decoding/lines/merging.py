"""Translations of a line's segments, merged into translations of the line; word alignments.

S source tokens and T target tokens of a segment; N source words and M target words of a line.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.requests import GivenScore, Ids
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.text.sentences import separator
from seq2seq_cli.text.words import split_words, words_of_spans
from seq2seq_cli.tokenizers.tokenizer import UNK_ID, Tokenizer, Tokenizers


class Outputs(NamedTuple):
    """Outputs in addition to the text; each costs a forward pass."""

    log_probs: bool = False
    alignment: bool = False


class SegmentResult(NamedTuple):
    segment: Segment
    ids: Ids
    score: float
    given: GivenScore


class Placed(NamedTuple):
    """A segment whose translation has its place in the text of the line's translation."""

    segment: Segment
    attention_TS: NDArray[np.float32]  # of every target token over the source tokens; rows sum to 1
    spans: Sequence[tuple[int, int]]  # of the target tokens in the text
    copies: dict[int, int]  # target tokens that copy the text of a source token


def merge_segments(
    line: str,
    segments: Sequence[Sequence[SegmentResult]],
    tokenizers: Tokenizers,
    outputs: Outputs,
    *,
    is_ranked: bool,
) -> list[Translation]:
    """Make the line's n-th translation of the n-th of every segment, or of its last.

    The texts of a ranked list differ: later ones that are equal now that unknown tokens have the
    text of the source are left out.
    """
    found = []
    for n in range(max(map(len, segments), default=1)):  # one, of no text, for an empty line
        nth = [each[min(n, len(each) - 1)] for each in segments]
        found.append(_translation(line, nth, tokenizers, outputs, is_ranked))
    first_of_text = {one.text: one for one in reversed(found)}
    return [one for one in found if not is_ranked or first_of_text[one.text] is one]


def _translation(
    line: str,
    segments: Sequence[SegmentResult],
    tokenizers: Tokenizers,
    outputs: Outputs,
    is_ranked: bool,
) -> Translation:
    ids = [token for segment in segments for token in segment.ids]
    log_probs, alignment, attention = None, None, None
    if outputs.log_probs:
        log_probs = tuple(itertools.chain.from_iterable(s.given.log_probs for s in segments))
    if outputs.alignment or UNK_ID in ids:
        text, placed = write_segments(segments, tokenizers)
        if outputs.alignment:
            alignment, attention = align(line, text, placed, tokenizers.src)
        text = " ".join(text.split())
    else:
        text = ""
        for result in segments:
            if part := tokenizers.tgt.to_text(result.ids):
                text += _separator(text, result.segment, tokenizers.tgt) + part
    return Translation(
        text=text,
        tokens=tuple(tokenizers.tgt.pieces_of(ids)),
        score=sum((segment.score for segment in segments), 0.0) if is_ranked else None,
        log_probs=log_probs,
        alignment=alignment,
        attention=attention,
    )


def write_segments(
    segments: Sequence[SegmentResult], tokenizers: Tokenizers
) -> tuple[str, list[Placed]]:
    """Write the text, its white space untidied, and find the tokens of each segment in it."""
    line, placed = "", []
    for result in segments:
        assert result.given.attention_TS is not None
        attention_TS = result.given.attention_TS
        copies = {
            place: int(attention_TS[place].argmax())
            for place, token in enumerate(result.ids)
            if token == UNK_ID
        }
        surfaces = tokenizers.tgt.surfaces(result.ids)
        source, src_spans = tokenizers.src.spans(result.segment.sentence) if copies else ("", [])
        for place, copied in copies.items():  # an unknown token has the text of its source token
            begin, end = src_spans[result.segment.first_token + copied]
            surface = source[begin:end]
            surfaces[place] = f" {surface} " if tokenizers.tgt.is_of_words else surface
        text = "".join(surfaces)
        if text.strip():
            line += _separator(line, result.segment, tokenizers.tgt)
        start, num_stripped = len(line), len(text) - len(text.lstrip())
        line += text.strip()
        ends = itertools.accumulate(map(len, surfaces), initial=start - num_stripped)
        spans = itertools.pairwise(min(max(end, start), len(line)) for end in ends)
        placed.append(Placed(result.segment, attention_TS, list(spans), copies))
    return line, placed


def _separator(before: str, segment: Segment, tgt: Tokenizer) -> str:
    """Return what separates the translation of a segment from what is before it."""
    is_inside = segment.begins_in_word and not tgt.is_of_words
    return separator(before) if before and not is_inside else ""


def align(
    line: str, text: str, placed: Sequence[Placed], tokenizer: Tokenizer
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[float, ...], ...]]:
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
    matrix = (tuple(round(share, 4) for share in row) for row in attention_MN.tolist())
    return tuple(links), tuple(matrix)


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
