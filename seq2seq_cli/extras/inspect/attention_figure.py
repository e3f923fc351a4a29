"""Attention maps as figures: one head, the mean of a layer, or all layers and heads.

L layers, H heads, Q query positions, M memory positions.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.inspect.attention_study import AttentionStudy
from seq2seq_cli.extras.inspect.attention_views import Kind, View, ViewedMaps, view_maps
from seq2seq_cli.extras.plot.figure_files import default_style, fonts_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
def draw_attention(
    study: AttentionStudy,
    kind: Kind,
    *,
    layer: int | None = None,
    head: int | None = None,
    view: View = "weights",
    by_words: bool = False,
) -> "Figure":
    """Draw a head; without `head`, the mean of a layer; without `layer`, all layers and heads.

    Layers and heads count from 1. The colours of weights are on one scale, those of norms on a
    scale of each map; both grow with the square root, so that small weights can be seen.
    """
    viewed = view_maps(study, kind, view, by_words)
    layers, heads = viewed.values_LHQM.shape[:2]
    check_choice(layer, head, layers, heads)
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
    figure.set_layout_engine("none")  # which would move things again whenever the figure is saved
    return figure


def check_choice(layer: int | None, head: int | None, layers: int, heads: int) -> None:
    """Raise UserError for what cannot be drawn of a model with so many layers and heads."""
    for name, chosen, count in (("layer", layer, layers), ("head", head, heads)):
        if chosen is not None and not 1 <= chosen <= count:
            raise UserError(
                f"there is no {name} {chosen}: the model has {count} ({name}s count from 1)"
            )
    if layer is None and head is not None:
        raise UserError("a head is drawn of one layer: give the layer too")


def _draw_one(values_QM: Tensor, viewed: ViewedMaps, title: str, view: View) -> "Figure":
    from matplotlib.figure import Figure

    rows, columns = values_QM.shape
    cell = min(_CELL, _LARGEST_MAP / max(rows, columns))
    width, height = 2.4 + cell * max(columns, 4), 1.9 + cell * max(rows, 4)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values_QM.numpy(), **_colors(values_QM, view))
    axes.set_xticks([])
    axes.set_yticks([])
    if cell >= _SMALLEST_LABELED_CELL:
        labels = _labels(viewed)
        axes.set_xticks(range(columns), labels.memory, rotation=90, **labels.style)
        axes.set_yticks(range(rows), labels.queries, **labels.style)
    axes.tick_params(
        length=0, labelsize=9, top=True, labeltop=True, bottom=False, labelbottom=False
    )
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
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color("#bbbbbb")
        if layer == 0:
            axes.set_title(f"head {head + 1}", fontsize=8)
        if head == 0:
            axes.set_ylabel(f"layer {layer + 1}", fontsize=8)
        if labels is not None and head == 0:
            axes.set_yticks(range(rows), labels.queries, fontsize=6, **labels.style)
        if labels is not None and layer == layers - 1:
            axes.set_xticks(range(columns), labels.memory, fontsize=6, rotation=90, **labels.style)
        axes.tick_params(length=0)
    figure.suptitle(title, fontsize=10)
    return figure


class _Labels(NamedTuple):
    """Tokens as a figure can write them."""

    queries: list[str]
    memory: list[str]
    style: dict[str, Any]


def _labels(viewed: ViewedMaps) -> _Labels:
    fonts, replaced = fonts_for("".join(viewed.queries + viewed.memory))
    queries, memory = (
        [label.translate(replaced) for label in labels]
        for labels in (viewed.queries, viewed.memory)
    )
    return _Labels(queries, memory, {"family": fonts, "parse_math": False})


def _colors(values_QM: Tensor, view: View) -> dict[str, Any]:
    from matplotlib.colors import PowerNorm

    top = float(values_QM.max()) if view == "norms" and values_QM.numel() else 1.0
    return {
        "cmap": "Oranges" if view == "norms" else "Blues",
        "norm": PowerNorm(0.5, vmin=0.0, vmax=top or 1.0),
        "interpolation": "nearest",
    }
