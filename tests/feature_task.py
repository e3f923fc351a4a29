"""Digits whose names are in the language that a feature says, and a run that translates them."""

from pathlib import Path

from commands import Command
from number_languages import in_german
from number_task import FAST, number_pairs, numbers_config, write_config


def write_rows(path: Path, count: int, seed: int) -> dict[str, object]:
    """Write rows such as `3 1`, `NUM;DE`, `drei eins`; return them as the corpus of a config."""
    rows = []
    for digits, names in number_pairs(count, seed):
        rows.append(f"{digits}\tNUM;EN\t{names}")
        rows.append(f"{digits}\tNUM;DE\t{in_german(names)}")
    path.write_text("".join(f"{row}\n" for row in rows))
    return {"pairs": str(path), "fields": [1, 3], "features": 2}


def train_with_features(folder: Path, seq2seq: Command) -> Path:
    """Write the text and the config `numbers.yaml`, train, and return the run folder."""
    config = numbers_config(folder, **FAST, max_steps=200)
    config["data"] = {
        name: write_rows(folder / f"{name}.tsv", count, seed)
        for seed, (name, count) in enumerate({"train": 1_500, "valid": 30}.items())
    }
    result = seq2seq("train", write_config(folder, config), "--run-dir", folder / "run").ok()
    assert "word, 3 of them features" in result.stderr
    return folder / "run"
