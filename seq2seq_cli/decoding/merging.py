"""Segments of a line, translated one by one, as translations of the line."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from seq2seq_cli.decoding.alignment import Placed, align
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.decoding.scoring import GivenScore
from seq2seq_cli.decoding.segmentation import Segment
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.text.sentences import join_sentences, separator
from seq2seq_cli.text.tokenizer import UNK_ID, Tokenizers


class Outputs(NamedTuple):
    """What is to be known of a translation besides its text; each costs a pass of the model."""

    log_probs: bool = False
    alignment: bool = False


class SegmentResult(NamedTuple):
    """A translation of a segment of a line."""

    segment: Segment
    ids: Ids
    score: float | None  # None where the search ranks nothing
    forced: GivenScore | None


def merge_segments(
    line: str,
    segments: Sequence[Sequence[SegmentResult]],
    tokenizers: Tokenizers,
    wanted: Outputs,
    *,
    is_ranked: bool,
) -> list[Translation]:
    """The n-th translation of a line is made of the n-th of each segment, or its last."""
    count = max(map(len, segments), default=0)
    if count == 0:
        blank = Translation("", (), 0.0 if is_ranked else None)
        if wanted.log_probs:
            blank = replace(blank, log_probs=())
        return [replace(blank, alignment=(), attention=()) if wanted.alignment else blank]
    return [
        _translation(
            line, [found[min(n, len(found) - 1)] for found in segments], tokenizers, wanted
        )
        for n in range(count)
    ]


def _translation(
    line: str, segments: Sequence[SegmentResult], tokenizers: Tokenizers, wanted: Outputs
) -> Translation:
    tgt = tokenizers.tgt
    ids = [token for segment in segments for token in segment.ids]
    log_probs, alignment, attention = None, None, None
    if wanted.log_probs:
        log_probs = tuple(
            p for segment in segments if segment.forced for p in segment.forced.log_probs
        )
    if wanted.alignment or UNK_ID in ids:
        text, placed = _written(segments, tokenizers)
        if wanted.alignment:
            alignment, attention = align(line, text, placed, tokenizers.src)
        text = " ".join(text.split())
    else:
        text = join_sentences(tgt.to_text(segment.ids) for segment in segments)
    scores = [segment.score for segment in segments if segment.score is not None]
    return Translation(
        text=text,
        tokens=tuple(tgt.pieces_of(ids)),
        score=sum(scores) if scores else None,
        log_probs=log_probs,
        alignment=alignment,
        attention=attention,
    )


def _written(segments: Sequence[SegmentResult], tokenizers: Tokenizers) -> tuple[str, list[Placed]]:
    """The text, and where in it the tokens of each segment stand; its white space is not tidied."""
    line, placed = "", []
    for found in segments:
        assert found.forced is not None and found.forced.attention_TS is not None
        attention_TS = found.forced.attention_TS.cpu()
        copies = {
            place: int(attention_TS[place].argmax())
            for place, token in enumerate(found.ids)
            if token == UNK_ID
        }
        surfaces = _surfaces(found, copies, tokenizers)
        text = "".join(surfaces)
        if line and text.strip():
            line += separator(line)
        start, num_stripped = len(line), len(text) - len(text.lstrip())
        line += text.strip()
        ends = itertools.accumulate(map(len, surfaces), initial=start - num_stripped)
        spans = itertools.pairwise(min(max(end, start), len(line)) for end in ends)
        placed.append(Placed(found.segment, attention_TS, list(spans), copies))
    return line, placed


def _surfaces(found: SegmentResult, copies: dict[int, int], tokenizers: Tokenizers) -> list[str]:
    """What each token adds to the text: an unknown one what the source token that it copies is."""
    surfaces = tokenizers.tgt.surfaces(found.ids)
    if copies:
        source, spans = tokenizers.src.spans(found.segment.sentence)
        for place, copied in copies.items():
            start, end = spans[found.segment.first_token + copied]
            surface = source[start:end]
            surfaces[place] = f" {surface} " if tokenizers.tgt.is_of_words else surface
    return surfaces
