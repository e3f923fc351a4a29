"""train(): the story of a run, from text to the best model."""

import functools
import gc
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from torch import nn

from seq2seq_cli.config.schema import Config, TrainingConfig
from seq2seq_cli.data.batches import Batch, BatchSampler
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.evaluation import HeldOut, Scores, evaluate
from seq2seq_cli.model.malloc import retain_freed_pages
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoint import MetricSums, Saver, TrainingState, note_score
from seq2seq_cli.training.distributed import Ranks
from seq2seq_cli.training.launcher import launch
from seq2seq_cli.training.loss import BatchLoss
from seq2seq_cli.training.metrics_log import Monitor, NullMonitor
from seq2seq_cli.training.nonfinite import handle_nonfinite
from seq2seq_cli.training.oom import BatchSizes, is_out_of_memory
from seq2seq_cli.training.optimizer import set_lr
from seq2seq_cli.training.resume import Beginning, begin
from seq2seq_cli.training.setup import Prepared, limit_of_updates
from seq2seq_cli.training.signals import stop_on_signals
from seq2seq_cli.training.step import StepResult, train_step
from seq2seq_cli.training.summary import summarize

logger = logging.getLogger(__name__)


def train(
    config: Config,
    run_dir: Path,
    *,
    source: Path | None = None,
    allow_changed: Sequence[str] = (),
    until: int | None = None,
) -> None:
    """Train a model into a run folder; an interrupted run of the same config is continued.

    A new run starts from the weights of the run folder `source`, if it is given. A continued one
    may differ from its config in the options of `allow_changed`. At step `until` training is left
    as by an interruption. Raises UserError for what the user can mend, and Interrupted after saving
    on Ctrl-C or SIGTERM.
    """
    run = RunFolder(run_dir)
    start = functools.partial(begin, run, config, source=source, allow_changed=allow_changed)
    if run.is_started:
        run.reject_escaping_links()
    try:
        launch(functools.partial(train_in_process, run, start, until), config)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            "out of memory outside a training batch: make the model smaller (model.layers, "
            "d_model, d_ff)"
        ) from None
    finally:
        gc.unfreeze()  # what `begin` froze


def train_in_process(
    run: RunFolder, start: Callable[[Ranks], Beginning], until: int | None, ranks: Ranks
) -> None:
    """Train as one of the processes; the first one keeps the folder locked meanwhile."""
    with run.locked() if ranks.is_main else nullcontext():
        training_loop(run, start(ranks), until, ranks)


def training_loop(run: RunFolder, beginning: Beginning, until: int | None, ranks: Ranks) -> None:
    """The story of a run, as each of its processes lives it."""
    config, prepared, optimizer, state, total_steps = beginning
    retain_freed_pages()
    training = config.training
    if is_finished(config, state, total_steps):
        logger.info("%s", finished_line(run, config, state, total_steps))
        return
    batch_loss = BatchLoss(
        prepared.model, training.label_smoothing, prepared.use_bf16, training.compile
    )
    sizes = BatchSizes(state.too_large)
    shown = Monitor(run, state, total_steps) if ranks.is_main else NullMonitor()
    with shown as monitor, stop_on_signals(is_announced=ranks.is_main) as stop:
        saver = None
        if ranks.is_main:
            saver = Saver(run, config, prepared.model, optimizer, monitor.sync, state.step)
            logger.info("%s", summarize(config, prepared, total_steps, ranks.world_size))
            logger.info("%s %s", "continuing" if state.step else "writing to", run.path)
        monitor.config(config)
        clock = Clock(state.seconds)
        while not is_finished(config, state, total_steps):
            if not state.awaits_validation:
                make_update(beginning, batch_loss, sizes, ranks, clock, monitor)
                stop_signal = int(ranks.all_reduce_max(stop.signal))
                is_stopped = bool(stop_signal) and not is_finished(config, state, total_steps)
                is_end = is_stopped or limit_reached(training, state, total_steps) is not None
                if saver is not None and (is_end or state.step == until or saver.is_due(state)):
                    saver.save(state, is_end=is_end)
                if state.step == until:
                    return
                if is_stopped:
                    message = (
                        f"stopped and saved at step {state.step:,}; the same command continues"
                    )
                    logger.debug("%s", message)
                    raise Interrupted(message, 128 + stop_signal)
            if state.awaits_validation:
                is_kept = validate(config, prepared, state, monitor, ranks)
                if saver is not None:
                    is_end = is_finished(config, state, total_steps)
                    saver.note_validation(state, is_kept=is_kept, is_end=is_end)
        logger.info("%s", finished_line(run, config, state, total_steps))


class Clock:
    """Seconds of training, those of earlier starts of the run included."""

    def __init__(self, seconds_before: float) -> None:
        self._started = time.monotonic() - seconds_before

    def seconds(self) -> float:
        return time.monotonic() - self._started


def make_update(
    beginning: Beginning,
    batch_loss: nn.Module,
    sizes: BatchSizes,
    ranks: Ranks,
    clock: Clock,
    monitor: Monitor | NullMonitor,
) -> None:
    """The next update of the run: made or skipped, counted, logged if a point is due."""
    config, prepared, optimizer, state, total_steps = beginning
    training, epochs = config.training, prepared.epochs
    epoch, started = state.epoch, time.perf_counter()
    batches = epochs.batches(
        epoch, state.position, training.gradient_accumulation, state.earlier_parts
    )
    lr = set_lr(optimizer, training, state.step + 1, total_steps)
    update = train_step(batch_loss, optimizer, batches, training, state.step + 1, ranks, sizes)
    if not update.is_finite:
        handle_nonfinite(update, batches, config, state, prepared, ranks, sizes)
    advance(state, batches, epochs, update, time.perf_counter() - started)
    state.seconds = ranks.all_reduce_max(clock.seconds())
    monitor.advance()
    is_last = limit_reached(training, state, total_steps) is not None
    if (state.step % training.log_every == 0 or is_last) and update.is_finite:
        log_point(monitor, state, update, lr, epoch)
    if config.data.valid is not None:
        state.awaits_validation = is_last or validation_is_due(config, state)


def advance(
    state: TrainingState,
    batches: Sequence[Batch],
    epochs: BatchSampler,
    update: StepResult,
    seconds: float,
) -> None:
    """Count an update: where the run is, and what the next logged point sums up."""
    state.step += 1
    state.position += len(batches)
    if state.position == len(epochs.plan(state.epoch, state.earlier_parts)):
        state.epoch, state.position, state.earlier_parts = state.epoch + 1, 0, []
    window = state.window
    window.seconds += seconds
    if not update.is_finite:
        window.skipped += 1
        return
    state.skipped_in_a_row = 0
    window.loss += update.loss
    window.num_tokens += sum(batch.num_tokens for batch in batches)
    window.num_src_tokens += sum(batch.num_src_tokens for batch in batches)
    window.num_positions += sum(batch.num_positions for batch in batches)


def log_point(
    monitor: Monitor | NullMonitor, state: TrainingState, update: StepResult, lr: float, epoch: int
) -> None:
    """Log what happened since the last point, and begin anew; lr, epoch, grad_norm: of this update.

    The epoch of an update is the one that its batches come from.
    """
    window, state.window = state.window, MetricSums()
    scalars = {
        "loss": window.loss / window.num_tokens,
        "lr": lr,
        "grad_norm": update.grad_norm,
        "tokens_per_second": window.num_tokens / window.seconds,
        "padding": 1 - (window.num_tokens + window.num_src_tokens) / window.num_positions,
        "epoch": epoch,
        "skipped": window.skipped,
    }
    monitor.training_point(state.step, scalars)


def validate(
    config: Config,
    prepared: Prepared,
    state: TrainingState,
    monitor: Monitor | NullMonitor,
    ranks: Ranks,
) -> bool:
    """Score; whether the model is one of those to keep. The main process tells the others."""
    validation, held_out, score, loss = config.validation, prepared.valid, math.nan, math.nan
    if held_out is not None:
        with ranks.all_threads():
            scores = scores_of(prepared, config, held_out, state.step)
        score, loss = scores.metrics()[validation.metric], scores.loss
    score, loss = ranks.broadcast((score, loss))
    is_kept = note_score(state, score, loss, config)
    state.awaits_validation = False
    if held_out is not None:
        monitor.validation_point(state.step, scores, state.best_step == state.step)
        if scores.hypotheses and validation.samples:
            monitor.samples(state.step, held_out, scores, validation.samples)
    return is_kept


def scores_of(prepared: Prepared, config: Config, held_out: HeldOut, step: int) -> Scores:
    """Of the model of this step. Raises UserError if memory does not suffice."""
    translator = Translator(
        prepared.model, prepared.tokenizers, config, statistics=prepared.statistics
    )
    try:
        return evaluate(translator, held_out, decode=config.validation.decode)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        facts = held_out.store.facts
        raise UserError(
            f"step {step:,}: out of memory in the validation, whose longest lines have "
            f"{facts.src.longest:,} source and {facts.tgt.longest:,} target tokens; lower "
            "decoding.tokens_per_batch, which may change in a run; the last checkpoint stands, and "
            "the same command continues"
        ) from None


def is_finished(config: Config, state: TrainingState, total_steps: int) -> bool:
    """Whether nothing is left to do: neither an update nor the validation of the last one."""
    if state.awaits_validation:
        return False
    limit = limit_reached(config.training, state, total_steps)
    return limit is not None or is_out_of_patience(config, state)


def limit_reached(config: TrainingConfig, state: TrainingState, total_steps: int) -> str | None:
    """The option by which this update is the last, if it is."""
    if state.step >= total_steps:
        return limit_of_updates(config, total_steps)
    is_over = config.max_hours is not None and state.seconds / 3_600 >= config.max_hours
    return "max_hours" if is_over else None


def is_out_of_patience(config: Config, state: TrainingState) -> bool:
    patience = config.validation.patience
    return patience is not None and state.validations_without_best >= patience


def validation_is_due(config: Config, state: TrainingState) -> bool:
    """At the end of every n-th epoch, or after every n-th update."""
    validation = config.validation
    if validation.unit == "steps":
        return state.step % validation.every == 0
    return state.position == 0 and (state.epoch - 1) % validation.every == 0


def finished_line(run: RunFolder, config: Config, state: TrainingState, total_steps: int) -> str:
    """Why the run is at its end, and where its model is."""
    limit = limit_reached(config.training, state, total_steps)
    why = f"training.{limit} reached" if limit else "no better score within validation.patience"
    finished = f"finished after {state.step:,} updates ({why})"
    if not run.model.exists():
        return f"{finished}; no validation gave a finite score, so that there is no {run.model}"
    which, metric = "the last", config.validation.metric
    if state.best_models:
        best = state.best_models[0]
        which = f"the best, of step {best.step:,}, with validation {metric} {best.score:.3f}"
        which += "" if metric == "loss" else f" and loss {best.loss:.3f}"
    elif config.data.valid is not None:
        which = "the best by an earlier validation"
    return f"{finished}: {run.model} is {which}"
