"""Fully sharded training (`training.shard: full`): no process holds the whole model.

PyTorch's `fully_shard` (FSDP2; Zhao et al. 2023) shards weights, gradients and optimizer state
across the processes: every parameter is a DTensor, of which each process holds some rows. The rows
of a layer are gathered only while it runs. To validate or save, the main process gathers all
weights; so all files but the optimizer's state are as in any other run.
"""

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, distributed, nn

from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.shard.optimizer_shards import (
    HASHES,
    check_optimizer,
    load_shards,
    write_shards,
)
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.model.parameters import unique_parameters
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import Weights
from seq2seq_cli.training.checkpoints.averaging import Ema
from seq2seq_cli.training.checkpoints.checkpoint import FULL, Saver, make_room, shards_part
from seq2seq_cli.training.checkpoints.optimizer_state import optimizer_tensors
from seq2seq_cli.training.losses.consistency import build_loss
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.oom import describe_shape
from seq2seq_cli.training.optimizers.optimizer import build_optimizer, trained_weights
from seq2seq_cli.training.parallel.strategy import (
    Accumulate,
    Accumulated,
    DataParallel,
    GatheredModel,
)
from seq2seq_cli.training.run import Run
from seq2seq_cli.training.setup import make_model

if TYPE_CHECKING:  # its import takes time
    from torch.distributed.tensor import DTensor

logger = logging.getLogger(__name__)


class FullyShard(DataParallel):
    """Each process trains its shard of the model on its shard of every batch."""

    _gathered: GatheredModel | None = None  # None until `start`; no weights in other processes
    _gathered_step: int | None = None

    def build_model(self, build: Callable[[], Transformer], device: torch.device) -> Transformer:
        """Until `start` the main process has all weights in CPU memory, and the others none."""
        with nullcontext() if self.is_main else torch.device("meta"):
            return build()

    def load_weights(self, model: nn.Module, path: Path) -> None:
        if self.is_main:
            super().load_weights(model, path)

    def load_optimizer(self, checkpoint: Path, run: Run) -> None:
        """Only check it: `start` loads it into the shards."""
        if self.is_main:
            check_optimizer(checkpoint, run)

    def start(self, run: Run, checkpoint: Path) -> None:
        """Shard the main process's weights, and the optimizer state of the checkpoint."""
        training, whole, whole_ema = run.config.training, run.model, run.ema
        device = choose_device(training.device)
        with torch.device("meta"):
            run.model = make_model(run.config, run.data.tokenizers)
        run.loss = build_loss(run.model, training, device)
        shard_loss(run.loss, device, self.world_size)
        scatter(unique_parameters(whole), unique_parameters(run.model))
        run.optimizer = build_optimizer(run.model, training)
        load_shards(checkpoint, run)
        if training.ema_decay is not None:
            run.ema = Ema(run.model, training.ema_decay)
            scatter(whole_ema.weights if whole_ema else unique_parameters(whole), run.ema.weights)
        if self.is_main:
            for parameter in whole.parameters():  # keeps nothing but its shape
                parameter.data = torch.zeros((), device=device).expand(parameter.shape)
        self._gathered = GatheredModel(whole, {}, {})

    def sum_gradients(
        self, loss: nn.Module, batches: Sequence[Batch], num_losses: int, accumulate: Accumulate
    ) -> Accumulated:
        """The backward pass has summed the gradients.

        As every layer waits for all processes, none can start over: raises UserError when out of
        memory.
        """
        losses, failed = accumulate()
        if failed is not None:
            raise UserError(
                f"out of memory with {describe_shape(batches[failed])}, which training.shard: full "
                "does not split; lower training.tokens_per_batch; the same command resumes from "
                "the last checkpoint"
            )
        sums = torch.tensor(losses, device=next(loss.parameters()).device)
        distributed.all_reduce(sums)
        return sums.tolist(), None

    def grad_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return cast("DTensor", super().grad_norm(gradients)).full_tensor()

    def waiting_and_communication(self) -> None:
        """Not known: layers communicate while they compute."""

    def gather(self, tensors: Weights) -> Weights:
        """Return the tensors whole, in CPU memory; empty in all but the main process."""
        whole: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = cast("DTensor", tensor.detach()).full_tensor()
            if self.is_main:
                whole[name] = full.cpu()
        return whole

    def gather_weights(self, run: Run) -> None:
        assert self._gathered is not None, "the run has started"
        if self._gathered_step != run.state.step:
            model, self._gathered_step = self._gathered.model, run.state.step
            self._gathered = GatheredModel(model, {}, {})  # first frees the memory of the last
            trained = self.gather(trained_weights(run.model, run.optimizer))
            evaluated = trained if run.ema is None else self.gather(run.ema.weights)
            self._gathered = GatheredModel(model, trained, evaluated)

    def gathered(self, run: Run) -> GatheredModel:
        return self._gathered or super().gathered(run)

    def save_optimizer(self, checkpoint: Path, run: Run) -> None:
        """Take the shards that all processes have written. Raises OSError if they could not."""
        if self._gathered is None:
            super().save_optimizer(checkpoint, run)
            return
        shards = shards_part(checkpoint.with_suffix(""))
        if not (shards / HASHES).exists():
            raise OSError("the optimizer's state could not be written")
        shards.rename(checkpoint / "optimizer")

    def saver(self, saver: Saver, run: Run) -> Saver:
        return ShardedSaver(saver, run)


class ShardedSaver(Saver):
    """A Saver in every process: all take part in every checkpoint."""

    def __init__(self, saver: Saver, run: Run) -> None:
        """`saver` writes in the main process."""
        super().__init__(saver.folder, run)
        self._saver = saver

    def save(self, *, is_end: bool) -> None:
        if self.run.parallel.broadcast(self._saver.is_due(is_end=is_end)):
            self._gather()
            self._saver.write_checkpoint(is_end=is_end)

    def record_validation(
        self, metrics: Mapping[Metric, float], *, is_kept: bool, is_end: bool
    ) -> None:
        if self.run.parallel.broadcast(is_end and not self._saver.is_saved):
            self._gather()
        self._saver.record_validation(metrics, is_kept=is_kept, is_end=is_end)

    def _gather(self) -> None:
        """Give the main process the weights, and write the optimizer's state in all."""
        run, parallel, folder = self.run, self.run.parallel, self._saver.folder
        with self._saver.budget.spent():
            parallel.gather_weights(run)
            part = shards_part(folder.checkpoint(run.state.step))
            tensors = optimizer_tensors(run)
            while error := write_shards(tensors, part, parallel, run.hooks.before_write):
                is_full = parallel.is_main and error.errno in FULL
                if not parallel.broadcast(
                    is_full and make_room(folder, run.config.training, run.state.step)
                ):
                    logger.warning(f"cannot write the optimizer's state ({error})")
                    if parallel.is_main:
                        shutil.rmtree(part, ignore_errors=True)
                    return


def shard_loss(batch_loss: BatchLoss, device: torch.device, world_size: int) -> None:
    """Shard a model on the meta device, with its loss; `scatter` then gives its weights values.

    With mixed precision, the weights of a layer are gathered in bf16. Gradients are sums, in fp32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    def materialize(module: nn.Module) -> None:  # in place, so that tied parameters stay tied
        for parameter in module.parameters():
            if parameter.is_meta:
                empty = nn.Parameter(torch.empty_like(parameter, device=device))
                empty.requires_grad_(parameter.requires_grad)
                torch.utils.swap_tensors(parameter, empty)  # type: ignore[no-untyped-call]

    model, mesh = batch_loss.model, init_device_mesh(device.type, (world_size,))
    dtype = torch.bfloat16 if batch_loss.use_bf16 else None
    in_layers = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for layer in (*model.encoder, *model.decoder):
        materialize(layer)
        fully_shard(layer, mesh=mesh, mp_policy=in_layers)
    materialize(batch_loss)
    fully_shard(batch_loss, mesh=mesh)  # what is left: embeddings, projection and the last norms
    for module in batch_loss.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other


def scatter(whole: Weights, shards: Weights) -> None:
    """Copy whole tensors of the main process into the shards of all, one tensor at a time."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, shard in shards.items():
        assert isinstance(shard, DTensor)
        tensor = whole[name]
        if tensor.is_meta:
            tensor = torch.empty_like(tensor, device=shard.device)
        shard.copy_(
            distribute_tensor(
                tensor.to(shard.device), shard.device_mesh, shard.placements, src_data_rank=0
            )
        )
