"""The source text of a distillation: which of its lines are translated."""

import itertools
from collections import Counter
from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np

from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.decoding.translation import TranslationInput, naming_line
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.clean.seen_hashes import SeenHashes
from seq2seq_cli.extras.distill.stages import Facts, written
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.features import TAB
from seq2seq_cli.text.io import lines_to_translate
from seq2seq_cli.text.leakage import source_hash

LONGEST = 1_000  # characters; longer lines are rarely one sentence
_AT_ONCE = 5_000  # lines


def clean_source(
    job: Job, path: Path, target: Path, *, has_features: bool, held_out: Set[int]
) -> Facts:
    """Write the lines to translate, as JSON, each once; return how many there were and are.

    `held_out` are `source_hash`es of text that the student must not see.
    """
    lines, seen = _read(job, path, has_features), SeenHashes()
    num_lines, dropped = 0, Counter[str]()
    with written(target) as write:
        while chunk := list(itertools.islice(lines, _AT_ONCE)):
            num_lines += len(chunk)
            known = [hash((line.tag, _source_hash(line))) for line in chunk]
            hashes = np.array(known, np.int64).view(np.uint64)
            for line, is_repeat in zip(chunk, seen.add(hashes).tolist(), strict=True):
                if (rule := _fault_of(line, is_repeat, held_out)) is not None:
                    dropped[rule] += 1
                    continue
                extra = {"tag": line.tag, "features": line.features}
                write({"src": line.text} | {name: value for name, value in extra.items() if value})
    return {"lines": num_lines, "kept": num_lines - dropped.total(), "dropped": dict(dropped)}


def _read(job: Job, path: Path, has_features: bool) -> Iterator[TranslationInput]:
    """Yield the lines with single spaces; features are apart from the text."""
    for number, raw in enumerate(lines_to_translate(path)):
        line = job.parse(number, raw)
        if line.prefix or line.required:
            with naming_line(number):
                raise UserError(
                    "a line to distill has src, tag and features: leave out prefix and required"
                )
        text, features = line.text, line.features
        if has_features and not features:
            text, _, features = text.partition(TAB)
        yield TranslationInput(" ".join(text.split()), tag=line.tag, features=features.strip())


def _source_hash(line: TranslationInput) -> int:
    return source_hash(Pair(line.text, "", features=line.features))


def _fault_of(line: TranslationInput, is_repeat: bool, held_out: Set[int]) -> str | None:
    """Return the rule by which a line is not translated, if any."""
    if not line.text:
        return "empty"
    if "\ufffd" in line.text:
        return "not valid UTF-8"
    if len(line.text) > LONGEST:
        return f"longer than {LONGEST:,} characters"
    if is_repeat:
        return "duplicate"
    return "in the validation text" if _source_hash(line) in held_out else None
