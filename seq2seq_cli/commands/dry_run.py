"""Training updates of a temporary run, for `check`, `init` and two extras."""

import functools
import gc
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import peak_memory
from seq2seq_cli.processes import ending_at_sigterm
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.optimizers.schedules import set_lr
from seq2seq_cli.training.parallel.launcher import launch, processes_to_start
from seq2seq_cli.training.parallel.process_group import process_group
from seq2seq_cli.training.parallel.strategy import seconds_now
from seq2seq_cli.training.resume import start_or_resume
from seq2seq_cli.training.run import Hooks, Run
from seq2seq_cli.training.step import train_step
from seq2seq_cli.training.warm_start import expected_config

Result = TypeVar("Result")


def timed_update(run: Run, batches: Sequence[Batch] | None = None) -> float:
    """Make the next update of a run, or one on `batches` that is not counted; return its seconds.

    Raises UserError if loss or gradient is not finite.
    """
    started, step = seconds_now(run.device), run.state.step + 1
    used = run.next_batches() if batches is None else batches
    set_lr(run.optimizer, run.config.training, min(step, run.total_steps), run.state.plan)
    if not train_step(run, used).is_finite:
        raise UserError(f"update {step}: loss or gradient is not finite; train says where")
    seconds = seconds_now(run.device) - started
    if batches is None:
        run.advance(used)
    return seconds


def dry_run(
    work: Callable[[Run], Result], config: Config, source: Path | None = None
) -> Result | None:
    """Start a run in a temporary folder, and call `work` with it in all of its processes.

    It starts from the weights of the run folder `source`, if given.
    Returns what `work` returned in the main process; None in torchrun's other processes. Raises
    UserError as `train` does.
    """
    if (num_processes := processes_to_start(expected_config(config, None, source))) > 1:
        return launch(functools.partial(dry_run, work, config, source), num_processes)
    try:
        with (
            process_group(config) as parallel,
            ending_at_sigterm(),
            tempfile.TemporaryDirectory(prefix="seq2seq-dry-run-") as folder,
        ):
            run_folder = RunFolder(Path(parallel.broadcast(folder)) / "run")
            run = start_or_resume(run_folder, config, parallel, Hooks(), source)
            result = work(run)
            return result if parallel.is_main else None
    finally:
        gc.unfreeze()  # what `start_or_resume` froze


def peak_memory_mb(device: torch.device) -> float:
    """Return this process's peak memory in MB: allocated on the GPU, or else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    return peak_memory() / 1e6
