"""`seq2seq check`: checks text and config before training."""

import collections
import functools
import logging
import math
import statistics
from pathlib import Path

import torch

from seq2seq_cli import plugins
from seq2seq_cli.commands.check.audit import TextAudit, audit_text
from seq2seq_cli.commands.check.report import BatchShape, LongestBatches, Report, TimeEstimate
from seq2seq_cli.commands.dry_run import dry_run, peak_memory_mb, timed_update
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import SUBWORDS
from seq2seq_cli.model.transformer import build_model
from seq2seq_cli.native.model_code import is_edited
from seq2seq_cli.text.corpus import CorpusCounts, count_pairs
from seq2seq_cli.text.leakage import LineHashes, Overlap
from seq2seq_cli.tokenizers.vocabulary import audit_vocabulary
from seq2seq_cli.training.logging.summary import summarize, summary_json
from seq2seq_cli.training.plan import validation_interval
from seq2seq_cli.training.run import Run
from seq2seq_cli.training.setup import validation_cost

logger = logging.getLogger(__name__)

_MAX_UPDATES = 10  # to time
_MAX_SECONDS = 3.0


def check(config: Config, test: ParallelText | None, source: Path | None = None) -> Report | None:
    """Make some updates of a temporary run, and audit the text of the config and `test`.

    The run starts from the one in the folder `source`, if given.
    Returns None in all processes of torchrun but the main one. Raises UserError for errors that
    would stop training.
    """
    if test is not None:  # which is audited last
        collections.deque(count_pairs(test, config.data.on_bad_line, CorpusCounts()), maxlen=0)
    return dry_run(functools.partial(_check, test), config, source)


def _check(test: ParallelText | None, run: Run) -> Report | None:
    parallel = run.parallel
    logger.info("timing updates, on the longest batches and on typical ones")
    longest_batches = _run_longest_batches(run)
    pace = time_updates(run)
    parallel.barrier()
    if not parallel.is_main:
        return None
    logger.info("auditing the text")
    data, tokenizers = run.config.data, run.data.tokenizers
    texts: dict[str, TextAudit] = {}
    hashes: dict[str, LineHashes] = {}
    overlap: dict[str, Overlap] = {}
    given = run.config.texts
    if test is not None:
        given["test"] = test.with_tag(run.config.decoding.tag)
    for name, text in given.items():
        texts[name], own = audit_text(text, tokenizers, data, like=texts.get("train"))
        overlap |= {f"{name} in {other}": own.found_in(hashes[other]) for other in hashes}
        hashes[name] = own
    store, settings = run.data.train, run.config.tokenizer.with_symbols(run.config.train_text.tags)
    src, tgt = store.src.counts(len(tokenizers.src)), store.tgt.counts(len(tokenizers.tgt))
    sides = {"source vocabulary": (tokenizers.src, src), "target vocabulary": (tokenizers.tgt, tgt)}
    if tokenizers.is_shared:
        sides = {"vocabulary": (tokenizers.src, src + tgt)}
    vocabularies = {
        name: audit_vocabulary(tokenizer, counts.tolist(), settings.user_defined_symbols)
        for name, (tokenizer, counts) in sides.items()
        if tokenizer.kind in SUBWORDS and settings.reuse is None
    }
    edited = build_model(run.config.model, tokenizers).eval() if is_edited() else None
    return Report(
        summary=summarize(run),
        run=summary_json(run),
        vocabularies=vocabularies,
        max_length=data.max_length,
        texts=texts,
        overlap=overlap,
        longest_batches=longest_batches,
        time=pace,
        exports=plugins.load("export", "limits").exports(run.config, tokenizers, edited),
    )


def _run_longest_batches(run: Run) -> LongestBatches:
    """Make whole updates, as the optimizer state also takes memory."""
    device, parallel = run.device, run.parallel
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = peak_memory_mb(device)
    shapes, seconds = [], []
    for batch in run.data.batches.first_buffer().largest_batches():
        seconds.append(timed_update(run, [batch] * run.config.training.gradient_accumulation))
        shapes.append(BatchShape(len(batch.src_BS), batch.src_BS.size(1), batch.labels_BT.size(1)))
    peak = peak_memory_mb(device)
    over_processes = parallel.all_reduce_max if device.type == "cuda" else parallel.all_reduce_sum
    return LongestBatches(shapes, max(seconds), over_processes(peak), over_processes(peak - before))


def time_updates(run: Run) -> TimeEstimate:
    """Make some updates, and estimate the duration of the run from them."""
    timed_update(run)  # a warm-up, which is not timed
    seconds: list[float] = []
    all_reduce_max = run.parallel.all_reduce_max
    while len(seconds) < _MAX_UPDATES and all_reduce_max(sum(seconds)) < _MAX_SECONDS:
        seconds.append(timed_update(run))
    mean, data = statistics.mean(seconds), run.data
    validation = 0.0  # seconds
    if data.valid is not None:
        validation = validation_cost(run.config, data) * mean * run.updates_per_epoch
    interval = validation_interval(run)
    limit = math.inf if (hours := run.config.training.max_hours) is None else hours * 3_600
    updates = min(run.total_steps, limit / (mean + validation / interval))
    validations = math.ceil(updates / interval)
    return TimeEstimate(
        updates=len(seconds),
        seconds_per_update=mean,
        seconds_per_epoch=mean * run.updates_per_epoch,
        validations=validations,
        seconds_of_validations=validations * validation,
        seconds_to_the_end=min(limit, mean * updates + validations * validation),
    )
