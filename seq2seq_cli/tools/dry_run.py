"""Updates as `train` makes them, of a run that is thrown away: for `bench train` and `check`."""

import functools
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import peak_memory
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.distributed import Ranks
from seq2seq_cli.training.launcher import launch
from seq2seq_cli.training.loss import BatchLoss
from seq2seq_cli.training.oom import BatchSizes
from seq2seq_cli.training.optimizer import set_lr
from seq2seq_cli.training.resume import Beginning, begin
from seq2seq_cli.training.step import train_step

Result = TypeVar("Result")


class Rehearsal:
    """A run that has begun, in one of its processes; its updates are timed."""

    def __init__(self, beginning: Beginning, ranks: Ranks) -> None:
        self.config, self.prepared, self._optimizer, _, self.total_steps = beginning
        self.ranks = ranks
        training = self.config.training
        self._batch_loss = BatchLoss(
            self.prepared.model,
            training.label_smoothing,
            self.prepared.use_bf16,
            training.compile,
        )
        self._watch = _Watch(self.prepared.device, self._batch_loss, self._optimizer)
        self._sizes = BatchSizes()

    @property
    def seconds(self) -> dict[str, list[float]]:
        """By part of an update: data, forward, backward, optimizer."""
        return self._watch.seconds

    @property
    def seconds_of_last(self) -> float:
        return sum(times[-1] for times in self.seconds.values())

    def update(self, step: int) -> list[Batch]:
        """The update of this number, counted from 1; returns its batches."""
        self._watch.start()
        epochs, accumulation = self.prepared.epochs, self.config.training.gradient_accumulation
        epoch, number = divmod((step - 1) * accumulation, len(epochs))
        batches = epochs.batches(epoch + 1, number, accumulation)
        self._watch.note("data")
        self._train_on(batches, step)
        return batches

    def update_from(self, batch: Batch) -> None:
        """The first update, from another batch than its own."""
        self._watch.start()
        self._train_on([batch], 1)

    def _train_on(self, batches: Sequence[Batch], step: int) -> None:
        training, total_steps = self.config.training, self.total_steps
        set_lr(self._optimizer, training, min(step, total_steps), total_steps)
        update = train_step(
            self._batch_loss, self._optimizer, batches, training, step, self.ranks, self._sizes
        )
        if not update.is_finite:
            raise UserError(f"update {step}: loss or gradient is not finite; train says where")
        self._watch.note("optimizer")


def rehearse(work: Callable[[Rehearsal], Result], config: Config) -> Result | None:
    """Begin a run in a folder that is thrown away, and work with it in all of its processes.

    Returns what the main process's work returned; None in torchrun's other processes. Raises
    UserError as `train` does.
    """
    try:
        return launch(functools.partial(_rehearse_in_process, work, config), config)
    finally:
        gc.unfreeze()  # what `begin` froze


def _rehearse_in_process(
    work: Callable[[Rehearsal], Result], config: Config, ranks: Ranks
) -> Result | None:
    with tempfile.TemporaryDirectory(prefix="seq2seq-rehearsal-") as folder:
        run = RunFolder(Path(ranks.broadcast(folder)) / "run")
        result = work(Rehearsal(begin(run, config, ranks), ranks))
        return result if ranks.is_main else None


def peak_memory_mb(device: torch.device) -> float:
    """Of this process until now: allocated on its GPU, or else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / (1 << 20)
    return peak_memory() / (1 << 20)


class _Watch:
    """Seconds of every part of every update, from hooks: what is measured is what trains."""

    def __init__(
        self, device: torch.device, batch_loss: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._device = device
        self._last = 0.0
        batch_loss.register_forward_pre_hook(lambda *_: self.note("backward"))
        batch_loss.register_forward_hook(lambda *_: self.note("forward"))
        optimizer.register_step_pre_hook(lambda *_: self.note("backward"))

    def start(self) -> None:
        """Of an update."""
        for name in ("data", "forward", "backward", "optimizer"):
            self.seconds.setdefault(name, []).append(0.0)
        self._last = self._now()

    def note(self, name: str) -> None:
        """This is what was done since the last note."""
        now = self._now()
        self.seconds[name][-1] += now - self._last
        self._last = now

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()
