"""Rebuilds every figure and every printed result of the documents: python docs/make_figures.py

The blocks of the tour are run in a temporary folder, as are the commands of the pages in
PAGES_OF_RUNS; what they print is written below them. Every function in FIGURES draws one file of
docs/figures, and screenshots.py makes the others. The same versions of the libraries on the same
machine give the same bytes, but for the screenshots. Runs that are missing are trained first, from
their configs, which takes minutes.

B sentences, H heads, Q query positions, M memory positions, S source positions, T target
positions, D d_model, K size of one head, N samples.
"""

import contextlib
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import screenshots
import torch
from code_blocks import link_inputs, run_blocks, run_shown_commands, tour, update
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from seq2seq_cli.data.batches import IGNORE_INDEX
from seq2seq_cli.model.attention import attention_weights, causal_mask, padding_mask
from seq2seq_cli.model.positions import sinusoidal_positions
from seq2seq_cli.training.optimizers.schedules import SCHEDULES, Plan

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
BLUE, ORANGE, GREY = "#2f6db3", "#d9822b", "#d8d8d8"
LIGHT_TO_BLUE = mpl.colors.LinearSegmentedColormap.from_list("blue", ["#f7f9fc", BLUE])

Names = dict[str, Any]  # what the blocks of a page have defined

FIGURES_OF_COMMANDS = ("beer_attention.png",)  # which commands of the tour write

# Pages whose commands read runs, and the configs of these runs.
PAGES_OF_RUNS = {
    "attention.md": ["quickstart"],
    "evaluating.md": ["quickstart"],
    "inspecting.md": ["quickstart"],
}


def main() -> None:
    mpl.use("svg")
    torch.set_num_threads(1)
    names: dict[str, Names] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ["SEQ2SEQ_CACHE"] = str(Path(folder) / "cache")
        link_inputs(ROOT, Path(folder))
        for page in tour(DOCS):
            names[page.stem] = {}
            update(page, run_blocks(page, names[page.stem]))
        for name in FIGURES_OF_COMMANDS:
            shutil.copy(name, DOCS / "figures")
        shutil.rmtree("runs")
        Path("runs").symlink_to(ROOT / "runs", target_is_directory=True)
        for name, configs in PAGES_OF_RUNS.items():
            screenshots.train_missing(*configs)
            update(DOCS / name, run_shown_commands(DOCS / name))
    for name, draw in FIGURES.items():
        save(draw(names), DOCS / "figures" / name)
    screenshots.main()


def save(figure: Figure, path: Path) -> None:
    """Write a figure; its bytes depend on nothing but the figure."""
    with mpl.rc_context({"svg.hashsalt": path.name}):
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, facecolor="white", bbox_inches="tight", dpi=100, metadata=metadata)
    plt.close(figure)


def batch(names: dict[str, Names]) -> Figure:
    """Four pairs of the quickstart text as the three tensors of a batch."""
    tokens = names["tokens"]
    ids = tokens["make_batch"](tokens["store"], [2, 4, 6, 20])
    pieces = tokens["subwords"].tgt.pieces()
    parts = {"src_BS": ids.src_BS, "tgt_in_BT": ids.tgt_in_BT, "labels_BT": ids.labels_BT}
    figure, axes = plt.subplots(3, 1, figsize=(9, 5.4), layout="constrained")
    for axis, (name, ids_BT) in zip(axes, parts.items(), strict=True):
        is_padding_BT = ((ids_BT == 0) | (ids_BT == IGNORE_INDEX)).float().numpy()
        axis.pcolormesh(is_padding_BT, cmap="Greys", vmin=0, vmax=4, edgecolors="white")
        for row, ids_T in enumerate(ids_BT.tolist()):
            for column, token in enumerate(ids_T):
                text = "-100" if token == IGNORE_INDEX else pieces[token].replace("▁", "")
                axis.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7)
        axis.invert_yaxis()
        axis.set(title=name, xticks=[], yticks=[], xlim=(0, max(map(len, ids.src_BS)) + 1))
        axis.set_frame_on(False)
    return figure


def positions(names: dict[str, Names]) -> Figure:
    positions_TD = sinusoidal_positions(0, 100, 64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.imshow(positions_TD.numpy(), cmap="RdBu", aspect="auto", interpolation="nearest")
    left.set(title="positional encodings", xlabel="dimension", ylabel="position")
    for start, color in ((0, BLUE), (50, ORANGE)):
        products_T = (positions_TD @ positions_TD[start]).tolist()
        right.plot([t - start for t in range(100)], products_T, color=color, label=f"from {start}")
    right.set(title="dot product by distance", xlabel="distance", xlim=(-50, 50))
    right.legend(frameon=False)
    return figure


def masks(names: dict[str, Names]) -> Figure:
    torch.manual_seed(1)
    pad_11QM = padding_mask(torch.tensor([[9, 4, 8, 6, 3, 0, 0]]), 0).expand(1, 1, 7, 7)
    causal_11QM = causal_mask(7, 7, torch.device("cpu"))
    q_11QK, k_11MK = torch.randn(2, 1, 1, 7, 64)
    titles = ("padding mask", "causal mask", "weights, padding", "weights, causal")
    shown = [pad_11QM.float(), causal_11QM.float()]
    shown += [attention_weights(q_11QK, k_11MK, mask) for mask in (pad_11QM, causal_11QM)]
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.5), layout="constrained")
    for axis, title, weights_11QM in zip(axes, titles, shown, strict=True):
        matrix(axis, weights_11QM[0, 0], title=title)
        axis.set(xticks=range(7), yticks=range(7), xlabel="memory")
    axes[0].set_ylabel("query")
    return figure


def scaling(names: dict[str, Names]) -> Figure:
    """The same measurements as in the text, for more sizes."""
    sizes = [2**i for i in range(10)]
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), layout="constrained")
    for label, color in (("plain", ORANGE), ("divided by √d_k", BLUE)):
        facts = []
        for d_k in sizes:
            torch.manual_seed(1)
            divisor = 1.0 if label == "plain" else math.sqrt(d_k)
            facts.append(names["attention"]["softmax_facts"](d_k, divisor))
        for axis, values in zip(axes, zip(*facts, strict=True), strict=True):
            axis.plot(sizes, values, "o-", color=color, label=label, markersize=3)
    titles = ("standard deviation of scores", "greatest weight", "norm of the gradient")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_xscale("log", base=2)
        axis.set(title=title, xlabel="size of the head, d_k")
    axes[0].legend(frameon=False)
    return figure


def model(names: dict[str, Names]) -> Figure:
    """The boxes of the encoder and of the decoder, from bottom to top."""
    figure, axis = plt.subplots(figsize=(8, 5.8), layout="constrained")
    axis.set(xlim=(0, 10), ylim=(0, 7.5))
    axis.axis("off")
    embed = "_embed: embedding · √D + positions"
    encoder = [embed, "MultiHeadAttention", "FeedForward", "encoder_norm"]
    decoder = [embed, "MultiHeadAttention, causal_mask", "MultiHeadAttention, padding_mask"]
    decoder += ["FeedForward", "decoder_norm", "projection → logits_BTV"]
    for x, side, parts in ((0.2, "src_BS", encoder), (5.4, "tgt_in_BT", decoder)):
        layer, inside = ("EncoderLayer", parts[1:3]) if x < 1 else ("DecoderLayer", parts[1:4])
        axis.text(x + 2.2, 0.15, side, ha="center", family="monospace")
        top = 1.6 + 1.2 * len(inside)
        frame = FancyBboxPatch((x - 0.1, 1.75), 4.6, top - 1.75, boxstyle="round,pad=0.05")
        frame.set(facecolor="#eef3f9", edgecolor=GREY)
        axis.add_patch(frame)
        axis.text(x + 4.4, top - 0.18, f"{layer} × N", ha="right", fontsize=8, color="#555555")
        for i, part in enumerate(parts):
            y = 0.6 + 1.2 * i
            label = f"Residual: {part}" if part in inside else part
            box(axis, x + 0.1, y, label, ORANGE if "Attention" in part else BLUE)
            arrow(axis, (x + 2.2, y - 0.25), (x + 2.2, y))
    arrow(axis, (4.5, 4.55), (5.45, 3.4))
    axis.text(4.6, 4.6, "Memory", fontsize=8)
    return figure


def label_smoothing(names: dict[str, Names]) -> Figure:
    """The loss of a token against its probability, the rest being spread evenly."""
    vocabulary = 1_100
    shares = [i / 2000 for i in range(40, 2000)]
    figure, axis = plt.subplots(figsize=(5, 3), layout="constrained")
    for epsilon, color in ((0.0, ORANGE), (0.1, BLUE)):
        rest = epsilon / vocabulary
        losses = [
            -(1 - epsilon + rest) * math.log(p)
            - (vocabulary - 1) * rest * math.log((1 - p) / (vocabulary - 1))
            for p in shares
        ]
        axis.plot(shares, losses, color=color, label=f"label smoothing {epsilon}")
    axis.set(xlabel="probability of the right token", ylabel="loss in nats", ylim=(0, 4))
    axis.legend(frameon=False)
    return figure


def schedules(names: dict[str, Names]) -> Figure:
    steps, plan = range(1, 10_001, 20), Plan(10_000, 1_000)
    figure, axis = plt.subplots(figsize=(6, 3), layout="constrained")
    for name, share in SCHEDULES.items():
        axis.plot(steps, [share(step, plan) for step in steps], label=name)
    axis.set(xlabel="step", ylabel="share of training.lr", title="1,000 updates of warm-up")
    axis.legend(frameon=False)
    return figure


def cache(names: dict[str, Names]) -> Figure:
    """What a target of 50 tokens costs, with a source of 25: counts, not times."""
    steps = range(1, 51)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained")
    without = [sum(25 + t for t in range(1, step + 1)) for step in steps]
    left.plot(steps, without, color=ORANGE, label="without cache")
    left.plot(steps, [25 + step for step in steps], color=BLUE, label="with cache")
    left.set(title="positions computed so far", xlabel="step")
    for name, layers, d_model, color in (("base", 6, 512, BLUE), ("quickstart", 2, 128, ORANGE)):
        per_position = 2 * layers * d_model * 4 / 1024
        right.plot(steps, [per_position * (25 + step) for step in steps], color=color, label=name)
    right.set(title="KiB of keys and values for a hypothesis, fp32", xlabel="step")
    left.legend(frameon=False)
    right.legend(frameon=False)
    return figure


def reversal_attention(names: dict[str, Names]) -> Figure:
    page = names["looking"]
    letters = page["LETTERS"]
    src, labels = (
        [letters[token - 4] if token >= 4 else "EOS" for token in ids_BT[0].tolist()]
        for ids_BT in (page["test"].src_BS, page["test"].labels_BT)
    )
    figure, axis = plt.subplots(figsize=(3.2, 3.2), layout="constrained")
    matrix(axis, page["cross_BTS"][0], title="one sentence")
    label(axis, src, labels)
    return figure


def matrix(axis: Axes, weights_QM: Tensor, title: str) -> None:
    """Draw weights between 0 and 1, a row for each query."""
    axis.imshow(weights_QM.numpy(), cmap=LIGHT_TO_BLUE, vmin=0, vmax=1, interpolation="nearest")
    axis.set_title(title, fontsize=9)
    axis.tick_params(labelsize=7)


def label(axis: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    axis.set_xticks(range(len(columns)), columns, rotation=60 if len(max(columns)) > 1 else 0)
    axis.set_yticks(range(len(rows)), rows)


def box(axis: Axes, x: float, y: float, text: str, color: str) -> None:
    axis.add_patch(
        FancyBboxPatch((x, y), 4.2, 0.7, boxstyle="round,pad=0.02", ec=color, fc="white")
    )
    axis.text(x + 2.1, y + 0.35, text, ha="center", va="center", fontsize=7.5)


def arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axis.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#555555"})


FIGURES: dict[str, Callable[[dict[str, Names]], Figure]] = {
    "batch.png": batch,
    "positions.png": positions,
    "masks.svg": masks,
    "scaling.svg": scaling,
    "model.svg": model,
    "label_smoothing.svg": label_smoothing,
    "schedules.svg": schedules,
    "cache.svg": cache,
    "reversal_attention.png": reversal_attention,
}

if __name__ == "__main__":
    main()
