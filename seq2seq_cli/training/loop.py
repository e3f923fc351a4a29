"""train(): the story of a run, from text to the best model."""

import functools
import gc
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from seq2seq_cli.config import Config, TrainingConfig
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import Interrupted
from seq2seq_cli.evaluation import evaluate
from seq2seq_cli.model.allocator import keep_freed_memory
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import save_weights
from seq2seq_cli.option_types import Metric
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.beginning import begin
from seq2seq_cli.training.checkpoint import TrainingState, Window, save_checkpoint
from seq2seq_cli.training.interruption import stop_on_signals
from seq2seq_cli.training.loss import BatchLoss
from seq2seq_cli.training.monitor import Monitor, Silence
from seq2seq_cli.training.optimizer import set_lr
from seq2seq_cli.training.preparation import Prepared
from seq2seq_cli.training.processes import work_together
from seq2seq_cli.training.summary import summarize
from seq2seq_cli.training.update import Update, train_step
from seq2seq_cli.training.workers import Workers

logger = logging.getLogger(__name__)

LOWER_IS_BETTER: tuple[Metric, ...] = ("loss", "perplexity")


def train(config: Config, run_dir: Path) -> None:
    """Train a model into a run folder; an interrupted run of the same config is continued.

    Raises UserError for what the user can mend, and Interrupted after saving on Ctrl-C or SIGTERM.
    """
    run = RunFolder(run_dir)
    if run.is_started:
        run.must_be_closed()
    try:
        work_together(functools.partial(train_in_worker, config, run_dir), config)
    finally:
        gc.unfreeze()  # what `begin` froze


def train_in_worker(config: Config, run_dir: Path, workers: Workers) -> None:
    """The story of a run, as each of its workers lives it."""
    run = RunFolder(run_dir)
    config, prepared, optimizer, state = begin(run, config, workers)
    keep_freed_memory()
    training, epochs, total_steps = config.training, prepared.epochs, prepared.total_steps
    if is_finished(config, state, total_steps):
        logger.info("%s", finished_line(run, config, state))
        return
    batch_loss = workers.parallel(
        BatchLoss(prepared.model, training.label_smoothing, prepared.use_bf16, training.compile)
    )
    shown = Monitor(run, state.step, total_steps) if workers.is_first else Silence()
    with shown as monitor, stop_on_signals(is_announced=workers.is_first) as stop:
        if workers.is_first:
            logger.info("%s", summarize(config, prepared, workers.count))
            logger.info("%s %s", "continuing" if state.step else "writing to", run.path)
        monitor.config(run.config.read_text(encoding="utf-8"))
        while not is_finished(config, state, total_steps):
            started = time.perf_counter()
            batches = epochs.batches(state.epoch, state.position, training.accumulation)
            lr = set_lr(optimizer, training, state.step + 1, total_steps)
            update = train_step(batch_loss, optimizer, batches, training, state.step + 1, workers)
            advance(state, batches, len(epochs), update, time.perf_counter() - started)
            monitor.advance()
            is_last = state.step == total_steps
            if state.step % training.log_every == 0 or is_last:
                log_point(monitor, state, update, lr)
            validates = is_last or validation_is_due(config, state)
            if validates and config.data.valid is not None:
                validate(config, prepared, state, monitor, run, workers)
            stop_signal = int(workers.greatest(stop.signal))
            if workers.is_first and (validates or stop_signal or save_is_due(training, state)):
                save(run, config, prepared.model, optimizer, state)
            if stop_signal and not is_finished(config, state, total_steps):
                message = f"stopped and saved at step {state.step:,}; the same command continues"
                logger.debug("%s", message)
                raise Interrupted(message, 128 + stop_signal)
        logger.info("%s", finished_line(run, config, state))


def advance(
    state: TrainingState, batches: Sequence[Batch], per_epoch: int, update: Update, seconds: float
) -> None:
    """Count an update: where the run is, and what the next logged point sums up."""
    state.step += 1
    state.position += len(batches)
    if state.position == per_epoch:
        state.epoch, state.position = state.epoch + 1, 0
    window = state.window
    window.loss += update.loss
    window.seconds += seconds
    window.num_tokens += sum(batch.num_tokens for batch in batches)
    window.num_src_tokens += sum(batch.num_src_tokens for batch in batches)
    window.num_positions += sum(batch.num_positions for batch in batches)


def log_point(monitor: Monitor | Silence, state: TrainingState, update: Update, lr: float) -> None:
    """Log what happened since the last point (lr and grad_norm of this update), and begin anew."""
    window, state.window = state.window, Window()
    scalars = {
        "loss": window.loss / window.num_tokens,
        "lr": lr,
        "grad_norm": update.grad_norm,
        "tokens_per_second": window.num_tokens / window.seconds,
        "padding": 1 - (window.num_tokens + window.num_src_tokens) / window.num_positions,
        "epoch": state.epoch,
    }
    monitor.training_point(state.step, scalars)


def validate(
    config: Config,
    prepared: Prepared,
    state: TrainingState,
    monitor: Monitor | Silence,
    run: RunFolder,
    workers: Workers,
) -> None:
    """Score, and keep the model if it is the best so far; the first worker tells the others."""
    validation, held_out, score = config.validation, prepared.valid, math.nan
    if held_out is not None:
        translator = Translator(prepared.model, prepared.tokenizers, config)
        with workers.all_threads():
            scores = evaluate(translator, held_out, decode=validation.decode)
        score = scores.metrics()[validation.metric]
    score = workers.of_the_first(score)
    is_best = is_better(validation.metric, score, state.best_score)
    state.validations_without_best = 0 if is_best else state.validations_without_best + 1
    if is_best:
        state.best_step, state.best_score = state.step, score
    if held_out is not None:
        monitor.validation_point(state.step, scores, is_best)
        if scores.hypotheses and validation.samples:
            monitor.samples(state.step, held_out, scores, validation.samples)
        if is_best:
            save_weights(prepared.model, run.model)


def save(
    run: RunFolder,
    config: Config,
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    state: TrainingState,
) -> None:
    """A checkpoint; and where nothing is validated, the last model as the best one."""
    if config.data.valid is None:
        save_weights(model, run.model)
    save_checkpoint(run, model, optimizer, state)


def is_better(metric: Metric, score: float, best: float | None) -> bool:
    """A score that is no number is never better."""
    if best is None or not math.isfinite(score):
        return math.isfinite(score)
    return score < best if metric in LOWER_IS_BETTER else score > best


def is_finished(config: Config, state: TrainingState, total_steps: int) -> bool:
    """All updates are made, or patience with validations that bring nothing is at its end."""
    return state.step >= total_steps or is_out_of_patience(config, state)


def is_out_of_patience(config: Config, state: TrainingState) -> bool:
    patience = config.validation.patience
    return patience is not None and state.validations_without_best >= patience


def validation_is_due(config: Config, state: TrainingState) -> bool:
    """At the end of every n-th epoch, or after every n-th update."""
    validation = config.validation
    if validation.unit == "steps":
        return state.step % validation.every == 0
    return state.position == 0 and (state.epoch - 1) % validation.every == 0


def save_is_due(config: TrainingConfig, state: TrainingState) -> bool:
    return config.save_every is not None and state.step % config.save_every == 0


def finished_line(run: RunFolder, config: Config, state: TrainingState) -> str:
    """Why the run is at its end, and where its model is."""
    why = (
        "no better score within validation.patience"
        if is_out_of_patience(config, state)
        else "all updates made"
    )
    which = (
        "the last"
        if state.best_score is None
        else (
            f"the best, of step {state.best_step:,}, "
            f"with validation {config.validation.metric} {state.best_score:.3f}"
        )
    )
    return f"finished after {state.step:,} updates ({why}): {run.model} is {which}"
