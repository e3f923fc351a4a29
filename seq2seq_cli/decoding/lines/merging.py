"""Translations of a line's segments, merged into translations of the line.

S source tokens and T target tokens of a segment.
"""

import itertools
from collections.abc import Container, Sequence
from typing import NamedTuple

from seq2seq_cli.decoding.given_score import GivenScore
from seq2seq_cli.decoding.lines.alignment import Placed, align
from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.text.sentences import separator
from seq2seq_cli.tokenizers.tokenizer import UNK_ID, Tokenizer, Tokenizers


class Outputs(NamedTuple):
    """Outputs in addition to the text; each costs a forward pass."""

    log_probs: bool = False
    alignment: bool = False
    attention: bool = True  # by words, with the alignment; four bytes for each pair of them


class SegmentResult(NamedTuple):
    segment: Segment
    ids: Ids
    score: float
    given: GivenScore


def merge_segments(
    line: str,
    segments: Sequence[Sequence[SegmentResult]],
    tokenizers: Tokenizers,
    outputs: Outputs,
    *,
    is_ranked: bool,
    banned: Container[str] = (),
) -> list[Translation]:
    """Make the line's n-th translation of the n-th of every segment, or of its last.

    The texts of a ranked list differ: later ones that are equal now that unknown tokens have the
    text of the source are left out. `banned` words, normalized, are not copied from there.
    """
    found = []
    for n in range(max(map(len, segments), default=1)):  # one, of no text, for an empty line
        nth = [each[min(n, len(each) - 1)] for each in segments]
        found.append(_translation(line, nth, tokenizers, outputs, is_ranked, banned))
    first_of_text = {one.text: one for one in reversed(found)}
    return [one for one in found if not is_ranked or first_of_text[one.text] is one]


def _translation(
    line: str,
    segments: Sequence[SegmentResult],
    tokenizers: Tokenizers,
    outputs: Outputs,
    is_ranked: bool,
    banned: Container[str],
) -> Translation:
    ids = [token for segment in segments for token in segment.ids]
    log_probs, alignment, attention_MN = None, None, None
    if outputs.log_probs:
        log_probs = _joined_log_probs(segments)
    if outputs.alignment or UNK_ID in ids:
        text, placed = write_segments(segments, tokenizers, banned)
        if outputs.alignment:
            alignment, attention_MN = align(line, text, placed, tokenizers.src)
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
        attention_MN=attention_MN if outputs.attention else None,
    )


def _joined_log_probs(segments: Sequence[SegmentResult]) -> tuple[float, ...]:
    """Return the log-probabilities of all tokens, EOS last; none for an empty line.

    EOS of a segment counts with the number after it.
    """
    joined, before = [], 0.0
    for result in segments:
        *of_tokens, of_eos = result.given.log_probs
        for log_prob in of_tokens:
            joined.append(before + log_prob)
            before = 0.0
        before += of_eos
    return (*joined, before) if segments else ()


def write_segments(
    segments: Sequence[SegmentResult], tokenizers: Tokenizers, banned: Container[str] = ()
) -> tuple[str, list[Placed]]:
    """Write the text, its white space untidied, and find the tokens of each segment in it.

    `banned` words are not copied from the source, if tokens are words.
    """
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
            if tokenizers.tgt.is_of_words:
                words = [w for w in surface.split() if tokenizers.tgt.normalize(w) not in banned]
                surface = f" {' '.join(words)} "
            surfaces[place] = surface
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
