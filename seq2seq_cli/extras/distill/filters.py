"""Which translations of the teacher the student learns from."""

import itertools
import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seq2seq_cli.extras.clean import rules
from seq2seq_cli.extras.distill.stages import Facts, written
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.io import raw_lines
from seq2seq_cli.text.leakage import source_hash
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

_SHORTEST_COPY = 4  # words; names and numbers are often their own translation
_AT_ONCE = 5_000  # lines; the first ones say what length ratio is usual

_RULES = {
    "empty": rules.RULES["empty"].rejects,
    "copy of the source": lambda batch: (
        rules.is_copy(batch) & (batch.src.words_N >= _SHORTEST_COPY)
    ),
    "repetition": lambda batch: (
        rules.is_repetitive(batch, batch.tgt) & ~rules.is_repetitive(batch, batch.src)
    ),
    "length ratio": rules.is_ratio_outlier,
}
RULES = ("kept", *_RULES, "known pair", "in the validation text", "worst scores")


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


def read_translations(source: Path, parts: Sequence[Path]) -> Iterator[Translated]:
    """Yield the lines of the source with their translations, from n-best lists of one."""
    translations = itertools.chain.from_iterable(map(raw_lines, parts))
    rows = zip(raw_lines(source), translations, strict=True)
    for number, (line, raw) in enumerate(rows):
        first, _, rest = raw.decode("utf-8").partition(" ||| ")
        text, log_prob, _ = rest.rsplit(" ||| ", 2)
        assert int(first) == number, "the records of all parts were compared"
        yield Translated(json.loads(line), text, float(log_prob.removeprefix("log_prob= ")))


def hash_of_pair(src: str, tgt: str) -> int:
    """Return a hash of this process, which white space does not change."""
    return hash((" ".join(src.split()), " ".join(tgt.split())))


class Seen(NamedTuple):
    """What may not be made again: `hash_of_pair`s, and `source_hash`es of translations."""

    pairs: Set[int] = frozenset()
    translations: Set[int] = frozenset()


NOTHING = Seen()


def judge(
    lines: Iterator[Translated], tgt: Tokenizer, filters: Filters, seen: Seen = NOTHING
) -> npt.NDArray[np.int8]:
    """Return the number of the rule in `RULES` for each line.

    The score of a translation is its log-probability, divided by its number of tokens with EOS.
    """
    limits = rules.Limits(max_ratio=filters.max_length_ratio, max_similarity=1.0)
    table = [rules.Rule(name, rejects) for name, rejects in _RULES.items()]
    characters, profile = rules.Characters(), None
    verdicts, scores = array("b"), array("f")
    while chunk := list(itertools.islice(lines, _AT_ONCE)):
        pairs = [
            Pair(line["src"], text, features=line.get("features", "")) for line, text, _ in chunk
        ]
        profile = profile or rules.profile_of(pairs, characters)
        batch = rules.Batch(pairs, characters, limits, profile)
        is_known = [hash_of_pair(pair.src, pair.tgt) in seen.pairs for pair in pairs]
        is_held_out = [source_hash(Pair(pair.tgt, "")) in seen.translations for pair in pairs]
        found = rules.judge(batch, table)
        found[(found == 0) & np.array(is_known)] = RULES.index("known pair")
        found[(found == 0) & np.array(is_held_out)] = RULES.index("in the validation text")
        verdicts.extend(found.tolist())
        ids = tgt.to_ids_batch([line.text for line in chunk])
        scores.extend(line.log_prob / (len(row) + 1) for line, row in zip(chunk, ids, strict=True))
    rules_L = np.array(verdicts, np.int8)
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
    seen: Seen,
    *,
    has_features: bool,
    tag: str | None,
) -> tuple[list[Path], Facts]:
    """Write the pairs to learn from, a file for each tag, and the others; return files and facts.

    `tag` is the tag of sources that have none.
    """
    rules_L = judge(read_translations(source, parts), tgt, filters, seen)
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
    corpora = [{"file": name, "tag": of_file} for of_file, name in names.items()]
    kept = len(rules_L) - dropped.total()
    files = [folder / name for name in (*writers, "rejected.jsonl")]
    facts = {"dropped": dict(dropped), "corpora": corpora, "features": has_features}
    return files, {"pairs": kept, **facts}
