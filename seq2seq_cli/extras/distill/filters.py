"""Which lines of the source are translated, and which translations the student learns from."""

import itertools
import json
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.decoding.translation import TranslationInput, naming_line
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.clean import rules
from seq2seq_cli.extras.clean.seen_hashes import SeenHashes
from seq2seq_cli.extras.distill.stages import Facts, written
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.features import TAB
from seq2seq_cli.text.io import lines_to_translate, raw_lines
from seq2seq_cli.text.leakage import source_hash
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

_SHORTEST_COPY = 4  # words; names and numbers are often their own translation
_AT_ONCE = 5_000  # lines; the first ones say what length ratio is usual
LONGEST = 1_000  # characters of a line to translate; longer ones are rarely one sentence

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


def clean_source(
    job: Job, path: Path, target: Path, *, has_features: bool, held_out: Set[int]
) -> Facts:
    """Write the lines to translate, as JSON, each once; return how many there were and are.

    `held_out` are `source_hash`es of text that the student must not see.
    """
    lines, seen = _read(job, path, has_features), SeenHashes()
    num_lines, with_features, dropped = 0, 0, Counter[str]()
    with written(target) as write:
        while chunk := list(itertools.islice(lines, _AT_ONCE)):
            num_lines += len(chunk)
            known = [hash((line.tag, _source_hash(line))) for line in chunk]
            hashes = np.array(known, np.int64).view(np.uint64)
            for line, is_repeat in zip(chunk, seen.add(hashes).tolist(), strict=True):
                if (rule := _fault_of(line, is_repeat, held_out)) is not None:
                    dropped[rule] += 1
                    continue
                with_features += bool(line.features)
                extra = {"tag": line.tag, "features": line.features}
                write({"src": line.text} | {name: value for name, value in extra.items() if value})
    kept = num_lines - dropped.total()
    facts = {"lines": num_lines, "kept": kept, "dropped": dict(dropped)}
    return facts | ({"with_features": with_features} if has_features else {})


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

    pairs: Set[int]
    translations: Set[int]


def judge(lines: Iterator[Translated], tgt: Tokenizer, filters: Filters, seen: Seen) -> list[int]:
    """Return the number of the rule in `RULES` for each line; scores are mean log-probabilities."""
    limits = rules.Limits(max_ratio=filters.max_length_ratio, max_similarity=1.0)
    table = [rules.Rule(name, rejects) for name, rejects in _RULES.items()]
    characters, profile = rules.Characters(), None
    verdicts, scores = array("b"), array("f")
    while chunk := list(itertools.islice(lines, _AT_ONCE)):
        pairs = [Pair(of["src"], text, features=of.get("features", "")) for of, text, _ in chunk]
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
    verdict_of_line: list[int] = rules_L.tolist()
    return verdict_of_line


def write_pairs(
    judged: Iterable[tuple[Translated, int]], folder: Path, tag: str | None, *, has_features: bool
) -> tuple[list[Path], Facts]:
    """Write lines by the number of their rule; return the files, one for each tag, and facts.

    Rejected lines have a file of their own. `tag` is for sources that have none.
    """
    dropped, kept = Counter[str](), 0
    rejected = folder / "rejected.jsonl"
    files: dict[str | None, Path] = {}
    writers: dict[str | None, Callable[[Any], None]] = {}
    with ExitStack() as stack:
        reject = stack.enter_context(written(rejected))
        for (line, text, log_prob), rule in judged:
            pair = {"src": line["src"], "tgt": text}
            pair |= {"features": line.get("features", "")} if has_features else {}
            if rule:
                dropped[RULES[rule]] += 1
                reject({"rule": RULES[rule], **pair, "log_prob": log_prob})
                continue
            kept += 1
            of_line = line.get("tag", tag)
            if of_line not in writers:
                files[of_line] = folder / f"pairs{f'-{len(files) + 1}' * bool(files)}.jsonl"
                writers[of_line] = stack.enter_context(written(files[of_line]))
            writers[of_line](pair)
    corpora = [{"file": path.name, "tag": of_file} for of_file, path in files.items()]
    facts = {"dropped": dict(dropped), "corpora": corpora, "features": has_features}
    return [*files.values(), rejected], {"pairs": kept, **facts}
