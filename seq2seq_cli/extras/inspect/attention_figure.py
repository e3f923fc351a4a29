"""Views of attention maps, and their figures: one head, the mean of a layer, or all heads.

The page that `attention_page.py` writes computes the same views in the browser; a test compares
the two.

L layers, H heads, Q query positions, M memory positions; after grouping, Q and M count words.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.inspect.attention_study import AttentionStudy, Kind, Sentence
from seq2seq_cli.extras.plot.figures import default_style, fonts_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

View = Literal["weights", "renormalized", "norms"]


@dataclass(frozen=True)
class FigureOptions:
    """What a figure shows: a head, the mean of a layer, or all heads. They count from 1."""

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None
    view: View = "weights"
    by_words: bool = False

    def check(self, model: ModelConfig) -> None:
        """Raise UserError for a layer or head that the model does not have."""
        layers = model.layers.encoder if self.kind == "encoder" else model.layers.decoder
        limits = (("layer", self.layer, layers), ("head", self.head, model.heads))
        for name, chosen, count in limits:
            if chosen is not None and not 1 <= chosen <= count:
                raise UserError(
                    f"there is no {name} {chosen}: the model has {count} ({name}s count from 1)"
                )
        if self.layer is None and self.head is not None:
            raise UserError("--head requires --layer")


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


def axes(study: AttentionStudy, kind: Kind) -> tuple[Axis, Axis]:
    """Return the query side and the memory side. The memory of the decoder starts with BOS."""
    queries = _axis(study.source if kind == "encoder" else study.target)
    if kind == "decoder":
        return queries, _axis(study.target, study.decoder.memory[0])
    return queries, _axis(study.source)


def view_maps(study: AttentionStudy, kind: Kind, view: View, by_words: bool) -> ViewedMaps:
    """Return attention as the view shows it.

    `renormalized` leaves out BOS, EOS and punctuation in the memory, and divides each row by what
    is left, if anything is. Between words, a row is the mean over the tokens of the query word, a
    column the sum over the memory word, as in word alignments.
    """
    maps = study.maps(kind)
    queries, memory = axes(study, kind)
    values_LHQM = maps.weights_LHQM
    if view == "norms":  # ‖α · v Wᴼ‖: how much each memory position adds to the output of a head
        values_LHQM = values_LHQM * maps.value_norms_LHM[:, :, None]
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
    memory_labels = tuple(memory_labels[column] for column in shown)
    return ViewedMaps(values_LHQM[..., shown], query_labels, memory_labels)


def _membership(axis: Axis) -> Tensor:
    """Return a row for each word with ones at its tokens."""
    words = torch.arange(len(axis.words))[:, None]
    return (words == torch.tensor(axis.word_of_token)).float()


def _axis(sentence: Sentence, bos: str | None = None) -> Axis:
    """Describe the tokens of a sentence; with `bos`, as the decoder reads them: without EOS."""
    tokens, word_of_token = sentence.tokens, sentence.word_of_token
    is_content = tuple(not is_left_out for is_left_out in sentence.is_punctuation)
    if bos is not None:
        tokens, word_of_token = (bos, *tokens[:-1]), (None, *word_of_token[:-1])
        is_content = (False, *is_content[:-1])
    labels: list[str] = []
    groups: list[int] = []
    previous: int | None = None
    for position, (token, word) in enumerate(zip(tokens, word_of_token, strict=True)):
        if word is None:
            labels.append(token)
        elif word != previous:
            later = (w for w in word_of_token[position:] if w is not None and w > word)
            words = sentence.words[word : next(later, len(sentence.words))]
            joined = "".join(words)  # a token may span several words, as in Japanese
            labels.append(joined if joined in sentence.text else " ".join(words))
        previous = word
        groups.append(len(labels) - 1)
    return Axis(tokens, is_content, tuple(labels), tuple(groups))


_LABELED = 12  # positions up to which the maps of all heads have labels

# Inches, of a figure of one map.
_CELL = 0.3
_SMALLEST_LABELED_CELL = 0.12
_LARGEST_MAP = 24

TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}
MEASURES = {
    "weights": "weight",
    "renormalized": "weight without EOS and punctuation",
    "norms": "norm of the weighted value, ‖α·v‖",
}


@default_style()
def draw_attention(study: AttentionStudy, options: FigureOptions) -> "Figure":
    """Draw what the options, which fit the model, choose.

    Weights share one color scale, norms have one for each map; both grow with the square root, so
    that small weights can be seen.
    """
    kind, layer, head, view = options.kind, options.layer, options.head, options.view
    viewed = view_maps(study, kind, view, options.by_words)
    if not viewed.memory:
        raise UserError(
            "without EOS and punctuation, nothing is left to attend to: use view weights"
        )
    if layer is None:
        figure = _draw_all(viewed, f"{TITLES[kind]}, {MEASURES[view]}", view)
    else:
        values_HQM = viewed.values_LHQM[layer - 1]
        values_QM = values_HQM.mean(dim=0) if head is None else values_HQM[head - 1]
        of = "mean of the heads" if head is None else f"head {head}"
        figure = _draw_one(values_QM, viewed, f"{TITLES[kind]}, layer {layer}, {of}", view)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # else saving would move parts again
    return figure


def _draw_one(values_QM: Tensor, viewed: ViewedMaps, title: str, view: View) -> "Figure":
    from matplotlib.figure import Figure

    rows, columns = values_QM.shape
    cell = min(_CELL, _LARGEST_MAP / max(rows, columns))
    width, height = 2.4 + cell * max(columns, 4), 1.9 + cell * max(rows, 4)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values_QM.numpy(), **_colors(values_QM, view))
    axes.set(xticks=[], yticks=[])
    if cell >= _SMALLEST_LABELED_CELL:
        queries, memory, style = _labels(viewed)
        axes.set_xticks(range(columns), memory, rotation=90, **style)
        axes.set_yticks(range(rows), queries, **style)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=10)
    colorbar = figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.05)
    colorbar.outline.set_visible(False)
    colorbar.set_label(MEASURES[view], fontsize=8)
    colorbar.ax.tick_params(labelsize=8)
    return figure


def _draw_all(viewed: ViewedMaps, title: str, view: View) -> "Figure":
    from matplotlib.figure import Figure

    layers, heads, rows, columns = viewed.values_LHQM.shape
    labels = _labels(viewed) if max(rows, columns) <= _LABELED else None
    figure = Figure(figsize=(0.8 + 1.2 * heads, 0.9 + 1.2 * layers), layout="constrained")
    for (layer, head), axes in np.ndenumerate(figure.subplots(layers, heads, squeeze=False)):
        values_QM = viewed.values_LHQM[layer, head]
        axes.imshow(values_QM.numpy(), aspect="auto", **_colors(values_QM, view))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("#bbbbbb")
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=8)
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", fontsize=8)
        if labels is not None and head == 0:
            axes.set_yticks(range(rows), labels[0], fontsize=6, **labels[2])
        if labels is not None and layer == layers - 1:
            axes.set_xticks(range(columns), labels[1], fontsize=6, rotation=90, **labels[2])
        axes.tick_params(length=0)
    figure.suptitle(title, fontsize=10)
    return figure


def _labels(viewed: ViewedMaps) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return the queries and the memory as a figure can write them, and the style of the text."""
    fonts, replaced = fonts_for("".join(viewed.queries + viewed.memory))
    queries = [label.translate(replaced) for label in viewed.queries]
    memory = [label.translate(replaced) for label in viewed.memory]
    return queries, memory, {"family": fonts, "parse_math": False}


def _colors(values_QM: Tensor, view: View) -> dict[str, Any]:
    from matplotlib.colors import PowerNorm

    top = float(values_QM.max()) if view == "norms" else 1.0
    return {
        "cmap": "Oranges" if view == "norms" else "Blues",
        "norm": PowerNorm(0.5, vmin=0.0, vmax=top or 1.0),
        "interpolation": "nearest",
    }
