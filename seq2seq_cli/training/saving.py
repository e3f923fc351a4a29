"""What a run leaves on the disk while it trains: the best models, and checkpoints.

A disk that is full, or gone for a while, ends nothing: training goes on, it is said, and best
models and logged points are written with the next checkpoint that finds room.
"""

import errno
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from seq2seq_cli.config import Config
from seq2seq_cli.model.weights import save_tensors, weights_of
from seq2seq_cli.option_types import METRICS
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoint import (
    BestModel,
    TrainingState,
    make_room,
    replace_state,
    save_checkpoint,
)

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHARE = 0.1  # of the time, that checkpoints before validations may take


class Allowance:
    """Whether work may be done again, so that it takes at most its share of the time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._paid = clock()  # from when on the work until now has not been more than its share

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Count the time of the block."""
        started = self._clock()
        try:
            yield
        finally:
            self._paid = max(self._paid, started) + (self._clock() - started) / _SHARE

    @property
    def suffices(self) -> bool:
        return self._clock() >= self._paid


class Saver:
    """The first worker's; a best model always reaches the disk before a checkpoint tells of it."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sync_logs: Callable[[], None],
        step: int,
    ) -> None:
        """`step`: of the checkpoint that the run goes on from."""
        self._run = run
        self._config = config
        self._model = model
        self._optimizer = optimizer
        self._sync_logs = sync_logs
        self._last = step  # of the last whole checkpoint
        self._waiting: dict[int, Mapping[str, Tensor]] = {}  # best models not yet on the disk
        self._allowance = Allowance()

    def is_due(self, state: TrainingState) -> bool:
        """At multiples of `save_every` and `keep_every`, and before validations.

        Of validations that follow each other closely, before as many as a tenth of the time allows.
        """
        training = self._config.training
        asked = (training.save_every, training.keep_every)
        if any(steps is not None and state.step % steps == 0 for steps in asked):
            return True
        return state.awaits_validation and self._allowance.suffices

    def save(self, state: TrainingState, *, is_end: bool) -> None:
        """A checkpoint; without validation text the last model too, as the best one.

        At the end of a run, raises OSError when it cannot be written.
        """
        if self._config.data.valid is None:
            self._waiting = {state.step: weights_of(self._model)}
        try:
            self._find_room(lambda: self._write(state))
        except OSError as error:
            if is_end:
                raise
            logger.warning(
                f"cannot write the checkpoint of step {state.step:,} ({error}); training goes on, "
                f"the last checkpoint is that of step {self._last:,}"
            )
        else:
            self._last = state.step

    def note_validation(self, state: TrainingState, *, is_kept: bool, is_end: bool) -> None:
        """Let the model's checkpoint tell of its validation, if it has one; keep a best model.

        Without a checkpoint the model waits for the next one, in memory. At the end of a run there
        is always one: raises OSError when it cannot be written.
        """
        best = {one.step for one in state.best_models}
        self._waiting = {step: kept for step, kept in self._waiting.items() if step in best}
        if is_kept:
            self._waiting[state.step] = weights_of(self._model)
        if self._last != state.step:
            if is_end:
                self.save(state, is_end=True)
        else:
            try:
                self._find_room(lambda: self._write_validation(state))
            except OSError as error:
                if is_end:
                    raise
                logger.warning(f"cannot write the best model yet ({error}); it is kept in memory")
        if state.step in self._waiting:
            self._waiting[state.step] = {
                name: tensor.clone() for name, tensor in self._waiting[state.step].items()
            }

    def _find_room(self, write: Callable[[], None]) -> None:
        """On a full disk older checkpoints give way, once."""
        with self._allowance.spent():
            try:
                write()
            except OSError as error:
                training = self._config.training
                if error.errno not in _FULL or not make_room(self._run, training):
                    raise
                write()

    def _write(self, state: TrainingState) -> None:
        self._sync_logs()
        self._write_best(state)
        save_checkpoint(self._run, self._model, self._optimizer, state, self._config.training)

    def _write_validation(self, state: TrainingState) -> None:
        self._sync_logs()
        self._write_best(state)
        replace_state(self._run, state)

    def _write_best(self, state: TrainingState) -> None:
        """What waits, of what still is among the best; others go as soon as there is a new best."""
        best = [one.step for one in state.best_models]
        if self._config.validation.keep_best > 1:
            for step in best:
                if step in self._waiting:
                    self._run.best.mkdir(exist_ok=True)
                    save_tensors(self._waiting[step], self._run.best_model(step))
            for step, path in self._run.all_best_models().items():
                if best and step not in best:
                    path.unlink()
        newest = state.best_step if best else state.step
        if newest in self._waiting:
            save_tensors(self._waiting[newest], self._run.model)
        self._waiting.clear()


def note_score(state: TrainingState, score: float, loss: float, config: Config) -> bool:
    """Count a validation; whether its model is one of those to keep.

    Of equal scores the lower validation loss is better. A score or a loss that is not finite never
    is.
    """
    if math.isfinite(score) and math.isfinite(loss):
        sign = -1 if METRICS[config.validation.metric].higher_is_better else 1
        state.best_models.append(BestModel(state.step, score, loss))
        state.best_models.sort(key=lambda one: (sign * one.score, one.loss, one.step))
        del state.best_models[config.validation.keep_best :]
    is_best = state.best_step == state.step
    state.validations_without_best = 0 if is_best else state.validations_without_best + 1
    return any(one.step == state.step for one in state.best_models)
