"""The source text of a distillation: which of its lines are translated."""

from array import array
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np

from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.extras.distill.stages import Facts, written
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.features import TAB
from seq2seq_cli.text.io import lines_to_translate
from seq2seq_cli.text.leakage import source_hash

LONGEST = 1_000  # characters; longer lines are rarely one sentence


def clean_source(
    job: Job, path: Path, target: Path, *, has_features: bool, held_out: Set[int]
) -> Facts:
    """Write the lines to translate, as JSON, each once; return how many there were and are.

    `held_out` are `source_hash`es of text that the student must not see. Two passes keep memory at
    some bytes per line.
    """
    hashes, dropped = array("q"), Counter[str]()
    for line in _read(job, path, has_features):
        hashes.append(_hash_of(line))
    is_first = np.zeros(len(hashes), np.bool_)
    is_first[np.unique(np.asarray(hashes, np.int64), return_index=True)[1]] = True
    with written(target) as write:
        for line, is_new in zip(_read(job, path, has_features), is_first, strict=True):
            if (rule := _fault_of(line, bool(is_new), held_out)) is not None:
                dropped[rule] += 1
                continue
            extra = {"tag": line.tag, "features": line.features}
            write({"src": line.text} | {name: value for name, value in extra.items() if value})
    return {"lines": len(hashes), "kept": len(hashes) - dropped.total(), "dropped": dict(dropped)}


def _read(job: Job, path: Path, has_features: bool) -> Iterator[TranslationInput]:
    """Yield the lines with single spaces; features are apart from the text."""
    for number, raw in enumerate(lines_to_translate(path)):
        line = job.parse(number, raw)
        text, features = line.text, line.features
        if has_features and not features:
            text, _, features = text.partition(TAB)
        yield TranslationInput(" ".join(text.split()), tag=line.tag, features=features.strip())


def _hash_of(line: TranslationInput) -> int:
    return hash((line.tag, _source_hash(line)))


def _source_hash(line: TranslationInput) -> int:
    return source_hash(Pair(line.text, "", features=line.features))


def _fault_of(line: TranslationInput, is_new: bool, held_out: Set[int]) -> str | None:
    """Return the rule by which a line is not translated, if any."""
    if not line.text:
        return "empty"
    if "\ufffd" in line.text:
        return "not valid UTF-8"
    if len(line.text) > LONGEST:
        return f"longer than {LONGEST:,} characters"
    if not is_new:
        return "duplicate"
    return "in the validation text" if _source_hash(line) in held_out else None
