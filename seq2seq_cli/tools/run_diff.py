"""`seq2seq diff`: whether two runs are the same, and where they are not."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.config.loader import differing_options, load_config
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.weights import read_tensors
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoint import read_state
from seq2seq_cli.training.manifest import continuations, read_manifest

_TIMINGS = {"train/tokens_per_second"}
_RESULTS = ("weights", "progress", "metrics")
_ENVIRONMENT = ("from", "device", "threads", "processes", "python", "seq2seq_cli", "git")


class Difference(NamedTuple):
    """One thing that is not the same in two runs."""

    kind: str  # option, data, tokenizer, version, device, git, weights, progress, metrics, ...
    name: str
    one: Any = None
    other: Any = None
    note: str = ""  # instead of two values

    def line(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{self.kind:<12} {name}{self.note or f'{self.one} | {self.other}'}"


def differing_results(one_dir: Path, other_dir: Path) -> list[Difference]:
    """Only what training made: weights, progress, metrics."""
    return [d for d in differences(one_dir, other_dir) if d.kind in _RESULTS]


def differences(one_dir: Path, other_dir: Path) -> list[Difference]:
    """All of them; of weights how far apart they are, of metrics the first step.

    Raises UserError when one of the folders holds no run or a damaged one.
    """
    one, other = _opened(one_dir), _opened(other_dir)
    return [
        *_options(one, other),
        *_records(one, other),
        *_weights(one, other),
        *_progress(one, other),
        *_metrics(one, other),
    ]


def _opened(path: Path) -> RunFolder:
    run = RunFolder(path)
    run.ensure_is_run()
    return run


def _options(one: RunFolder, other: RunFolder) -> Iterator[Difference]:
    differing = differing_options(load_config(one.config), load_config(other.config))
    for name, values in differing.items():
        yield Difference("option", name, *values)


def _records(one: RunFolder, other: RunFolder) -> Iterator[Difference]:
    """What the manifests say of text, vocabulary, versions and machine."""
    manifests = read_manifest(one), read_manifest(other)
    for kind in ("data", "tokenizer"):
        yield from _differing(kind, *(_section(manifest, kind) for manifest in manifests))
    yield from _differing("package", *(_history(manifest, "packages") for manifest in manifests))
    for name in _ENVIRONMENT:
        yield from _differing(name, *(_history(manifest, name) for manifest in manifests))


def _section(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    found = manifest.get(name)
    return found if isinstance(found, dict) else {}


def _history(manifest: dict[str, Any], name: str) -> dict[str, str]:
    """What the run began with and, where that changed, what it was continued with."""
    found: dict[str, list[str]] = {}
    for part in (manifest, *continuations(manifest)):
        values = part.get(name)
        for key, value in (values if isinstance(values, dict) else {"": values}).items():
            found.setdefault(key, []).append(str(value))
    return {key: ", then ".join(k for k, _ in itertools.groupby(v)) for key, v in found.items()}


def _differing(kind: str, one: dict[str, Any], other: dict[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*one, *other]):
        if one.get(name) != other.get(name):
            yield Difference(kind, name, one.get(name), other.get(name))


def _weights(one: RunFolder, other: RunFolder) -> Iterator[Difference]:
    yield from _tensors("best model", one.model, other.model)
    for name, file in (("last model", "weights"), ("optimizer", "optimizer")):
        yield from _tensors(name, _in_last_checkpoint(one, file), _in_last_checkpoint(other, file))


def _in_last_checkpoint(run: RunFolder, name: str) -> Path:
    return (run.last_checkpoint or run.checkpoints) / f"{name}.safetensors"


def _tensors(name: str, one: Path, other: Path) -> Iterator[Difference]:
    """Equal means: to the last bit."""
    there = ["there" if path.is_file() else None for path in (one, other)]
    if None in there:
        yield from _differing("weights", {name: there[0]}, {name: there[1]})
        return
    mine, theirs = read_tensors(one), read_tensors(other)
    shapes, others = ({n: (t.dtype, t.shape) for n, t in part.items()} for part in (mine, theirs))
    if reshaped := sorted(n for n in shapes | others if shapes.get(n) != others.get(n)):
        yield Difference("weights", name, note=f"other names or shapes: {', '.join(reshaped[:3])}")
    elif unequal := [n for n in mine if not _same_bits(mine[n], theirs[n])]:
        greatest = max(float((mine[n] - theirs[n]).abs().max()) for n in unequal)
        yield Difference("weights", name, note=f"greatest absolute difference {greatest:.3g}")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.flatten().view(torch.uint8).equal(other.flatten().view(torch.uint8))


def _progress(one: RunFolder, other: RunFolder) -> Iterator[Difference]:
    """How far the last checkpoint is, and the best scores so far."""
    yield from _differing("progress", *(_state(run) for run in (one, other)))


def _state(run: RunFolder) -> dict[str, Any]:
    if run.last_checkpoint is None:
        return {}
    state = asdict(read_state(run.last_checkpoint))
    del state["seconds"], state["window"]["seconds"]
    return state


def _metrics(one: RunFolder, other: RunFolder) -> Iterator[Difference]:
    """Of the first logged point that is not the same: every number that is not, but for timings."""
    nothing: dict[str, str] = {}
    for mine, theirs in itertools.zip_longest(_points(one), _points(other), fillvalue=nothing):
        step = mine.get("step", theirs.get("step"))
        if not (mine and theirs):
            yield Difference("metrics", f"step {step}", note="logged in one run only")
            return
        if found := list(_differing("metrics", mine, theirs)):
            yield from (d._replace(name=f"{d.name} at step {step}") for d in found)
            return


def _points(run: RunFolder) -> Iterator[dict[str, str]]:
    """The points of metrics.jsonl, their numbers as text: so NaN equals itself."""
    for line in run.metrics_lines():
        try:
            point = json.loads(line)
            yield {name: str(value) for name, value in point.items() if name not in _TIMINGS}
        except (ValueError, AttributeError, RecursionError):
            raise UserError(f"{run.metrics} is damaged: {line[:40]!r} is not a point") from None
