"""Pieces of a line, translated one by one, as translations of the line."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from seq2seq_cli.decoding.request import Ids
from seq2seq_cli.decoding.scoring import Forced, word_attention
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.text.tokenizer import UNK_ID, Tokenizers


class Wanted(NamedTuple):
    """What is to be known of a translation besides its text; each costs a pass of the model."""

    log_probs: bool = False
    alignment: bool = False


class Found(NamedTuple):
    """A translation of a piece of a line."""

    text: str
    src: Ids
    ids: Ids
    score: float | None  # None where the search ranks nothing
    forced: Forced | None


def joined(
    pieces: Sequence[Sequence[Found]], tokenizers: Tokenizers, wanted: Wanted, *, is_ranked: bool
) -> list[Translation]:
    """The n-th translation of a line is made of the n-th of each piece, or its last."""
    count = max(map(len, pieces), default=0)
    if count == 0:
        blank = Translation("", (), 0.0 if is_ranked else None)
        if wanted.log_probs:
            blank = replace(blank, log_probs=())
        return [replace(blank, alignment=(), attention=()) if wanted.alignment else blank]
    return [
        _translation([found[min(n, len(found) - 1)] for found in pieces], tokenizers, wanted)
        for n in range(count)
    ]


def _translation(pieces: Sequence[Found], tokenizers: Tokenizers, wanted: Wanted) -> Translation:
    tgt = tokenizers.tgt
    ids = [token for piece in pieces for token in piece.ids]
    log_probs, alignment, attention = None, None, None
    if wanted.log_probs:
        log_probs = tuple(p for piece in pieces if piece.forced for p in piece.forced.log_probs)
    if wanted.alignment:
        links, attention = _aligned(pieces, tokenizers)
        alignment = tuple(links)
    scores = [piece.score for piece in pieces if piece.score is not None]
    return Translation(
        text=_with_source_words(pieces, tokenizers) if UNK_ID in ids else tgt.to_text(ids),
        tokens=tuple(tgt.pieces_of(ids)),
        score=sum(scores) if scores else None,
        log_probs=log_probs,
        alignment=alignment,
        attention=attention,
    )


def _aligned(
    pieces: Sequence[Found], tokenizers: Tokenizers
) -> tuple[list[tuple[int, int]], tuple[tuple[float, ...], ...]]:
    """Links of words, each target word's to what it looks at most, and the whole matrix."""
    links: list[tuple[int, int]] = []
    matrix: list[list[float]] = []
    of_pieces = []
    for piece in pieces:
        assert piece.forced is not None and piece.forced.attention_TS is not None
        of_pieces.append(
            word_attention(
                piece.forced.attention_TS.cpu(),
                tokenizers.src.pieces_of(piece.src),
                tokenizers.tgt.pieces_of(piece.ids),
            )
        )
    width, before = sum(words.size(1) for words in of_pieces), 0
    for words in of_pieces:
        for row in words:
            links.append((before + int(row.argmax()), len(matrix)))
            after = width - before - len(row)
            matrix.append([0.0] * before + [round(p, 4) for p in row.tolist()] + [0.0] * after)
        before += words.size(1)
    return sorted(links), tuple(map(tuple, matrix))


def _with_source_words(pieces: Sequence[Found], tokenizers: Tokenizers) -> str:
    """The text with every unknown token replaced by the source word it looks at most."""
    texts = []
    for piece in pieces:
        assert piece.forced is not None and piece.forced.attention_TS is not None
        src_pieces = tokenizers.src.pieces_of(piece.src)
        of_tokens = word_attention(
            piece.forced.attention_TS.cpu(), src_pieces, ["▁"] * len(piece.ids)
        )
        words = piece.text.split()
        start = 0
        for place, token in enumerate(piece.ids):
            if token == UNK_ID:
                texts.append(tokenizers.tgt.to_text(piece.ids[start:place]))
                looked_at = int(of_tokens[place].argmax())
                texts += words[looked_at : looked_at + 1] or words[-1:]  # a piece may be a space
                start = place + 1
        texts.append(tokenizers.tgt.to_text(piece.ids[start:]))
    return " ".join(text for text in texts if text)
