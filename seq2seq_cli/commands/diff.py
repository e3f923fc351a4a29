"""`seq2seq diff`: compares two runs."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seq2seq_cli import plugins
from seq2seq_cli.config.loader import differing_options, load_config, yaml_text
from seq2seq_cli.config.metrics import with_current_names
from seq2seq_cli.model.weights import read_tensors
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import tokenizer_hashes
from seq2seq_cli.training.checkpoints.checkpoint import read_state
from seq2seq_cli.training.checkpoints.manifest import continuations, read_manifest

# Scalars that say how a run went, not what it learned; the last part of their names.
_CIRCUMSTANCES = {"tokens_per_second", "seconds", "waiting", "communication", "processes", "starts"}
_TIMINGS = {"seconds", "updating", "validation_seconds", "window.seconds", "plan.pace"}
_RESULTS = ("weights", "progress", "metrics")
_ENVIRONMENT = ("device", "threads", "processes", "python", "seq2seq_cli", "model_code", "git")


class Difference(NamedTuple):
    """One item that differs between two runs."""

    kind: str  # option, data, tokenizer, version, device, git, weights, progress, metrics, ...
    name: str
    first: Any = None
    second: Any = None
    note: str = ""  # instead of two values

    def __str__(self) -> str:
        shown = [
            value if isinstance(value, str) else "none" if value is None else yaml_text(value)
            for value in (self.first, self.second)
        ]
        name = f"{self.name}: " if self.name else ""
        return f"{self.kind:<12} {name}{self.note or ' | '.join(shown)}"


def differing_results(first_dir: Path, second_dir: Path) -> list[Difference]:
    """Return the differences in the results of training: weights, progress, metrics."""
    return [d for d in compare_runs(first_dir, second_dir) if d.kind in _RESULTS]


def compare_runs(first_dir: Path, second_dir: Path) -> list[Difference]:
    """Return all differences; for weights their distance, for metrics the first step that differs.

    Raises UserError if one of the folders is not a run folder or is damaged.
    """
    first, second = RunFolder(first_dir), RunFolder(second_dir)
    for run in (first, second):
        run.ensure_is_run()
    configs = load_config(first.config), load_config(second.config)
    options = differing_options(*configs)
    found = [Difference("option", name, *values) for name, values in options.items()]
    manifests = read_manifest(first), read_manifest(second)
    found += _compare_values("data", *(manifest["data"] for manifest in manifests))
    tokenizers = zip((first, second), (config.tokenizer for config in configs), strict=True)
    found += _compare_values("tokenizer", *(tokenizer_hashes(*each) for each in tokenizers))
    found += _compare_values("from", *({"": manifest.get("from")} for manifest in manifests))
    for kind, name in (("package", "packages"), *((name, name) for name in _ENVIRONMENT)):
        found += _compare_values(kind, *(_history(manifest, name) for manifest in manifests))
    found += _compare_tensors("best model", first.model, second.model)
    for name, file in {"last model": "weights", "EMA": "ema", "optimizer": "optimizer"}.items():
        stems = [(run.last_checkpoint or run.checkpoints) / file for run in (first, second)]
        both = (s if s.is_dir() else s.with_suffix(".safetensors") for s in stems)  # of shards
        found += _compare_tensors(name, *both)
    found += _compare_values("progress", _progress(first), _progress(second))
    return [*found, *_compare_metrics(first, second)]


def _compare_values(
    kind: str, first: dict[str, Any], second: dict[str, Any]
) -> Iterator[Difference]:
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield Difference(kind, name, first.get(name), second.get(name))


def _history(manifest: dict[str, Any], name: str) -> dict[str, str]:
    """Return the values at the start of the run, followed by those that changed on resuming."""
    histories: dict[str, list[str]] = {}
    for entry in (manifest, *continuations(manifest)):
        values = entry.get(name)
        for key, value in (values if isinstance(values, dict) else {"": values}).items():
            histories.setdefault(key, []).append("not recorded" if value is None else str(value))
    return {
        key: ", then ".join(value for value, _ in itertools.groupby(values))
        for key, values in histories.items()
    }


def _compare_tensors(name: str, first: Path, second: Path) -> Iterator[Difference]:
    """Compare two files, or folders of shards, bit by bit."""

    def bits(tensor: Tensor) -> Tensor:
        return tensor.flatten().view(torch.uint8)

    exists = ["present" if path.exists() else "missing" for path in (first, second)]
    if "missing" in exists:
        if exists[0] != exists[1]:  # most runs have no EMA
            yield Difference("weights", name, *exists)
        return
    a, b = (
        plugins.load("shard", "optimizer_shards").read_whole(p)
        if p.name == "optimizer"
        else read_tensors(p)
        for p in (first, second)
    )
    shapes = [{n: (t.dtype, t.shape) for n, t in tensors.items()} for tensors in (a, b)]
    if reshaped := sorted(d.name for d in _compare_values("weights", *shapes)):
        yield Difference(
            "weights", name, note=f"different names or shapes: {', '.join(reshaped[:3])}"
        )
    elif unequal := [n for n in a if not bits(a[n]).equal(bits(b[n]))]:
        greatest, where = max((float((a[n] - b[n]).abs().max()), n) for n in unequal)
        note = f"greatest absolute difference {greatest:.3g}, in {where}"
        yield Difference("weights", name, note=note)


def _progress(run: RunFolder) -> dict[str, Any]:
    """Return the state in the last checkpoint without timings, by names such as plan.total."""

    def flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
        if hasattr(value, "_asdict"):
            value = value._asdict()
        if isinstance(value, list) and (not value or hasattr(value[0], "_asdict")):
            value = {str(number): part for number, part in enumerate(value, 1)}
        if not isinstance(value, dict):
            yield name, value
            return
        for key, part in value.items():
            yield from flat(f"{name}.{key}" if name else key, part)

    if run.last_checkpoint is None:
        return {}
    state = flat("", asdict(read_state(run.last_checkpoint)))
    return {name: value for name, value in state if name not in _TIMINGS}


def _compare_metrics(first: RunFolder, second: RunFolder) -> Iterator[Difference]:
    """Return the differences at the first logged step that differs, except timings."""
    missing: dict[str, str] = {}
    for a, b in itertools.zip_longest(_points(first), _points(second), fillvalue=missing):
        step = a.get("step", b.get("step"))
        if not (a and b):
            yield Difference("metrics", f"step {step}", note="logged in only one run")
            return
        if differences := list(_compare_values("metrics", a, b)):
            yield from (d._replace(name=f"{d.name} at step {step}") for d in differences)
            return


def _points(run: RunFolder) -> Iterator[dict[str, str]]:
    """Yield the entries of metrics.jsonl, with numbers as text, so that NaN equals itself."""
    for point in run.metrics_points():
        yield {
            name: str(value)
            for name, value in with_current_names(point).items()
            if not (name.startswith("train/") and name.rpartition("/")[2] in _CIRCUMSTANCES)
        }
