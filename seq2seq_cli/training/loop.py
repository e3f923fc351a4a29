"""The training loop: `train` trains a model from its first update to the best model on disk."""

import functools
import gc
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from seq2seq_cli import plugins
from seq2seq_cli.config.schema import Config
from seq2seq_cli.console import counted
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.evaluation import Scores, evaluate
from seq2seq_cli.machine import retain_freed_pages
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.averaging import with_weights
from seq2seq_cli.training.checkpoints.candidates import awaits_choice, choose_model, chosen_model
from seq2seq_cli.training.checkpoints.checkpoint import NullSaver, Saver, record_score
from seq2seq_cli.training.checkpoints.manifest import count_starts
from seq2seq_cli.training.logging.metrics_log import AttentionPlots, Monitor, NullMonitor
from seq2seq_cli.training.logging.process_speed import ProcessSpeed
from seq2seq_cli.training.logging.summary import summarize
from seq2seq_cli.training.nonfinite import handle_nonfinite
from seq2seq_cli.training.oom import is_out_of_memory
from seq2seq_cli.training.optimizers.optimizer import set_lr
from seq2seq_cli.training.parallel.distributed import lock_patience, process_group
from seq2seq_cli.training.parallel.launcher import launch, processes_to_start
from seq2seq_cli.training.parallel.sharding import AnySaver, gather_weights, saver_of
from seq2seq_cli.training.plan import hours_to_finish, limit_of_updates, plan_again
from seq2seq_cli.training.resume import StartOptions, start_or_resume
from seq2seq_cli.training.run import Hooks, MetricSums, Run
from seq2seq_cli.training.signals import StopRequest, stop_on_signals
from seq2seq_cli.training.step import StepResult, train_step

logger = logging.getLogger(__name__)

_NO_HOOKS = Hooks()
_NEARLY_DONE = 0.95  # of the decay, after which the rest of a schedule changes little


def train(
    config: Config,
    run_dir: Path,
    *,
    source: Path | None = None,
    allow_changed: Sequence[str] = (),
    hooks: Hooks = _NO_HOOKS,
) -> None:
    """Train a model into a run folder; an interrupted run of the same config is resumed.

    A new run starts from the best weights of the run folder `source`, if one is given. A resumed
    run may differ from its config in the options `allow_changed`. Data-parallel processes are those
    of `torch.distributed`'s process group if the caller has initialised one, those that `torchrun`
    started, or those that `training.processes` asks for and this function starts; these log to
    standard error if `console.py: log_to_stderr` was called here. Raises UserError for what the
    user can correct, and Interrupted after saving on Ctrl-C or SIGTERM.
    """
    if (num_processes := processes_to_start(config)) > 1:
        again = functools.partial(
            train, config, run_dir, source=source, allow_changed=allow_changed, hooks=hooks
        )
        launch(again, num_processes)
        return
    folder = RunFolder(run_dir)
    with (
        open_run(folder, config, StartOptions(source, allow_changed), hooks) as run,
        open_outputs(folder, run) as (monitor, saver),
        stop_on_signals(run.ranks) as stop,
    ):
        clock = Clock(run)
        speed = ProcessSpeed(run, count_starts(folder) if run.ranks.is_main else 0)
        while not is_finished(run):
            if run.state.awaits_validation:
                validate(run, monitor, saver, clock)
                continue
            clock.start_update()
            epoch, batches = run.state.epoch, run.next_batches()
            lr = set_lr(run.optimizer, run.config.training, run.state.step + 1, run.state.plan)
            result = train_step(run, batches)
            if not result.is_finite:
                handle_nonfinite(run, batches, result)
            speed.count_update(batches, clock.update_seconds())
            count_update(run, batches, result, clock)
            log_update(run, monitor, speed, result, {"lr": lr, "epoch": epoch})
            stops, stop_signal = stop.agree(run.ranks, bool(hooks.on_step(run.state)))
            stops = stops and not is_finished(run)
            saver.save(is_end=stops or limit_reached(run) is not None)
            if stops:
                note_stop(run, stop_signal)
                return
        score = functools.partial(score_candidate, run, stop)
        run.ranks.in_main(lambda: choose_model(folder, run, score, monitor.candidates))
        if cut := cut_line(run):
            logger.info("%s", cut)
        logger.info("%s", finished_line(folder, run))


@contextmanager
def open_run(
    folder: RunFolder, config: Config, options: StartOptions, hooks: Hooks
) -> Iterator[Run]:
    """Start or resume the run of a folder, which stays locked while the block runs.

    Raises UserError when out of memory where no batch can be split.
    """

    def lock(stack: ExitStack) -> None:
        if folder.exists:
            folder.reject_escaping_links()
        stack.enter_context(folder.locked(lock_patience()))

    try:
        with process_group(config) as ranks, ExitStack() as stack:
            ranks.in_main(lambda: lock(stack))
            run = start_or_resume(folder, config, options, ranks, hooks)
            if run.config.data.valid is not None and limit_reached(run):  # perhaps a new limit
                run.state.awaits_validation |= run.state.validated_step not in (
                    None,
                    run.state.step,
                )
            if not run.is_sharded:  # whose layers come and go, and would leave many pages unused
                retain_freed_pages()
            yield run
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            "out of memory outside a training batch: make the model smaller (model.layers, "
            "d_model, d_ff)"
        ) from None
    finally:
        gc.unfreeze()  # what `start_or_resume` froze


@contextmanager
def open_outputs(folder: RunFolder, run: Run) -> Iterator[tuple[Monitor | NullMonitor, AnySaver]]:
    """Open what the main process writes: logged points, and checkpoints with best models.

    Other processes write nothing, nor does the main one if everything is done already.
    """
    if not run.ranks.is_main or (is_finished(run) and not awaits_choice(folder, run)):
        yield NullMonitor(), saver_of(folder, run, NullSaver())
        return
    with Monitor(folder, run) as monitor:
        logger.info("%s", summarize(run))
        starts = count_starts(folder)
        begins = f"continuing (start {starts:,})" if starts > 1 else "writing to"
        logger.info("%s %s", begins, folder.path)
        monitor.config(run.config)
        yield monitor, saver_of(folder, run, Saver(folder, run, monitor.sync))


class Clock:
    """Measures the seconds of an update, and of training with all earlier starts of the run."""

    def __init__(self, run: Run) -> None:
        self._now = run.hooks.monotonic
        self._start = self._now() - run.state.seconds
        self._update_start = self._now()

    def start_update(self) -> None:
        self._update_start = self._now()

    def update_seconds(self) -> float:
        return self._now() - self._update_start

    def total_seconds(self) -> float:
        return self._now() - self._start


def count_update(run: Run, batches: Sequence[Batch], result: StepResult, clock: Clock) -> None:
    """Advance the state by an update, applied or skipped."""
    state, window = run.state, run.state.window
    state.step += 1
    state.position += len(batches)
    if state.position == run.data.batches.num_left(state.epoch, state.earlier_parts):
        state.epoch, state.position, state.earlier_parts = state.epoch + 1, 0, []
    window.seconds += clock.update_seconds()
    before, state.seconds = state.seconds, run.ranks.all_reduce_max(clock.total_seconds())
    state.updating += state.seconds - before if state.step > 1 else 0.0
    plan_again(run)
    if run.config.data.valid is not None:
        state.awaits_validation = limit_reached(run) is not None or validation_is_due(run)
    if not result.is_finite:
        window.skipped += 1
        return
    state.skipped_in_a_row = 0
    cross_entropy = result.loss - result.divergence
    window.loss += cross_entropy / sum(run.loss.terms.cross_entropy)
    window.divergence += result.divergence
    window.num_tokens += sum(batch.num_tokens for batch in batches)
    window.num_src_tokens += sum(batch.num_src_tokens for batch in batches)
    window.num_positions += sum(batch.num_positions for batch in batches)


def log_update(
    run: Run,
    monitor: Monitor | NullMonitor,
    speed: ProcessSpeed,
    result: StepResult,
    scalars: dict[str, float],
) -> None:
    """Show progress; every `log_every` updates, and after the last one, log a point.

    The point sums up the updates since the one before; gradient norm and the given `scalars`
    are those of this update.
    """
    monitor.advance(run.total_steps)
    state = run.state
    is_due = state.step % run.config.training.log_every == 0 or limit_reached(run) is not None
    if not (is_due and result.is_finite):
        return
    window, state.window = state.window, MetricSums()
    if run.config.training.consistency is not None:
        scalars = {"consistency": window.divergence / window.num_tokens, **scalars}
    monitor.training_point(
        state.step,
        {
            "loss": window.loss / window.num_tokens,
            "grad_norm": result.grad_norm,
            "tokens": window.num_tokens,
            "tokens_per_second": window.num_tokens / window.seconds,
            "seconds": state.seconds,
            "padding": 1 - (window.num_tokens + window.num_src_tokens) / window.num_positions,
            "skipped": window.skipped,
            **scalars,
            **speed.scalars(),
        },
    )


def note_stop(run: Run, stop_signal: int) -> None:
    """Wait until the main process has saved; raise Interrupted if a signal asked to stop."""
    run.ranks.barrier()
    message = f"stopped and saved at step {run.state.step:,}; the same command resumes"
    logger.debug("%s", message)
    if stop_signal:
        raise Interrupted(message, 128 + stop_signal)


def validate(run: Run, monitor: Monitor | NullMonitor, saver: AnySaver, clock: Clock) -> None:
    """Score the model on the validation data in the main process, and keep it if it is best.

    It has the weights that are evaluated, an EMA for example, only while it is scored.
    """
    validation, held_out, score, loss = run.config.validation, run.data.valid, math.nan, math.nan

    def in_main() -> tuple[Scores, AttentionPlots | None]:
        with with_weights(run.evaluated_model, run.evaluated_weights):
            scores = score_model(run)
            # The attention of a model whose loss is NaN or infinite says nothing.
            draws = validation.attention and math.isfinite(scores.loss)
            return scores, draw_attention(run) if draws else None

    gather_weights(run)
    scores, plots = run.ranks.in_main(in_main) or (None, None)
    metrics = {} if scores is None else scores.metrics()
    if scores is not None:
        score, loss = metrics[validation.metric], scores.loss
    score, loss = run.ranks.broadcast((score, loss))
    before, run.state.seconds = run.state.seconds, run.ranks.all_reduce_max(clock.total_seconds())
    run.state.validation_seconds = run.state.seconds - before
    is_kept = record_score(run, score, loss)
    run.state.awaits_validation, run.state.validated_step = False, run.state.step
    if held_out is not None and scores is not None:
        step = run.state.step
        monitor.validation_point(step, scores, run.state.best_step == step)
        if scores.hypotheses and validation.samples:
            monitor.samples(step, scores, validation.samples)
        if plots is not None:
            monitor.attention(step, plots)
        if is_finished(run):
            scores.cuts.report()
    saver.record_validation(metrics, is_kept=is_kept, is_end=is_finished(run))


def score_model(run: Run) -> Scores:
    """Evaluate the model as it is on the validation data. Raises UserError when out of memory."""
    held_out, decode = run.data.valid, run.config.validation.decode
    assert held_out is not None, "the main process has read it"
    with evaluation_of(run):
        return evaluate(translator_of(run), held_out, decode=decode)


def score_candidate(run: Run, stop: StopRequest) -> Scores:
    """Score the model as it is, for the comparison at the end; raise Interrupted after a signal.

    Nothing is lost then: the comparison starts over with the same command.
    """
    if stop.signal:
        message = "stopped while comparing models; the same command compares them again"
        raise Interrupted(message, 128 + stop.signal)
    return score_model(run)


def draw_attention(run: Run) -> AttentionPlots:
    """Draw the attention of the model as it is. Raises UserError when out of memory."""
    assert run.data.valid is not None, "the main process has read it"
    with evaluation_of(run):
        plots = plugins.load("inspect", "attention_plots")
        drawn: AttentionPlots = plots.plot_attention(translator_of(run), run.data.valid.pairs)
        return drawn


def translator_of(run: Run) -> Translator:
    model, data = run.evaluated_model, run.data
    return Translator(model, data.tokenizers, run.config, statistics=data.statistics)


@contextmanager
def evaluation_of(run: Run) -> Iterator[None]:
    """Use the threads of all processes, and say what to do when out of memory."""
    try:
        with run.ranks.all_threads():
            yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        assert run.data.valid is not None, "the main process has read it"
        facts = run.data.valid.store.facts
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
    return limit_reached(run) is not None or has_lost_patience(run)


def limit_reached(run: Run) -> str | None:
    """Return the option that makes this update the last one, if it is."""
    training, state = run.config.training, run.state
    if state.step >= run.total_steps:
        return limit_of_updates(training, state.plan)
    is_over = training.max_hours is not None and state.seconds / 3_600 >= training.max_hours
    return "max_hours" if is_over else None


def has_lost_patience(run: Run) -> bool:
    """Return True if early stopping (`validation.patience`) ends the run."""
    patience = run.config.validation.patience
    return patience is not None and run.state.validations_without_best >= patience


def validation_is_due(run: Run) -> bool:
    """Return True at the end of every n-th epoch, or after every n-th update."""
    validation, state = run.config.validation, run.state
    if validation.unit == "steps":
        return state.step % validation.interval == 0
    return state.position == 0 and (state.epoch - 1) % validation.interval == 0


def cut_line(run: Run) -> str | None:
    """Say what is missing from a run that the time limit ended before its plan did, if it is so."""
    training, state, plan = run.config.training, run.state, run.state.plan
    if limit_reached(run) != "max_hours" or state.step >= plan.total:
        return None
    falls = training.schedule in ("cosine", "linear")
    if falls and plan.decay(state.step) > _NEARLY_DONE:
        return None
    return (
        f"stopped at {state.step:,} of {plan.total:,} updates: the time limit "
        f"({training.max_hours:g} h) was reached"
        + (" before the learning rate fell to 0" if falls else "")
        + "; to finish: the same command with "
        f"--set training.max_hours={hours_to_finish(run):g}"
    )


def finished_line(folder: RunFolder, run: Run) -> str:
    """Say why the run ended, and which model it kept."""
    limit, state = limit_reached(run), run.state
    why = f"training.{limit} reached" if limit else "no better score within validation.patience"
    finished = f"finished after {counted(state.step, 'update')} ({why})"
    if not folder.model.exists():
        return f"{finished}; no validation gave a finite score, so that there is no {folder.model}"
    which, metric, scores = "the last", run.config.validation.metric, {}
    if chosen := chosen_model(folder, run.config, state):
        which, scores = f"the {chosen[0]}", chosen[1]
    elif folder.all_best_models() and run.config.validation.keep_best == 1:
        which = "an average"  # by `seq2seq average` or an earlier end, which keep the best there
    elif state.best_models:
        best = state.best_models[0]
        which, scores = f"the best, of step {best.step:,}", {"loss": best.loss, metric: best.score}
    elif run.config.data.valid is not None:
        which = "the best by an earlier validation"
    if metric in scores and "loss" in scores:
        which += f", with validation {metric} {scores[metric]:.3f}"
        which += "" if metric == "loss" else f" and loss {scores['loss']:.3f}"
    return f"{finished}: {folder.model} is {which}"
