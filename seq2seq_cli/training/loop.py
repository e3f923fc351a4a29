"""The training loop: `train` trains a model from its first update to the best model on disk."""

import functools
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.candidates import awaits_choice, choose_model
from seq2seq_cli.training.checkpoints.checkpoint import NullSaver, Saver
from seq2seq_cli.training.checkpoints.manifest import count_starts
from seq2seq_cli.training.logging.metrics_log import Monitor
from seq2seq_cli.training.logging.process_speed import ProcessSpeed
from seq2seq_cli.training.logging.summary import summarize
from seq2seq_cli.training.nonfinite import handle_nonfinite
from seq2seq_cli.training.oom import is_out_of_memory
from seq2seq_cli.training.optimizers.schedules import set_lr
from seq2seq_cli.training.parallel.launcher import launch, processes_to_start
from seq2seq_cli.training.parallel.process_group import process_group
from seq2seq_cli.training.plan import plan_again
from seq2seq_cli.training.resume import StartOptions, start_or_resume
from seq2seq_cli.training.run import Hooks, MetricSums, Run, nothing
from seq2seq_cli.training.signals import stop_on_signals
from seq2seq_cli.training.step import StepResult, train_step
from seq2seq_cli.training.validation import (
    end_line,
    is_finished,
    limit_reached,
    score_candidate,
    validate,
    validation_is_due,
)

logger = logging.getLogger(__name__)

_NO_HOOKS = Hooks()


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
    of `torch.distributed`'s process group if the caller has initialized one, those that `torchrun`
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
        stop_on_signals(run.parallel) as stop,
    ):
        clock = Clock(run)
        speed = ProcessSpeed(run, count_starts(folder) if run.parallel.is_main else 0)
        while not is_finished(run):
            if run.state.awaits_validation:
                validate(run, monitor, saver, clock.total_seconds)
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
            stops, stop_signal = stop.agree(run.parallel, bool(hooks.on_step(run.state)))
            stops = stops and not is_finished(run)
            saver.save(is_end=stops or limit_reached(run) is not None)
            if stops:
                note_stop(run, stop_signal)
                return
        score = functools.partial(score_candidate, run, stop)
        show: Callable[[int, str], None] = monitor.candidates if monitor is not None else nothing
        run.parallel.in_main(lambda: choose_model(folder, run, score, show))
        logger.info("%s", end_line(folder, run))


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
        stack.enter_context(folder.locked(parallel.lock_seconds))

    try:
        with process_group(config) as parallel, ExitStack() as stack:
            parallel.in_main(lambda: lock(stack))
            run = start_or_resume(folder, config, options, parallel, hooks)
            if run.config.data.valid is not None and limit_reached(run):  # perhaps a new limit
                run.state.awaits_validation |= run.state.validated_step not in (
                    None,
                    run.state.step,
                )
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
def open_outputs(folder: RunFolder, run: Run) -> Iterator[tuple[Monitor | None, Saver]]:
    """Open what the main process writes: logged points, and checkpoints with best models.

    Other processes write nothing, nor does the main one if everything is done already.
    """
    if not run.parallel.is_main or (is_finished(run) and not awaits_choice(folder, run)):
        yield None, run.parallel.saver(NullSaver(folder, run), run)
        return
    with Monitor(folder, run) as monitor:
        logger.info("%s", summarize(run))
        starts = count_starts(folder)
        begins = f"continuing (start {starts:,})" if starts > 1 else "writing to"
        logger.info("%s %s", begins, folder.path)
        monitor.config(run.config)
        yield monitor, run.parallel.saver(Saver(folder, run, monitor.sync), run)


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
    before, state.seconds = state.seconds, run.parallel.all_reduce_max(clock.total_seconds())
    state.updating += state.seconds - before if state.step > 1 else 0.0
    plan_again(run)
    if run.config.data.valid is not None:
        state.awaits_validation = limit_reached(run) is not None or validation_is_due(run)
    if not result.is_finite:
        window.skipped += 1
        return
    state.skipped_in_a_row = 0
    cross_entropy = result.loss - result.divergence
    window.loss += cross_entropy / run.loss.cross_entropies
    window.divergence += result.divergence
    window.num_tokens += sum(batch.num_tokens for batch in batches)
    window.num_src_tokens += sum(batch.num_src_tokens for batch in batches)
    window.num_positions += sum(batch.num_positions for batch in batches)


def log_update(
    run: Run,
    monitor: Monitor | None,
    speed: ProcessSpeed,
    result: StepResult,
    scalars: dict[str, float],
) -> None:
    """Show progress; every `log_every` updates, and after the last one, log a point.

    The point sums up the updates since the one before; gradient norm and the given `scalars`
    belong to this update.
    """
    state = run.state
    if monitor is not None:
        monitor.advance(run.total_steps)
    is_due = state.step % run.config.training.log_every == 0 or limit_reached(run) is not None
    if not (is_due and result.is_finite):
        return
    window, state.window = state.window, MetricSums()
    if run.config.training.consistency is not None:
        scalars = {"consistency": window.divergence / window.num_tokens, **scalars}
    point = {
        "loss": window.loss / window.num_tokens,
        "grad_norm": result.grad_norm,
        "tokens": window.num_tokens,
        "tokens_per_second": window.num_tokens / window.seconds,
        "seconds": state.seconds,
        "padding": 1 - (window.num_tokens + window.num_src_tokens) / window.num_positions,
        "skipped": window.skipped,
        **scalars,
        **speed.scalars(),
    }
    if monitor is not None:
        monitor.training_point(state.step, point)


def note_stop(run: Run, stop_signal: int) -> None:
    """Wait until the main process has saved; raise Interrupted if a signal asked to stop."""
    run.parallel.barrier()
    message = f"stopped and saved at step {run.state.step:,}; the same command resumes"
    logger.debug("%s", message)
    if stop_signal:
        raise Interrupted(message, 128 + stop_signal)
