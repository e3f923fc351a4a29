"""Writes studies of attention to files: a page, figures, JSON and NPZ; and describes them as text.

L layers, H heads, Q query positions, M memory positions, T target positions.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from seq2seq_cli.console import printable
from seq2seq_cli.decoding.output_formats import pharaoh
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.inspect.attention_figure import FigureOptions, draw_attention
from seq2seq_cli.extras.inspect.attention_page import attention_page, rounded
from seq2seq_cli.extras.inspect.attention_study import KINDS, AttentionStudy
from seq2seq_cli.extras.plot.figures import check_output_paths, figure_bytes, is_figure

_NORM_AXES = ("layer", "head", "memory")
_HEAD_AXES = ("layer", "head")
_RANK_AXES = ("token", "alternative")


def check_outputs(paths: Sequence[Path], figure: FigureOptions) -> None:
    """Raise UserError for a file that cannot be written, or options of a figure without one."""
    check_output_paths(paths, (".html", ".png", ".svg", ".json", ".npz"))
    if figure != FigureOptions() and not any(map(is_figure, paths)):
        raise UserError(
            "--kind, --layer, --head, --view and --words choose what a figure shows: give --output "
            "with a name in .png or .svg"
        )


def files_of(
    path: Path, studies: Sequence[AttentionStudy], figure: FigureOptions
) -> dict[Path, bytes]:
    """Return the content of each file of studies, in the format that the suffix names.

    A page and a JSON file hold all studies. An NPZ file or a figure holds one: several are
    numbered, `attention.1.npz`, `attention.2.npz`, and so on.
    """
    suffix = path.suffix.lower()
    if suffix == ".html":
        return {path: attention_page(studies).encode()}
    if suffix == ".json":
        report = {"studies": [study_as_json(study) for study in studies]}
        text = f"{json.dumps(report, ensure_ascii=False, allow_nan=False)}\n"
        return {path: text.encode()}
    files = {}
    for number, study in enumerate(studies, 1):
        numbered = path.with_suffix(f".{number}{path.suffix}") if len(studies) > 1 else path
        if suffix == ".npz":
            file = io.BytesIO()
            np.savez_compressed(file, **study_as_arrays(study))  # type: ignore[arg-type]
            files[numbered] = file.getvalue()
        else:
            files[numbered] = figure_bytes(draw_attention(study, figure), suffix)
    return files


def attention_text(study: AttentionStudy) -> str:
    """Describe a study as printable text: both sentences, and the predictions of the tokens."""
    rows = [("token", "probability", "entropy", "most probable other token")]
    for prediction in study.predictions:
        alternative = "".join(
            f"{printable(token)} {share:.1%}" for token, share in prediction.alternatives[:1]
        )
        share, entropy = f"{prediction.probability:.1%}", f"{prediction.entropy:.2f}"
        rows.append((printable(prediction.token), share, entropy, alternative))
    width = max(len(row[0]) for row in rows)
    table = [f"  {row[0]:<{width}}  {row[1]:>11}  {row[2]:>7}  {row[3]}" for row in rows]
    source, target = printable(study.source.text), printable(study.target.text)
    heading = [f"{source}  ({printable(study.run)})", f"  → {target}"]
    summary = f"  log-probability {study.log_prob:.3f}; aligned words {pharaoh(study.alignment)}"
    return "\n".join([*heading, summary, "", *table])


def study_as_json(study: AttentionStudy) -> dict[str, Any]:
    """Return a study for JSON: arrays, rounded to six digits, with the names of their axes."""
    report: dict[str, Any] = {
        "run": study.run,
        "source": asdict(study.source),
        "target": asdict(study.target),
        "log_prob": study.log_prob,
        "alignment": study.alignment,
        "predictions": [asdict(prediction) for prediction in study.predictions],
        "attention": {
            kind: {
                "queries": maps.queries,
                "memory": maps.memory,
                "weights": _array(maps.weights_LHQM, ("layer", "head", "query", "memory")),
                "value_norms": _array(maps.value_norms_LHM, _NORM_AXES),
            }
            for kind in KINDS
            for maps in [study.maps(kind)]
        },
    }
    if study.head_statistics is not None:
        report["head_statistics"] = {
            kind: {name: _array(values, _HEAD_AXES) for name, values in heads.measured().items()}
            for kind, heads in study.head_statistics.items()
        }
    return report


def _array(values: Tensor, axes: Sequence[str]) -> dict[str, Any]:
    return {"axes": axes, "values": rounded(values, 6)}


def study_as_arrays(study: AttentionStudy) -> dict[str, npt.NDArray[Any]]:
    """Return a study as arrays; for each `X` that is not a scalar, `X_axes` names its axes.

    The three arrays of weights and the two of tokens are the arguments of BertViz's functions. As
    there, the decoder's tokens are its input, and the layers are batches of one sentence.
    """
    predictions = study.predictions
    ranked = [prediction.alternatives for prediction in predictions]
    alignment = np.array(study.alignment, dtype=np.int64).reshape(-1, 2)
    arrays: dict[str, tuple[Any, Sequence[str]]] = {
        "run": (study.run, ()),
        "encoder_tokens": (study.encoder.memory, ("token",)),
        "decoder_tokens": (study.decoder.memory, ("token",)),
        "predicted_tokens": (study.target.tokens, ("token",)),
        "probability": ([prediction.probability for prediction in predictions], ("token",)),
        "prediction_entropy": ([prediction.entropy for prediction in predictions], ("token",)),
        "alternatives": ([[token for token, _ in row] for row in ranked], _RANK_AXES),
        "alternative_probability": ([[share for _, share in row] for row in ranked], _RANK_AXES),
        "alignment": (alignment, ("link", "side")),
    }
    for side, sentence in (("source", study.source), ("target", study.target)):
        word_of_token = [-1 if word is None else word for word in sentence.word_of_token]
        arrays[side] = sentence.text, ()
        arrays[f"{side}_words"] = np.array(sentence.words, dtype=np.str_), ("word",)
        arrays[f"{side}_word_of_token"] = word_of_token, ("token",)
    for kind in KINDS:
        maps = study.maps(kind)
        weights = maps.weights_LHQM[:, None]
        arrays[f"{kind}_attention"] = weights, ("layer", "batch", "head", "query", "memory")
        arrays[f"{kind}_value_norms"] = maps.value_norms_LHM, _NORM_AXES
    for kind, heads in (study.head_statistics or {}).items():
        for name, values in heads.measured().items():
            arrays[f"{kind}_{name}"] = values, _HEAD_AXES
    return {name: np.asarray(values) for name, (values, _) in arrays.items()} | {
        f"{name}_axes": np.asarray(axes) for name, (_, axes) in arrays.items() if axes
    }
