"""The training loop: `train` trains a model from its first update to the best model on disk."""

import functools
import gc
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from seq2seq_cli.config.loader import strings
from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.checkpoint import Saver
from seq2seq_cli.training.checkpoints.choose_model import candidates_to_score, choose_model
from seq2seq_cli.training.choose_search import choose_search
from seq2seq_cli.training.logging.metrics_log import Monitor, log_window
from seq2seq_cli.training.logging.summary import summarize
from seq2seq_cli.training.nonfinite import handle_nonfinite
from seq2seq_cli.training.oom import is_out_of_memory
from seq2seq_cli.training.optimizers.schedules import set_lr
from seq2seq_cli.training.parallel.launcher import launch, processes_to_start
from seq2seq_cli.training.parallel.process_group import process_group
from seq2seq_cli.training.plan import plan_again
from seq2seq_cli.training.resume import start_or_resume
from seq2seq_cli.training.run import Hooks, Run
from seq2seq_cli.training.signals import stop_on_signals
from seq2seq_cli.training.step import StepResult, train_step
from seq2seq_cli.training.validation import (
    end_line,
    is_finished,
    limit_reached,
    validate,
    validation_is_due,
)
from seq2seq_cli.training.warm_start import expected_config

logger = logging.getLogger(__name__)

_NO_HOOKS = Hooks()


def train(
    config: Config,
    run_dir: str | Path,
    *,
    source: Path | None = None,
    allow_changed: Iterable[str] = (),
    hooks: Hooks = _NO_HOOKS,
) -> None:
    """Train a model into a run folder; an interrupted run of the same config is resumed.

    A new run starts from the best weights of the run folder `source`, if one is given. A resumed
    run may differ from its config in the options `allow_changed`. Processes train together if they
    belong to a process group of `torch.distributed` or `torchrun` has started them; otherwise this
    function starts the number in `training.processes`, which log to standard error if
    `console.py: log_to_stderr` was called here. Raises UserError for what the user can correct, and
    Interrupted after saving on Ctrl-C or SIGTERM.
    """
    allowed = strings("allow_changed", allow_changed)
    folder = RunFolder(Path(run_dir))
    if (num_processes := processes_to_start(expected_config(config, folder, source))) > 1:
        again = functools.partial(train, config, run_dir, source=source, hooks=hooks)
        launch(functools.partial(again, allow_changed=allowed), num_processes)
        return
    with (
        open_run(folder, config, hooks, source, allowed) as run,
        stop_on_signals(run.parallel) as stop,
        open_outputs(folder, run) as (monitor, saver),
    ):
        now = hooks.monotonic
        run.began = now() - run.state.seconds
        already = "already " if is_finished(run) else ""
        while not is_finished(run):
            if run.state.awaits_validation:
                validate(run, monitor, saver)
                continue
            started, epoch = now(), run.state.epoch
            batches = run.next_batches()
            lr = set_lr(run.optimizer, run.config.training, run.state.step + 1, run.state.plan)
            result = train_step(run, batches)
            if not result.is_finite:
                handle_nonfinite(run, batches, result)
            count_update(run, batches, result, now() - started)
            log_update(run, monitor, result, {"lr": lr, "epoch": epoch})
            stops, stop_signal = stop.agree(run.parallel, bool(hooks.on_step(run.state)))
            stops = stops and not is_finished(run)
            saver.save(is_end=stops or limit_reached(run) is not None)
            if stops:
                run.parallel.barrier()  # until the main process has saved
                message = f"stopped and saved at step {run.state.step:,}; the same command resumes"
                logger.debug("%s", message)
                if stop_signal:
                    raise Interrupted(message, 128 + stop_signal)
                return
        run.parallel.in_main(lambda: choose_model(folder, run, stop, monitor))
        run.parallel.in_main(lambda: choose_search(folder, run, stop))
        run.parallel.in_main(lambda: logger.info("%s%s", already, end_line(folder, run)))
        _, stop_signal = stop.agree(run.parallel, False)
        if stop_signal:  # since the last update: what comes after the training does not begin
            raise Interrupted("interrupted when the training had finished", 128 + stop_signal)


@contextmanager
def open_run(
    folder: RunFolder,
    config: Config,
    hooks: Hooks,
    source: Path | None,
    allow_changed: Sequence[str],
) -> Iterator[Run]:
    """Start or resume the run of a folder, which stays locked while the block runs.

    Raises UserError when out of memory where no batch can be split.
    """
    try:
        with process_group(config) as parallel, ExitStack() as stack:
            lock = folder.locked(parallel.lock_seconds)
            parallel.in_main(lambda: stack.enter_context(lock))
            run = start_or_resume(folder, config, parallel, hooks, source, allow_changed)
            state, has_valid = run.state, run.config.data.valid is not None
            if has_valid and limit_reached(run) and state.validated_step != state.step:
                state.awaits_validation = True  # perhaps the limit is new
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
    """Open logs and checkpoints, in the main process, unless everything is done already."""
    if not run.parallel.is_main or (is_finished(run) and not candidates_to_score(folder, run)):
        yield None, run.parallel.saver(Saver(folder, run), run)
        return
    if not is_finished(run):
        for choice in (folder.search, folder.candidates):  # of a shorter run
            choice.unlink(missing_ok=True)
    with Monitor(folder, run) as monitor:
        logger.info("%s", summarize(run))
        begins = f"writing to {folder.path}"
        if monitor.starts > 1:
            step = f"step {run.state.step:,} (start {monitor.starts:,})"
            begins = f"continuing {folder.path} from {step}"
        logger.info("%s", begins)
        monitor.config(run.config)
        yield monitor, run.parallel.saver(Saver(folder, run, monitor.sync), run)


def count_update(run: Run, batches: Sequence[Batch], result: StepResult, seconds: float) -> None:
    """Advance the state by an update, applied or skipped, which took so many `seconds`."""
    state, window = run.state, run.state.window
    run.advance(batches)
    run.parallel.count_update(batches, seconds)
    window.seconds += seconds
    passed = run.count_seconds()
    state.updating += passed if state.step > 1 else 0.0
    plan_again(run)
    if run.config.data.valid is not None:
        state.awaits_validation = limit_reached(run) is not None or validation_is_due(run)
    if not result.is_finite:
        window.skipped += 1
        return
    state.skipped_in_a_row = 0
    window.loss += run.loss.cross_entropy(result.loss, result.metrics)
    for name, value in result.metrics.items():
        window.metrics[name] = window.metrics.get(name, 0.0) + value
    window.num_tokens += sum(batch.num_tokens for batch in batches)
    window.num_src_tokens += sum(batch.num_src_tokens for batch in batches)
    window.num_positions += sum(batch.num_positions for batch in batches)


def log_update(
    run: Run, monitor: Monitor | None, result: StepResult, scalars: dict[str, float]
) -> None:
    """Show progress; every `log_every` updates, and after the last one, log a point.

    Gradient norm and the given `scalars` are of this update; a skipped one has no gradient norm.
    """
    state = run.state
    if monitor is not None:
        monitor.advance(run.total_steps)
    if state.step % run.config.training.log_every == 0 or limit_reached(run) is not None:
        norm = {"grad_norm": result.grad_norm} if result.is_finite else {}
        log_window(run, monitor, norm | scalars)
