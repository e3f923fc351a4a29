"""Validation: when it is due, what it scores and keeps, and what ends a run.

The main process scores the model, and all processes count the result.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tensorboard.compat.proto.summary_pb2 import Summary

from seq2seq_cli import plugins
from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.console import counted
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import HeldOut, Scores, evaluate
from seq2seq_cli.model.weights import read_facts, read_model_scores
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.averaging import with_weights
from seq2seq_cli.training.checkpoints.checkpoint import Saver, record_score
from seq2seq_cli.training.logging.metrics_log import Monitor, log_window
from seq2seq_cli.training.oom import is_out_of_memory
from seq2seq_cli.training.plan import hours_to_finish, limit_of_updates
from seq2seq_cli.training.run import Run
from seq2seq_cli.training.signals import StopRequest
from seq2seq_cli.weight_file import read_weight_file

logger = logging.getLogger(__name__)

_NEARLY_DONE = 0.95  # of the decay, after which the rest of a schedule changes little


class Validation(NamedTuple):
    """What the main process has found of a model."""

    scores: Scores
    general: Scores | None  # on `data.general`
    plots: Sequence[Summary] | None = None  # of attention

    def general_score(self, metric: Metric) -> float | None:
        return None if self.general is None else self.general.metrics()[metric]


def validate(run: Run, monitor: Monitor | None, saver: Saver) -> None:
    """Score the model on the validation data in the main process, and keep it if it is best.

    It has the weights that are evaluated, an EMA for example, only while it is scored.
    """

    def in_main() -> Validation:
        with with_weights(run.gathered.model, run.gathered.evaluated):
            found = score_model(run)
            # The attention of a model whose loss is NaN or infinite says nothing.
            if run.config.validation.attention and math.isfinite(found.scores.loss):
                plot = plugins.load("inspect", "attention_plots").plot_attention
                with evaluation_of(run, run.data.valid) as (translator, held_out):
                    found = found._replace(plots=plot(translator, held_out.pairs))
            return found

    run.parallel.gather_weights(run)
    found = run.parallel.in_main(in_main)
    is_kept, has_forgotten = count_validation(run, found)
    if is_finished(run) and run.state.window.seconds:  # the last updates, as patience is over
        log_window(run, monitor, {})
    if monitor is not None and found is not None:
        log_validation(run, monitor, found, has_forgotten=has_forgotten)
    metrics = {} if found is None else found.scores.metrics()
    saver.record_validation(metrics, is_kept=is_kept, is_end=is_finished(run))


def count_validation(run: Run, found: Validation | None) -> tuple[bool, bool]:
    """Count a validation in all processes; return whether its model is kept, and if it `forgets`.

    Only the main process has `found` the scores.
    """
    state, metric = run.state, run.config.validation.metric
    own: tuple[float, float, float | None] = math.nan, math.nan, None
    if found is not None:
        scores = found.scores
        own = scores.metrics()[metric], scores.loss, found.general_score(metric)
    score, loss, general = run.parallel.broadcast(own)
    if state.general_before is None:
        state.general_before = general
    has_forgotten = forgets(run, general)
    state.validation_seconds = run.count_seconds()
    is_kept = record_score(run, math.nan if has_forgotten else score, loss)
    state.awaits_validation, state.validated_step = False, state.step
    return is_kept, has_forgotten


def log_validation(run: Run, monitor: Monitor, found: Validation, *, has_forgotten: bool) -> None:
    """Log scores, samples and plots; after the last validation, also the issues of its lines."""
    state, scores = run.state, found.scores
    monitor.validation_point(state.step, scores, state.best_step == state.step)
    if found.general is not None:
        monitor.general_point(state.step, found.general, has_forgotten=has_forgotten)
    if scores.hypotheses and run.config.validation.samples:
        monitor.samples(state.step, scores, run.config.validation.samples)
    if found.plots is not None:
        monitor.plots(state.step, found.plots)
    if is_finished(run):
        scores.issues.report()


def score_model(run: Run) -> Validation:
    """Evaluate the model as it is on the validation data and, if there is any, `data.general`.

    Raises UserError when out of memory.
    """

    def on(text: HeldOut | None) -> Scores:
        with evaluation_of(run, text) as (translator, held_out):
            return evaluate(translator, held_out, decode=run.config.validation.decode)

    general = run.data.general
    return Validation(on(run.data.valid), None if general is None else on(general))


def forgets(run: Run, general: float | None) -> bool:
    """Return True if a score on `data.general` is worse than before training, beyond tolerance."""
    before, validation = run.state.general_before, run.config.validation
    if general is None or before is None:
        return False
    worse_by = before - general if METRICS[validation.metric].higher_is_better else general - before
    return not worse_by <= validation.general_tolerance  # also if it is NaN


def score_candidate(run: Run, stop: StopRequest) -> Scores:
    """Score the model as it is, for the comparison at the end; raise Interrupted after a signal.

    Nothing is lost then: the comparison starts over with the same command.
    """
    stop.check("stopped while comparing models; the same command compares them again")
    found = score_model(run)
    general = found.general_score(run.config.validation.metric)
    if forgets(run, general):
        logger.info(f"a candidate is not chosen: its score on data.general is {general:.3f}")
        return replace(found.scores, loss=math.nan)  # which no chosen model has
    return found.scores


@contextmanager
def evaluation_of(run: Run, held_out: HeldOut | None) -> Iterator[tuple[Translator, HeldOut]]:
    """Yield a translator with the model as it is, and held-out data of the run.

    Uses the threads of all processes, and says what to do when out of memory.
    """
    data = run.data
    assert held_out is not None, "the main process has read it"
    try:
        with run.parallel.all_threads():
            model, tokenizers = run.gathered.model, data.tokenizers
            yield Translator(model, tokenizers, run.config, statistics=data.statistics), held_out
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        facts = held_out.store.facts
        raise UserError(
            f"step {run.state.step:,}: out of memory in the validation, whose longest lines have "
            f"{facts.src.longest:,} source and {facts.tgt.longest:,} target tokens; lower "
            "decoding.tokens_per_batch, which may change in a run; the same "
            "command resumes from the last checkpoint"
        ) from None


def is_finished(run: Run) -> bool:
    """Return True after the last update and its validation, or when early stopping triggers."""
    if run.state.awaits_validation:
        return False
    patience = run.config.validation.patience
    has_lost_patience = patience is not None and run.state.validations_without_best >= patience
    return limit_reached(run) is not None or has_lost_patience


def limit_reached(run: Run) -> str | None:
    """Return the option that makes this update the last one, if it is."""
    training, state = run.config.training, run.state
    if state.step >= run.total_steps:
        return limit_of_updates(training, state.plan)
    is_over = training.max_hours is not None and state.seconds / 3_600 >= training.max_hours
    return "max_hours" if is_over else None


def validation_is_due(run: Run) -> bool:
    """Return True at the end of every n-th epoch, or after every n-th update."""
    validation, state = run.config.validation, run.state
    if validation.unit == "steps":
        return state.step % validation.interval == 0
    return state.position == 0 and (state.epoch - 1) % validation.interval == 0


def end_line(folder: RunFolder, run: Run) -> str:
    """Say why the run ended, which model it kept, and how to finish if the time limit cut it off.

    It is not cut off if the learning rate has all but fallen to 0.
    """
    state, plan, limit = run.state, run.state.plan, limit_reached(run)
    falls = run.config.training.schedule in ("cosine", "linear")
    is_done = state.step >= plan.total or (falls and plan.decay(state.step) > _NEARLY_DONE)
    is_cut_off = limit == "max_hours" and not is_done
    why = f"training.{limit} reached" if limit else "no better score within validation.patience"
    ended = f"finished after {counted(state.step, 'update')} ({why})"
    if is_cut_off:
        why += " before the learning rate fell to 0" if falls else ""
        ended = f"stopped after {state.step:,} of {plan.total:,} updates ({why})"
    has_model = state.best_step is not None or run.config.data.valid is None
    if has_model or folder.model.exists():
        try:
            read_weight_file(folder.model)  # all of it, not only its header
            kept = f": {folder.model} is {_which_model(folder.model, run)}"
        except (UserError, OSError) as error:
            kept = f"; {error}; put it back, or use --model last"
    else:
        kept = f"; no validation gave a finite score, so that there is no {folder.model}"
    if is_cut_off:
        hours = f"--set training.max_hours={hours_to_finish(run):g}"
        kept += f"; to finish: the same command with {hours}"
    return ended + kept


def _which_model(path: Path, run: Run) -> str:
    """Describe the run's model and its scores, from the facts in its file."""
    metric, validated = run.config.validation.metric, read_model_scores(path)
    name, scores = str(read_facts(path).get("model", "best")), validated.scores if validated else {}
    which = f"the {name}"
    if name.startswith("step "):
        which = "the last" if run.config.data.valid is None else f"the best, of {name}"
    if metric in scores and "loss" in scores:
        which += f", with validation {metric} {scores[metric]:.3f}"
        which += "" if metric == "loss" else f" and loss {scores['loss']:.3f}"
    return which
