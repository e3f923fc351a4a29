"""Training updates of a temporary run, for `check`, `init` and two extras."""

import functools
import gc
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import peak_memory
from seq2seq_cli.processes import ending_at_sigterm
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.optimizers.schedules import Plan, set_lr
from seq2seq_cli.training.parallel.launcher import launch, processes_to_start
from seq2seq_cli.training.parallel.process_group import process_group
from seq2seq_cli.training.resume import start_or_resume
from seq2seq_cli.training.run import Hooks, Run
from seq2seq_cli.training.step import train_step

Result = TypeVar("Result")


class DryRun:
    """Times the updates of a temporary run, in one of its processes.

    The parts of an update are timed by hooks on the code that trains.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        # The seconds of all updates, by part.
        self.seconds: dict[str, list[float]] = {
            name: [] for name in ("data", "forward", "backward", "optimizer")
        }
        self._last = 0.0
        run.loss.register_forward_pre_hook(lambda *_: self._note("backward"))
        run.loss.register_forward_hook(lambda *_: self._note("forward"))
        run.optimizer.register_step_pre_hook(lambda *_: self._note("backward"))

    @property
    def seconds_of_last(self) -> float:
        return sum(times[-1] for times in self.seconds.values())

    def update(self, batch: Batch | None = None) -> list[Batch]:
        """Make the next update of the run, or one from `batch` that does not count.

        Returns the batches of the update. Raises UserError if loss or gradient is not finite.
        """
        self._start()
        run, step = self.run, self.run.state.step + 1
        batches = run.next_batches() if batch is None else [batch]
        self._note("data")
        set_lr(run.optimizer, run.config.training, min(step, run.total_steps), run.state.plan)
        if not train_step(run, batches).is_finite:
            raise UserError(f"update {step}: loss or gradient is not finite; train says where")
        self._note("optimizer")
        if batch is None:
            run.advance(batches)
        return batches

    def update_at(self, lr: float) -> float:
        """Make the next update at another learning rate; return its loss in nats per target token.

        An update whose loss or gradient is not finite is not applied; its loss is returned as NaN.
        """
        self._start()
        run, batches = self.run, self.run.next_batches()
        training = {"lr": lr, "schedule": "constant"}
        set_lr(run.optimizer, run.config.training.model_copy(update=training), 1, Plan())
        result = train_step(run, batches)
        run.advance(batches)
        num_tokens = sum(batch.num_tokens for batch in batches)
        return result.loss / num_tokens if result.is_finite else math.nan

    def _start(self) -> None:
        for times in self.seconds.values():
            times.append(0.0)
        self._last = self._now()

    def _note(self, name: str) -> None:
        """Add the time since the last note to this part of the update."""
        now = self._now()
        self.seconds[name][-1] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self.run.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def dry_run(
    work: Callable[[DryRun], Result], config: Config, source: Path | None = None
) -> Result | None:
    """Start a run in a temporary folder, and call `work` with it in all of its processes.

    It starts from the weights of the run folder `source`, if given.
    Returns what `work` returned in the main process; None in torchrun's other processes. Raises
    UserError as `train` does.
    """
    if (num_processes := processes_to_start(config)) > 1:
        return launch(functools.partial(dry_run, work, config, source), num_processes)
    try:
        with (
            process_group(config) as parallel,
            ending_at_sigterm(),
            tempfile.TemporaryDirectory(prefix="seq2seq-dry-run-") as folder,
        ):
            run_folder = RunFolder(Path(parallel.broadcast(folder)) / "run")
            run = start_or_resume(run_folder, config, parallel, Hooks(), source)
            result = work(DryRun(run))
            return result if parallel.is_main else None
    finally:
        gc.unfreeze()  # what `start_or_resume` froze


def peak_memory_mb(device: torch.device) -> float:
    """Return this process's peak memory in MB: allocated on the GPU, or else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / (1 << 20)
    return peak_memory() / (1 << 20)
