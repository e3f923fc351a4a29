"""Which translations of the teacher the student learns from."""

import itertools
import json
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.distill.stages import Facts, written
from seq2seq_cli.text.io import raw_lines
from seq2seq_cli.text.leakage import normalized
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

KEPT = "kept"
RULES = (KEPT, "empty", "copy of the source", "repetition", "length ratio", "worst scores")
_SHORTEST_COPY = 4  # words; names and numbers are often their own translation
_SMOOTHING = 10  # characters on both sides: ratios of short lines vary more
_AT_ONCE = 1_000  # lines

# Up to eight characters eight times in a row, or up to four words four times.
_REPETITION = re.compile(r"(\S.{0,7}?)\1{7}|(?<!\S)((?:\S+ ){1,4}?)\2{3}")


@dataclass(frozen=True)
class Filters:
    """Thresholds of the rules."""

    max_length_ratio: float  # times the median ratio of characters, or its inverse
    drop_worst: float  # percent of the translations that all other rules keep


class Translated(NamedTuple):
    """A source, its tag and features, and the translation with its log-probability."""

    source: dict[str, str]
    text: str
    log_prob: float


def is_repetitive(text: str) -> bool:
    """Return True if the same characters or words occur many times in a row."""
    return _REPETITION.search(" ".join(text.split()) + " ") is not None


def fault_of(src: str, tgt: str) -> str:
    """Return the rule that a translation breaks on its own, or `KEPT`."""
    if not tgt.strip():
        return "empty"
    if len(src.split()) >= _SHORTEST_COPY and normalized(src) == normalized(tgt):
        return "copy of the source"
    if is_repetitive(tgt) and not is_repetitive(src):
        return "repetition"
    return KEPT


def length_ratio(src: str, tgt: str) -> float:
    """Return the smoothed ratio of characters of target and source."""
    return (len(tgt) + _SMOOTHING) / (len(src) + _SMOOTHING)


def read_translations(source: Path, parts: Sequence[Path]) -> Iterator[Translated]:
    """Yield the lines of the source with their translations, from n-best lists of one."""
    translations = itertools.chain.from_iterable(map(raw_lines, parts))
    rows = zip(raw_lines(source), translations, strict=True)
    for number, (line, raw) in enumerate(rows):
        first, _, rest = raw.decode("utf-8").partition(" ||| ")
        text, log_prob, _ = rest.rsplit(" ||| ", 2)
        assert int(first) == number, "the records of all parts were compared"
        yield Translated(json.loads(line), text, float(log_prob.removeprefix("log_prob= ")))


def judge(lines: Iterator[Translated], tgt: Tokenizer, filters: Filters) -> npt.NDArray[np.int8]:
    """Return the number of the rule in `RULES` for each line.

    The score of a translation is its log-probability, divided by its number of tokens with EOS.
    """
    rules, ratios, scores = array("b"), array("f"), array("f")
    while chunk := list(itertools.islice(lines, _AT_ONCE)):
        for line, ids in zip(chunk, tgt.to_ids_batch([each.text for each in chunk]), strict=True):
            src = line.source["src"]
            rules.append(RULES.index(fault_of(src, line.text)))
            ratios.append(length_ratio(src, line.text))
            scores.append(line.log_prob / (len(ids) + 1))
    rules_L, ratios_L = np.array(rules, np.int8), np.asarray(ratios, np.float32)
    if not (rules_L == 0).any():
        return rules_L
    off_L = np.abs(np.log(ratios_L / np.median(ratios_L[rules_L == 0])))
    rules_L[(rules_L == 0) & (off_L > np.log(filters.max_length_ratio))] = RULES.index(
        "length ratio"
    )
    (left,) = np.nonzero(rules_L == 0)
    by_score = left[np.argsort(np.asarray(scores, np.float32)[left], kind="stable")]
    rules_L[by_score[: int(len(left) * filters.drop_worst / 100)]] = RULES.index("worst scores")
    return rules_L


def filter_pairs(
    source: Path,
    parts: Sequence[Path],
    folder: Path,
    tgt: Tokenizer,
    filters: Filters,
    *,
    has_features: bool,
    tag: str | None,
) -> tuple[list[Path], Facts]:
    """Write the pairs to learn from, a file for each tag, and the others; return files and facts.

    `tag` is the tag of sources that have none. Raises UserError if no pair is left.
    """
    rules_L = judge(read_translations(source, parts), tgt, filters)
    dropped = Counter(RULES[rule] for rule in rules_L[rules_L != 0].tolist())
    names: dict[str | None, str] = {}
    writers: dict[str, Any] = {}
    with ExitStack() as stack:
        reject = stack.enter_context(written(folder / "rejected.jsonl"))
        rows = zip(read_translations(source, parts), rules_L.tolist(), strict=True)
        for (line, text, log_prob), rule in rows:
            pair = {"src": line["src"], "tgt": text}
            pair |= {"features": line.get("features", "")} if has_features else {}
            if rule:
                reject({"rule": RULES[rule], **pair, "log_prob": log_prob})
                continue
            of_line = line.get("tag", tag)
            name = names.setdefault(of_line, f"pairs{f'-{len(names) + 1}' * bool(names)}.jsonl")
            if name not in writers:
                writers[name] = stack.enter_context(written(folder / name))
            writers[name](pair)
    if not writers:
        raise UserError(f"no translations are left to learn from; {folder} has them by rule")
    corpora = [{"file": name, "tag": of_file} for of_file, name in names.items()]
    kept = len(rules_L) - dropped.total()
    files = [folder / name for name in (*writers, "rejected.jsonl")]
    facts = {"dropped": dict(dropped), "corpora": corpora, "features": has_features}
    return files, {"pairs": kept, **facts}
