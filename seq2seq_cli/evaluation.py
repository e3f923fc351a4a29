"""Scores a model on parallel text, for validation during training and for `eval`.

B sentences, T target positions, R rows of them, V target vocabulary.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import DataConfig, ParallelText
from seq2seq_cli.console import counted
from seq2seq_cli.data.batch_plan import Indices, bucket_by_length
from seq2seq_cli.data.batches import IGNORE_INDEX, make_batch
from seq2seq_cli.data.token_store import TokenStore, open_store
from seq2seq_cli.decoding.engines.base import mean_of_probabilities
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.requests import NotFiniteError, not_finite
from seq2seq_cli.decoding.translator import LONGEST_PAIR, Translator, check_features
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import read_json
from seq2seq_cli.metrics.breakdowns import NO_TEXT, Translated
from seq2seq_cli.metrics.metrics import Scoring, TextScore, score_text
from seq2seq_cli.metrics.references import Texts, group_by_source, references_of
from seq2seq_cli.model.packing import Packed
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import CorpusCounts, Pair, hash_of_files, readable_pairs
from seq2seq_cli.tokenizers.tokenizer import Tokenizers

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1_024  # of logits: all of a batch may not fit into memory


@dataclass(frozen=True)
class HeldOut:
    """Held-out text: all of it but the lines that cannot be read."""

    pairs: list[Pair]
    numbers: list[int]  # of their lines, from 1
    store: TokenStore
    scored: Indices  # the pairs that are not too long for computing the loss
    counts: CorpusCounts | None = None  # of a text that a run watches

    @property
    def num_too_long(self) -> int:
        return len(self.pairs) - len(self.scored)


def read_held_out(
    text: ParallelText, tokenizers: Tokenizers, data: DataConfig, counts: CorpusCounts | None = None
) -> HeldOut:
    """Read a text, and warn of pairs too long for the loss; UserError if none is short enough."""
    numbered = list(readable_pairs(text, data.on_bad_line))
    pairs = [pair for _, pair in numbered]
    store = open_store(text, tokenizers, data.on_bad_line)
    limit = LONGEST_PAIR * data.max_length
    num_tokens = np.maximum(store.src.lengths(), store.tgt.lengths()) - 1  # without EOS
    is_scored = num_tokens <= limit
    if not is_scored.any():
        raise UserError(
            f"no pairs to score in {text.name}: all have more than {limit:,} tokens, "
            f"{LONGEST_PAIR} times data.max_length"
        )
    if not is_scored.all():
        logger.warning(
            f"{text.name}: loss, perplexity and accuracy exclude {(~is_scored).sum():,} of "
            f"{len(pairs):,} pairs, which have more than {limit:,} tokens ({LONGEST_PAIR} times "
            f"data.max_length); the first is pair {is_scored.argmin() + 1:,}"
        )
    numbers = [number for number, _ in numbered]
    return HeldOut(pairs, numbers, store, is_scored.nonzero()[0].astype(np.int32), counts)


@dataclass(frozen=True)
class Scores:
    """Scores of the references under the model and, if there are any, of its translations."""

    loss: float  # nats per target token, EOS included, without label smoothing
    accuracy: float  # percentage of target tokens predicted correctly under teacher forcing
    num_tokens: int
    num_lines: int
    num_too_long: int  # lines that loss, accuracy and num_tokens exclude
    text: Mapping[Metric, TextScore] = field(default_factory=dict)
    translated: Translated = NO_TEXT
    num_normalized: int = 0  # references that tokenizer.normalization has changed
    issues: Issues = field(default_factory=Issues)

    @property
    def hypotheses(self) -> Texts:
        return self.translated.hypotheses

    @property
    def num_sources(self) -> int:
        """How many sources were translated: fewer than lines if references were merged."""
        return len(self.translated.sources)

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    def metrics(self) -> dict[Metric, float]:
        """Return every score by its name in `validation.metric` and in the logs."""
        metrics = {"loss": self.loss, "perplexity": self.perplexity, "accuracy": self.accuracy}
        return metrics | {name: score.value for name, score in self.text.items()}

    def table(self) -> str:
        """Return the output of `eval`."""
        signatures = self._signatures()
        intervals = {
            n: f" ± {s.interval.half_width:.4f}" for n, s in self.text.items() if s.interval
        }
        width = max(map(len, intervals.values()), default=0)
        names = max(12, *map(len, self.metrics()))
        rows = [
            f"{name:<{names}} {value:>9.4f}{intervals.get(name, ''):<{width}}  "
            f"{signatures.get(name, METRICS[name].unit)}"
            for name, value in self.metrics().items()
        ]
        if self.num_too_long:
            note = "lines that loss, perplexity and accuracy exclude"
            rows.append(f"{'too_long':<{names}} {self.num_too_long:>9,}  {note}")
        if self.issues.at_length_limit:
            note = "translations that ended at the length limit and may be incomplete"
            rows.append(f"{'at_limit':<{names}} {self.issues.at_length_limit:>9,}  {note}")
        if 0 < self.num_sources < self.num_lines:
            rows.append(f"{'sources':<{names}} {self.num_sources:,}, on {self.num_lines:,} lines")
        if self.num_normalized:
            changed = f"{self.num_normalized:,} of {self.num_lines:,}"
            rows.append(f"{'references':<{names}} {changed} changed by tokenizer.normalization")
        return "\n".join(rows)

    def report(self) -> dict[str, Any]:
        """Return the output of `eval --json`."""
        report: dict[str, Any] = {
            **{str(name): value for name, value in self.metrics().items()},
            "num_lines": self.num_lines,
            "num_tokens": self.num_tokens,
            "num_too_long": self.num_too_long,
        }
        if self.text:
            report["num_sources"] = self.num_sources
            report["num_normalized_references"] = self.num_normalized
            report["num_cut_lines"] = self.issues.lines
            report["num_sentences_in_parts"] = self.issues.long_sentences
            report["num_at_length_limit"] = self.issues.at_length_limit
        for name, score in self.text.items():
            report |= score.report(name)
        return report | {f"{name}_signature": text for name, text in self._signatures().items()}

    def _signatures(self) -> dict[Metric, str]:
        return {name: score.signature for name, score in self.text.items() if score.signature}


def evaluate_corpus(
    translator: Translator, text: ParallelText, *, decode: bool, scoring: Scoring
) -> Scores:
    """Score a run on a text; UserError if no pair can be scored, or if the loss is not finite."""
    config = translator.config
    text = text.with_tag(config.decoding.tag)
    held_out = read_held_out(text, translator.tokenizers, config.data)
    check_features(held_out.pairs, translator.tokenizers, text.name)
    if num_tagged := sum(translator.begins_with_tag(pair.src) for pair in held_out.pairs):
        logger.warning(
            f"{text.name}: {counted(num_tagged, 'source')} with a tag in the text, which loss, "
            "perplexity and accuracy take for words; leave it out, and give --tag"
        )
    scores = evaluate(translator, held_out, decode=decode, scoring=scoring)
    if not math.isfinite(scores.loss):
        raise not_finite()
    scores.issues.report()
    return scores


def located(text: ParallelText, run_dir: Path) -> ParallelText | None:
    """Return a run's text where it is: from this folder, or from one that the run's folder is in.

    The text that the run was trained with is preferred; other text is returned with a warning. None
    if a file is in neither. Raises UserError if a file has no counterpart, wherever it is.
    """
    hashes = _hashes_of_training(run_dir)
    others: list[ParallelText] = []
    mistakes: list[UserError] = []
    for folder in (Path(), *(p for p in run_dir.resolve().parents if p != Path.cwd())):
        found = text.in_folder(folder)
        try:
            files = found.files
        except UserError as error:
            mistakes.append(error)
            continue
        if all(path.is_file() for path in files):  # a foreign config may name a device
            if not hashes or hash_of_files(files) in hashes:
                return found
            others.append(found)
    if others:
        logger.warning(
            f"{others[0].name} has changed since {run_dir} was trained, or is another text"
        )
        return others[0]
    if mistakes:
        raise mistakes[0]
    return None


def _hashes_of_training(run_dir: Path) -> set[str]:
    """Return the hashes of the texts that a run was trained with; none if that is not known."""
    try:
        return {*read_json(RunFolder(run_dir).members()[0].manifest)["data"].values()}
    except (UserError, OSError, KeyError, TypeError, AttributeError):
        return set()


def valid_text(config: Config, run_dir: Path, tag: str | None = None) -> ParallelText:
    """Return the validation text of a run, or its corpora with this tag.

    Corpora without one have `decoding.tag`: the run's own, if it has one, not one that was given
    for the translation. Raises UserError if there is none, or no longer.
    """
    own = load_config(RunFolder(run_dir).members()[0].config).decoding.tag if tag else None
    text = (config.updated(decoding={"tag": own}) if own else config).valid_text
    if text is None:
        raise UserError("the run has no validation text: give --src and --ref, or --pairs")
    found = located(text, run_dir)
    if found is None:
        raise UserError(
            f"the run's validation text ({text.name}) was not found in {Path.cwd()} or in a folder "
            "that the run is in; go to the folder in which it was trained, or give other text as "
            "--src and --ref"
        )
    if tag is not None and not (found := found.of_tag(tag)).corpora:
        raise UserError(
            f"{run_dir} has no validation text with the tag {tag}: give --src and --ref, or --pairs"
        )
    return found


def training_targets(translator: Translator, run_dir: Path) -> Iterator[str] | None:
    """Yield the target lines of training, normalized; None if there is no text, or no longer."""
    config = translator.config
    if not config.data.train:
        logger.warning("no scores by training frequency: the run was not trained here")
        return None
    text = located(config.train_text, run_dir)
    if text is None:
        logger.warning(
            f"no scores by training frequency: the training text ({config.train_text.name}) was "
            f"not found in {Path.cwd()} or in a folder that the run is in"
        )
        return None
    normalize = translator.tokenizers.tgt.normalize
    return (normalize(pair.tgt) for _, pair in readable_pairs(text, config.data.on_bad_line))


def evaluate(
    translator: Translator, held_out: HeldOut, *, decode: bool, scoring: Scoring | None = None
) -> Scores:
    """Score the references under the model and, with `decode`, its translations against them.

    References are normalized like the target text in training, as translations are. In public test
    sets they are not, so that scores can be compared with published ones. The loss of a model that
    computes NaN or infinity is NaN or infinite, and its translations may be empty.
    """
    scoring = scoring or Scoring.of_run(translator.config)
    issues: list[Issues] = []
    pairs = held_out.pairs if decode else []
    groups = group_by_source(pairs, merge=scoring.merge_references)
    firsts = [pairs[group[0]] for group in groups]
    for model in translator.models:
        model.eval()  # an update sets the mode of training again
    try:
        loss, correct, num_tokens = _score_references(translator, held_out)
        hypotheses = translator.translate_pairs(firsts, issues.append) if decode else []
    except NotFiniteError:
        loss, hypotheses = math.nan, [""] * len(firsts)
    raw = [pair.tgt for pair in pairs]
    normalize = translator.tokenizers.tgt.normalize
    targets = raw if scoring.test_set else [normalize(target) for target in raw]
    references = references_of(targets, groups)
    if decode and scoring.test_set:
        references = list(scoring.test_set.read_references())
    numbers = [held_out.numbers[group[0]] for group in groups]
    return Scores(
        loss=loss / num_tokens,
        accuracy=100 * correct / num_tokens,
        num_tokens=num_tokens,
        num_lines=len(held_out.pairs),
        num_too_long=held_out.num_too_long,
        text=score_text(hypotheses, references, scoring),
        translated=Translated(
            [pair.source_line for pair in firsts], hypotheses, references, numbers
        ),
        num_normalized=sum(
            before.split() != after.split() for before, after in zip(raw, targets, strict=True)
        ),
        issues=sum(issues, Issues()),
    )


@torch.inference_mode()
def _score_references(translator: Translator, held_out: HeldOut) -> tuple[float, int, int]:
    """Return the summed loss in nats, the correctly predicted tokens, and all tokens."""
    loss, correct, num_tokens = 0.0, 0, 0
    models, store, scored = translator.models, held_out.store, held_out.scored
    config = translator.config
    budget = min(config.training.batch_budget, config.decoding.tokens_per_batch)
    plan = bucket_by_length(store.src.lengths()[scored], store.tgt.lengths()[scored], budget)
    for indices in plan:
        batch = make_batch(store, scored[indices]).to(models[0].device)
        hidden = [m.forward_hidden(batch.src_BS, batch.tgt_in_BT, Packed) for m in models]
        labels_BT = hidden[0][1].pack_ids(batch.labels_BT, IGNORE_INDEX)
        packed = (labels_BT, *(states_BTD for states_BTD, _ in hidden))
        rows = (torch.split(x.flatten(0, 1), _ROWS_AT_ONCE) for x in packed)
        for labels_R, *states in zip(*rows, strict=True):
            logits = [m.projection(x_RD) for m, x_RD in zip(models, states, strict=True)]
            logits_RV = mean_of_probabilities(logits)
            loss += float(
                F.cross_entropy(logits_RV, labels_R, ignore_index=IGNORE_INDEX, reduction="sum")
            )
            correct += int((logits_RV.argmax(dim=-1) == labels_R).sum())
        num_tokens += batch.num_tokens
    return loss, correct, num_tokens
