"""The views of attention maps: without EOS and punctuation, as value-weighted norms, by words.

The page that `attention_page.py` writes computes the same in the browser; a test compares the two.

L layers, H heads, Q query positions, M memory positions; after grouping, Q and M count words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from seq2seq_cli.extras.inspect.attention_study import AttentionMaps, AttentionStudy, Sentence

Kind = Literal["encoder", "decoder", "cross"]
View = Literal["weights", "renormalized", "norms"]


@dataclass(frozen=True)
class Axis:
    """The positions of one side of a map, and how they form words."""

    tokens: tuple[str, ...]
    is_content: tuple[bool, ...]  # False for BOS, EOS and punctuation
    words: tuple[str, ...]  # BOS and EOS stand for themselves
    word_of_token: tuple[int, ...]


@dataclass(frozen=True)
class ViewedMaps:
    """The numbers of one view for all layers and heads, with the labels of both sides."""

    values_LHQM: Tensor
    queries: tuple[str, ...]
    memory: tuple[str, ...]


def maps_of(study: AttentionStudy, kind: Kind) -> AttentionMaps:
    return {"encoder": study.encoder, "decoder": study.decoder, "cross": study.cross}[kind]


def axes(study: AttentionStudy, kind: Kind) -> tuple[Axis, Axis]:
    """Return the query side and the memory side. The memory of the decoder starts with BOS."""
    maps = maps_of(study, kind)
    side = study.source if kind == "encoder" else study.target
    queries = _axis(side, maps.queries, side.word_of_token, side.is_punctuation)
    if kind == "decoder":
        shifted = (None, *side.word_of_token[:-1]), (True, *side.is_punctuation[:-1])
        return queries, _axis(side, maps.memory, *shifted)
    source = study.source
    return queries, _axis(source, maps.memory, source.word_of_token, source.is_punctuation)


def view_maps(study: AttentionStudy, kind: Kind, view: View, by_words: bool) -> ViewedMaps:
    """Return attention as the view shows it.

    `renormalized` leaves out the memory positions that are BOS, EOS or punctuation and divides each
    row by what is left; a row of which nothing is left becomes zero. Between words, a row is the
    mean over the tokens of the query word, a column the sum over the tokens of the memory word, as
    in word alignments.
    """
    maps = maps_of(study, kind)
    queries, memory = axes(study, kind)
    values_LHQM = maps.weighted_norms_LHQM if view == "norms" else maps.weights_LHQM
    is_shown_M = torch.ones(len(memory.tokens), dtype=torch.bool)
    if view == "renormalized":
        is_shown_M = torch.tensor(memory.is_content, dtype=torch.bool)
        values_LHQM = values_LHQM * is_shown_M
        total_LHQ1 = values_LHQM.sum(dim=-1, keepdim=True)
        values_LHQM = values_LHQM / total_LHQ1.clamp(min=torch.finfo(values_LHQM.dtype).tiny)
    query_labels, memory_labels = queries.tokens, memory.tokens
    if by_words:
        rows_QQ, columns_MM = _membership(queries), _membership(memory)
        means_QQ = rows_QQ / rows_QQ.sum(dim=-1, keepdim=True)
        values_LHQM = means_QQ.to(values_LHQM) @ values_LHQM @ columns_MM.T.to(values_LHQM)
        is_shown_M = (columns_MM @ is_shown_M.float()) > 0
        query_labels, memory_labels = queries.words, memory.words
    shown = is_shown_M.nonzero()[:, 0].tolist()
    return ViewedMaps(
        values_LHQM[..., shown], query_labels, tuple(memory_labels[column] for column in shown)
    )


def _membership(axis: Axis) -> Tensor:
    """Return a row for each word with ones at its tokens."""
    words = torch.arange(len(axis.words))[:, None]
    return (words == torch.tensor(axis.word_of_token)).float()


def _axis(
    sentence: Sentence,
    tokens: tuple[str, ...],
    word_of_token: Sequence[int | None],
    is_punctuation: tuple[bool, ...],
) -> Axis:
    labels: list[str] = []
    groups: list[int] = []
    previous: int | None = None
    for position, (token, word) in enumerate(zip(tokens, word_of_token, strict=True)):
        if word is None:
            labels.append(token)
        elif word != previous:
            later = (w for w in word_of_token[position:] if w is not None and w > word)
            labels.append(_label(sentence, word, next(later, len(sentence.words))))
        previous = word
        groups.append(len(labels) - 1)
    is_content = tuple(not is_left_out for is_left_out in is_punctuation)
    return Axis(tokens, is_content, tuple(labels), tuple(groups))


def _label(sentence: Sentence, start: int, stop: int) -> str:
    """Return a range of words as text: a token may span several words, as in Japanese."""
    words = sentence.words[start:stop]
    joined = "".join(words)
    return joined if joined in sentence.text else " ".join(words)
