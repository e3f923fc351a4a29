"""What a run leaves on the disk while it trains: the best models, and checkpoints.

A disk that is full, or gone for a while, ends nothing: training goes on, it is said, and best
models and logged points are written with the next checkpoint that finds room.
"""

import errno
import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from seq2seq_cli.config import Config
from seq2seq_cli.model.weights import save_tensors, weights_of
from seq2seq_cli.option_types import METRICS
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoint import TrainingState, make_room, save_checkpoint

logger = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT)


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

    def keep_best(self, state: TrainingState) -> None:
        """This step's model, and those of the other `validation.keep_best` best steps."""
        best = [step for step, _ in state.best_models]
        self._waiting = {step: kept for step, kept in self._waiting.items() if step in best}
        self._waiting[state.step] = weights_of(self._model)
        try:
            self._write_best(state)
        except OSError as error:
            self._waiting[state.step] = {
                name: tensor.clone() for name, tensor in self._waiting[state.step].items()
            }
            logger.warning(f"cannot write the best model yet ({error}); it is kept in memory")

    def save(self, state: TrainingState, *, is_end: bool) -> None:
        """A checkpoint; without validation text the last model too, as the best one.

        At the end of a run, raises OSError when it cannot be written.
        """
        if self._config.data.valid is None:
            self._waiting = {state.step: weights_of(self._model)}
        try:
            try:
                self._write(state)
            except OSError as error:
                if error.errno not in _FULL or not self._make_room():
                    raise
                self._write(state)
        except OSError as error:
            if is_end:
                raise
            logger.warning(
                f"cannot write the checkpoint of step {state.step:,} ({error}); training goes on, "
                f"the last checkpoint is that of step {self._last:,}"
            )
        else:
            self._last = state.step

    def _make_room(self) -> bool:
        return make_room(self._run, self._last, self._config.training)

    def _write(self, state: TrainingState) -> None:
        self._sync_logs()
        self._write_best(state)
        save_checkpoint(self._run, self._model, self._optimizer, state, self._config.training)

    def _write_best(self, state: TrainingState) -> None:
        """What waits, of what still is among the best; others are taken away."""
        best = [step for step, _ in state.best_models]
        if self._config.validation.keep_best > 1:
            for step in best:
                if step in self._waiting:
                    self._run.best.mkdir(exist_ok=True)
                    save_tensors(self._waiting[step], self._run.best_model(step))
            for step, path in self._run.all_best_models().items():
                if step not in best:
                    path.unlink()
        newest = state.best_step if best else state.step
        if newest in self._waiting:
            save_tensors(self._waiting[newest], self._run.model)
        self._waiting.clear()


def note_score(state: TrainingState, score: float, config: Config) -> bool:
    """Count a validation; whether its model is one of those to keep."""
    if math.isfinite(score):  # a score that is no number is never better
        sign = -1 if METRICS[config.validation.metric].higher_is_better else 1
        state.best_models.append((state.step, score))
        state.best_models.sort(key=lambda one: (sign * one[1], one[0]))
        del state.best_models[config.validation.keep_best :]
    is_best = state.best_step == state.step
    state.validations_without_best = 0 if is_best else state.validations_without_best + 1
    return any(step == state.step for step, _ in state.best_models)
