"""Attention studies as one HTML file that needs nothing else: no network, no server.

L layers, H heads, Q query positions, M memory positions.
"""

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seq2seq_cli.extras.inspect.attention_figure import axes
from seq2seq_cli.extras.inspect.attention_study import KINDS, AttentionStudy

_DIGITS = 4  # significant ones, of probabilities and statistics


def attention_page(studies: Sequence[AttentionStudy]) -> str:
    """Return the HTML of a page that shows the studies side by side.

    A weight w is one byte, √w · 255, so that small weights keep their precision: the error is at
    most √w/255 + 1/510². The Content-Security-Policy allows the page its own script and style only,
    by their hashes.
    """
    described = [_described(study) for study in studies]
    maps = [study.maps(kind) for study in studies for kind in KINDS]
    numbers = b"".join(_weights(of_kind.weights_LHQM) for of_kind in maps)
    for of_kind in maps:  # the norms in bfloat16: as precise as the weights
        bits_LHM = of_kind.value_norms_LHM.bfloat16().view(torch.int16)
        numbers += bits_LHM.numpy().astype("<i2").tobytes()
    style, script = _read("attention_page.css"), _read("attention_page.js")
    filled = {
        "TITLE": html.escape(f"Attention: {studies[0].source.text}"),
        "POLICY": f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "STYLE": style,
        "STUDIES": json.dumps(
            described, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).replace("<", "\\u003c"),
        "NUMBERS": base64.b64encode(zlib.compress(numbers, 9)).decode("ascii"),
        "SCRIPT": script,
    }
    first, *parts = _read("attention_page.html").split("{{")
    names_and_rests = (part.split("}}", 1) for part in parts)
    return first + "".join(filled[name] + rest for name, rest in names_and_rests)


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"


def _described(study: AttentionStudy) -> dict[str, object]:
    """Return all of a study but its attention, for JSON."""
    return {
        "run": study.run,
        "source": {"text": study.source.text, "words": study.source.words},
        "target": {"text": study.target.text, "words": study.target.words},
        "logProb": study.log_prob,
        "predictions": rounded([asdict(each) for each in study.predictions], _DIGITS),
        "alignment": study.alignment,
        "maps": {
            kind: {
                "shape": list(study.maps(kind).weights_LHQM.shape),
                "queries": asdict(queries),
                "memory": asdict(memory),
            }
            for kind in KINDS
            for queries, memory in [axes(study, kind)]
        },
        "headStatistics": {
            kind: rounded(heads.measured(), _DIGITS)
            for kind, heads in (study.head_statistics or {}).items()
        },
    }


def rounded(value: Any, digits: int) -> Any:
    """Return lists, dicts and tensors with numbers rounded to so many significant digits."""
    if isinstance(value, Tensor):
        value = value.double().tolist()
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def _weights(weights_LHQM: Tensor) -> bytes:
    """Return the bytes of weights, row by row."""
    roots_LHQM = np.sqrt(np.clip(weights_LHQM.numpy(), 0, 1))
    return np.round(roots_LHQM * 255).astype(np.uint8).tobytes()
