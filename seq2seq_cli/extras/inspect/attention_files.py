"""Writes studies of attention to files: a page, figures, JSON and NPZ; and describes them as text.

L layers, H heads, Q query positions, M memory positions, T target positions.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.console import printable
from seq2seq_cli.decoding.output_formats import pharaoh
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.inspect.attention_collector import KINDS
from seq2seq_cli.extras.inspect.attention_figure import check_choice, draw_attention
from seq2seq_cli.extras.inspect.attention_page import attention_page
from seq2seq_cli.extras.inspect.attention_study import AttentionMaps, AttentionStudy, Sentence
from seq2seq_cli.extras.inspect.attention_views import Kind, View, maps_of
from seq2seq_cli.extras.plot.figure_files import check_output_paths, figure_bytes, is_figure
from seq2seq_cli.files import write_atomic

_WEIGHT_AXES = ("layer", "head", "query", "memory")
_NORM_AXES = ("layer", "head", "memory")
_HEAD_AXES = ("layer", "head")
_RIVAL_AXES = ("token", "rival")


@dataclass(frozen=True)
class FigureOptions:
    """What a figure shows; layers and heads count from 1, as in `draw_attention`."""

    kind: Kind = "cross"
    layer: int | None = None
    head: int | None = None
    view: View = "weights"
    by_words: bool = False

    def check(self, model: ModelConfig) -> None:
        """Raise UserError for a layer or head that the model does not have."""
        layers = model.layers.encoder if self.kind == "encoder" else model.layers.decoder
        check_choice(self.layer, self.head, layers, model.heads)


def check_outputs(paths: Sequence[Path], figure: FigureOptions) -> None:
    """Raise UserError for a file that cannot be written, and for what it takes to draw."""
    check_output_paths(paths, list(_WRITERS))
    if figure != FigureOptions() and not any(map(is_figure, paths)):
        raise UserError(
            "--kind, --layer, --head, --view and --words choose what a figure shows: give --output "
            "with a name in .png or .svg"
        )


def write_studies(
    path: Path, studies: Sequence[AttentionStudy], figure: FigureOptions
) -> list[Path]:
    """Write studies in the format that the suffix names; return the files.

    A page and a JSON file hold all studies. An NPZ file or a figure holds one: several are
    numbered, `attention.1.npz`, `attention.2.npz`, and so on.
    """
    suffix = path.suffix.lower()
    write = _WRITERS[suffix]
    if suffix in (".html", ".json") or len(studies) == 1:
        write_atomic(path, write(studies, figure))
        return [path]
    paths = [path.with_suffix(f".{n}{path.suffix}") for n in range(1, len(studies) + 1)]
    for numbered, study in zip(paths, studies, strict=True):
        write_atomic(numbered, write([study], figure))
    return paths


def attention_text(study: AttentionStudy) -> str:
    """Describe a study: both sentences, and what the model predicts for each token.

    Unprintable characters are escaped, as they may control the terminal.
    """
    rows = [("token", "probability", "entropy", "most probable other token")]
    for prediction in study.predictions:
        rival = "  ".join(
            f"{printable(token)} {share:.1%}" for token, share in prediction.rivals[:1]
        )
        share, entropy = f"{prediction.probability:.1%}", f"{prediction.entropy:.2f}"
        rows.append((printable(prediction.token), share, entropy, rival))
    width = max(len(row[0]) for row in rows)
    table = [f"  {row[0]:<{width}}  {row[1]:>11}  {row[2]:>7}  {row[3]}" for row in rows]
    source, target = printable(study.source.text), printable(study.target.text)
    heading = [f"{source}  ({printable(study.run)})", f"  → {target}"]
    summary = f"  log-probability {study.log_prob:.3f}; aligned words {pharaoh(study.alignment)}"
    return "\n".join([*heading, summary, "", *table])


def study_as_json(study: AttentionStudy) -> dict[str, Any]:
    """Return a study as JSON has it: every array beside the names of its axes.

    Numbers are rounded to six digits.
    """
    report: dict[str, Any] = {
        "run": study.run,
        "source": asdict(study.source),
        "target": asdict(study.target),
        "log_prob": study.log_prob,
        "alignment": study.alignment,
        "predictions": [asdict(prediction) for prediction in study.predictions],
        "attention": {kind: _maps_as_json(maps_of(study, kind)) for kind in KINDS},
    }
    if study.head_facts is not None:
        report["head_facts"] = {
            kind: {name: _array(values, _HEAD_AXES) for name, values in _facts(study, kind).items()}
            for kind in KINDS
        }
    return report


def _maps_as_json(maps: AttentionMaps) -> dict[str, Any]:
    return {
        "queries": maps.queries,
        "memory": maps.memory,
        "weights": _array(maps.weights_LHQM, _WEIGHT_AXES),
        "value_norms": _array(maps.value_norms_LHM, _NORM_AXES),
    }


def _array(values: Tensor, axes: Sequence[str]) -> dict[str, Any]:
    def rounded(value: Any) -> Any:
        return list(map(rounded, value)) if isinstance(value, list) else float(f"{value:.6g}")

    return {"axes": axes, "values": rounded(values.tolist())}


def _facts(study: AttentionStudy, kind: Kind) -> dict[str, Tensor]:
    """Return the facts that are known about the heads of a kind, without axes in their names."""
    assert study.head_facts is not None
    facts = study.head_facts[kind]
    values = {field.name.removesuffix("_LH"): getattr(facts, field.name) for field in fields(facts)}
    return {name: value for name, value in values.items() if value is not None}


def study_as_arrays(study: AttentionStudy) -> dict[str, npt.NDArray[Any]]:
    """Return a study as arrays; for each `X` that is not a scalar, `X_axes` names its axes.

    The three arrays of weights and the two of tokens are the arguments of BertViz's functions. As
    there, the decoder's tokens are those of its input, and the layers are batches of one sentence.
    """
    predictions = study.predictions
    rivals = [prediction.rivals for prediction in predictions]
    alignment = np.array(study.alignment, dtype=np.int64).reshape(-1, 2)
    arrays: dict[str, tuple[Any, Sequence[str]]] = {
        "run": (study.run, ()),
        "encoder_tokens": (study.encoder.memory, ("token",)),
        "decoder_tokens": (study.decoder.memory, ("token",)),
        "predicted_tokens": (study.target.tokens, ("token",)),
        "probability": ([prediction.probability for prediction in predictions], ("token",)),
        "prediction_entropy": ([prediction.entropy for prediction in predictions], ("token",)),
        "rivals": ([[token for token, _ in row] for row in rivals], _RIVAL_AXES),
        "rival_probability": ([[share for _, share in row] for row in rivals], _RIVAL_AXES),
        "alignment": (alignment, ("link", "side")),
        **_sentence_arrays("source", study.source),
        **_sentence_arrays("target", study.target),
    }
    for kind in KINDS:
        maps = maps_of(study, kind)
        weights = maps.weights_LHQM[:, None]
        arrays[f"{kind}_attention"] = weights, ("layer", "batch", "head", "query", "memory")
        arrays[f"{kind}_value_norms"] = maps.value_norms_LHM, _NORM_AXES
        for name, values in _facts(study, kind).items() if study.head_facts is not None else ():
            arrays[f"{kind}_{name}"] = values, _HEAD_AXES
    return {name: np.asarray(values) for name, (values, _) in arrays.items()} | {
        f"{name}_axes": np.asarray(axes) for name, (_, axes) in arrays.items() if axes
    }


def _sentence_arrays(
    side: Literal["source", "target"], sentence: Sentence
) -> dict[str, tuple[Any, Sequence[str]]]:
    word_of_token = [-1 if word is None else word for word in sentence.word_of_token]
    return {
        side: (sentence.text, ()),
        f"{side}_words": (np.array(sentence.words, dtype=np.str_), ("word",)),
        f"{side}_word_of_token": (word_of_token, ("token",)),
    }


def _page(studies: Sequence[AttentionStudy], figure: FigureOptions) -> bytes:
    return attention_page(studies).encode()


def _json(studies: Sequence[AttentionStudy], figure: FigureOptions) -> bytes:
    report = {"studies": [study_as_json(study) for study in studies]}
    return f"{json.dumps(report, ensure_ascii=False, allow_nan=False)}\n".encode()


def _npz(studies: Sequence[AttentionStudy], figure: FigureOptions) -> bytes:
    (study,) = studies
    file = io.BytesIO()
    np.savez_compressed(file, **study_as_arrays(study))  # type: ignore[arg-type]
    return file.getvalue()


def _png(studies: Sequence[AttentionStudy], figure: FigureOptions) -> bytes:
    return figure_bytes(draw_attention(studies[0], **vars(figure)), "png")


def _svg(studies: Sequence[AttentionStudy], figure: FigureOptions) -> bytes:
    return figure_bytes(draw_attention(studies[0], **vars(figure)), "svg")


_WRITERS: dict[str, Callable[[Sequence[AttentionStudy], FigureOptions], bytes]] = {
    ".html": _page,
    ".png": _png,
    ".svg": _svg,
    ".json": _json,
    ".npz": _npz,
}
