"""A run of training in one of its processes: what is trained, on what data, and how far it is."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import NonNegativeInt, PositiveInt
from seq2seq_cli.data.batch_sampler import BatchSampler
from seq2seq_cli.data.batches import Batch, number_pairs
from seq2seq_cli.data.statistics import TextStatistics, text_statistics
from seq2seq_cli.data.token_store import TokenStore
from seq2seq_cli.evaluation import HeldOut
from seq2seq_cli.machine import available_memory
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.corpus import CorpusCounts
from seq2seq_cli.tokenizers.tokenizer import Tokenizers
from seq2seq_cli.training.checkpoints.averaging import Ema
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.optimizers.schedules import Plan
from seq2seq_cli.training.parallel.strategy import GatheredModel, SingleProcess

BatchShape = list[int]  # sentences and positions of the longer side (a list, as in JSON)


@dataclass
class MetricSums:
    """Sums since the last logged point."""

    loss: float = 0.0  # cross-entropy, in nats
    metrics: dict[str, float] = field(default_factory=dict)  # further ones of the loss, by name
    num_tokens: NonNegativeInt = 0
    num_src_tokens: NonNegativeInt = 0
    num_positions: NonNegativeInt = 0
    skipped: int = 0  # updates, which the other sums leave out
    seconds: float = 0.0


class BestModel(NamedTuple):
    """A model that is kept for its validation score."""

    step: int
    score: float  # by `validation.metric`
    loss: float  # validation loss, which decides between equal scores


def quality(metric: Metric, score: float, loss: float) -> tuple[float, float]:
    """Return what models are compared by: the less the better."""
    return (-score if METRICS[metric].higher_is_better else score), loss


@dataclass
class TrainingState:
    """The progress of a run. With config, weights and optimizer state it determines all the rest.

    A checkpoint stores it as `state.json`.
    """

    text: str = ""  # key of the token store that the epochs go through
    tokens_per_batch: NonNegativeInt = 0  # size of the batches that `position` counts
    scored_by: str = ""  # hash of everything but the model that a validation score depends on
    step: NonNegativeInt = 0  # updates done
    epoch: PositiveInt = 1  # the current pass over the data, from 1
    position: NonNegativeInt = 0  # batches of this epoch already used
    earlier_parts: list[list[int]] = field(default_factory=list)  # see `ConsumedParts`
    awaits_validation: bool = False  # whether the model of this step is still to be validated
    validated_step: NonNegativeInt = 0  # updates done at the last validation
    best_models: list[BestModel] = field(default_factory=list)  # the best first
    validations_without_best: NonNegativeInt = 0
    general_before: float | None = None  # score on `data.general` before training
    general_scored_by: str | None = None  # as `scored_by`, of that score
    too_large: list[BatchShape] = field(default_factory=list)  # batches that ran out of memory
    skipped_in_a_row: int = 0  # updates with a NaN or infinite loss or gradient
    seconds: float = 0.0  # of training, summed over all starts of the run
    updating: float = 0.0  # seconds of the updates since the plan, the first one of all aside
    validation_seconds: float = 0.0  # of the last validation
    plan: Plan = field(default_factory=Plan)
    window: MetricSums = field(default_factory=MetricSums)
    has_ema: bool = False  # whether the checkpoint of this state holds an EMA of the weights

    @property
    def best_step(self) -> int | None:
        return self.best_models[0].step if self.best_models else None


@dataclass(frozen=True)
class TrainingData:
    train: TokenStore
    valid: HeldOut | None  # None without validation text, and in processes other than the main one
    train_counts: CorpusCounts | None  # None where the text itself was not read
    tokenizers: Tokenizers
    batches: BatchSampler
    general: HeldOut | None = None  # as `valid`

    @property
    def stores(self) -> list[TokenStore]:
        """The token ids of the training text and then of the held-out texts."""
        return [self.train, *(text.store for text in (self.valid, self.general) if text)]

    @functools.cached_property
    def statistics(self) -> TextStatistics:
        """Statistics of the training pairs, computed from their ids on first use."""
        return text_statistics(self.train, self.tokenizers.src)


def nothing(*_: object) -> None:
    """The hook that does nothing."""


@dataclass(frozen=True)
class Hooks:
    """Functions that training calls, for programs that drive it and for tests.

    To reach processes that `training.processes` starts, they must be picklable.
    """

    on_step: Callable[[TrainingState], bool | None] = nothing  # after each update; True: stop
    before_write: Callable[[Path], None] = nothing  # may raise OSError, as a full disk does
    monotonic: Callable[[], float] = time.monotonic  # seconds of training
    wall_time: Callable[[], float] = time.time  # of TensorBoard's points
    available_memory: Callable[[], int] = available_memory  # bytes of CPU memory


@dataclass
class Run:
    """Everything that the training loop works with, the same in every process."""

    config: Config  # every `auto` option that a run fixes has its value
    data: TrainingData
    model: Transformer  # on its device
    loss: BatchLoss
    optimizer: torch.optim.Optimizer
    ema: Ema | None = None  # of `training.ema_decay`, in the processes that update it
    parallel: SingleProcess = field(default_factory=SingleProcess)
    hooks: Hooks = field(default_factory=Hooks)
    state: TrainingState = field(default_factory=TrainingState)
    began: float = 0.0  # when the clock of `hooks` began to count `state.seconds`

    @property
    def total_steps(self) -> int:
        """Updates of the whole run, those already done included."""
        return self.state.plan.total

    @property
    def device(self) -> torch.device:
        return choose_device(self.config.training.device)

    @property
    def use_bf16(self) -> bool:
        return self.loss.use_bf16

    @property
    def gathered(self) -> GatheredModel:
        """The model that the main process evaluates, and its weights."""
        return self.parallel.gathered(self)

    @property
    def updates_per_epoch(self) -> int:
        return -(-len(self.data.batches) // self.config.training.gradient_accumulation)

    def count_seconds(self) -> float:
        """Bring `state.seconds` up to date, alike in all processes; return how many came to it."""
        before = self.state.seconds
        now = self.hooks.monotonic() - self.began
        self.state.seconds = self.parallel.all_reduce_max(now)
        return self.state.seconds - before

    def next_batches(self) -> list[Batch]:
        """Return the next update's batches; fewer than `gradient_accumulation` as an epoch ends."""
        state, count = self.state, self.config.training.gradient_accumulation
        sampler = self.data.batches
        batches = sampler.batches(state.epoch, state.position, count, state.earlier_parts)
        return number_pairs(batches)

    def advance(self, batches: Sequence[Batch]) -> None:
        """Count an update with these batches; after the last ones of an epoch, the next begins."""
        state = self.state
        state.step += 1
        state.position += len(batches)
        if state.position == self.data.batches.num_left(state.epoch, state.earlier_parts):
            state.epoch, state.position, state.earlier_parts = state.epoch + 1, 0, []
