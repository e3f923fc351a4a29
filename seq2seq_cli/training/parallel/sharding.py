"""Fully sharded training (`training.shard: full`): no process holds the whole model.

PyTorch's `fully_shard` (FSDP2; Zhao et al. 2023) divides weights, gradients and optimizer state
among the processes: every parameter is a DTensor, of which each process holds some rows. All rows
of a layer are gathered only while it runs. Where a model is validated or saved, the main process
gathers the weights; so all files are those of any other run, but for the optimizer's state
(`sharded_files.py`).
"""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import torch
from torch import Tensor, nn

from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.model.weights import unique_parameters
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.averaging import Ema, Weights, trained_weights
from seq2seq_cli.training.checkpoints.checkpoint import (
    FULL,
    NullSaver,
    Saver,
    load_optimizer,
    make_room,
    optimizer_tensors,
    shards_part,
)
from seq2seq_cli.training.checkpoints.sharded_files import write_shards
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.optimizers.optimizer import build_optimizer
from seq2seq_cli.training.run import Run, WholeModel
from seq2seq_cli.training.setup import make_loss, make_model

if TYPE_CHECKING:  # its import takes time
    from torch.distributed.tensor import DTensor


logger = logging.getLogger(__name__)

AnySaver: TypeAlias = "Saver | NullSaver | ShardedSaver"


def shard_run(run: Run, checkpoint: Path) -> None:
    """Divide a run among its processes: the main one's weights, and a checkpoint's optimizer state.

    Until now the main process has the whole model in CPU memory, and the others have none of it.
    """
    training, whole, whole_ema = run.config.training, run.model, run.ema
    device = choose_device(training.device)
    with torch.device("meta"):
        run.model = make_model(run.config, run.data.tokenizers)
    run.loss = make_loss(run.model, training, device)
    shard_loss(run.loss, device, run.ranks.world_size)
    scatter(unique_parameters(whole), unique_parameters(run.model))
    run.optimizer = build_optimizer(run.model, training)
    load_optimizer(checkpoint, run)
    if training.ema_decay is not None:
        run.ema = Ema(run.model, training.ema_decay)
        scatter(whole_ema.weights if whole_ema else unique_parameters(whole), run.ema.weights)
    if run.ranks.is_main:
        for parameter in whole.parameters():  # keeps nothing but its shape
            parameter.data = torch.zeros((), device=device).expand(parameter.shape)
    run.whole = WholeModel(whole)


def shard_loss(batch_loss: BatchLoss, device: torch.device, world_size: int) -> None:
    """Shard a model on the meta device, with its loss; `scatter` then gives its weights values.

    With mixed precision, the weights of a layer are gathered in bf16. Gradients are sums, in fp32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    model, mesh = batch_loss.model, init_device_mesh(device.type, (world_size,))
    dtype = torch.bfloat16 if batch_loss.use_bf16 else None
    in_layers = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False)
    for layer in (*model.encoder, *model.decoder):
        _materialize(layer, device)
        fully_shard(layer, mesh=mesh, mp_policy=in_layers)
    _materialize(batch_loss, device)
    fully_shard(batch_loss, mesh=mesh)  # what is left: embeddings, projection and the last norms
    for module in batch_loss.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other


def _materialize(module: nn.Module, device: torch.device) -> None:
    """Move parameters from the meta device, in place, so that tied ones stay tied."""
    for parameter in module.parameters():
        if parameter.is_meta:
            empty = nn.Parameter(torch.empty_like(parameter, device=device))
            empty.requires_grad_(parameter.requires_grad)
            torch.utils.swap_tensors(parameter, empty)  # type: ignore[no-untyped-call]


def scatter(whole: Weights, shards: Weights) -> None:
    """Copy whole tensors of the main process into the shards of all; one at a time is whole."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    for name, shard in shards.items():
        assert isinstance(shard, DTensor)
        tensor = whole[name]
        if tensor.is_meta:
            tensor = torch.empty_like(tensor, device=shard.device)
        of_main = distribute_tensor(
            tensor.to(shard.device), shard.device_mesh, shard.placements, src_data_rank=0
        )
        shard.copy_(of_main)


def gather_weights(run: Run) -> None:
    """Give the main process the whole weights of this update; all processes call this together."""
    whole = run.whole
    if whole is None or whole.step == run.state.step:
        return
    whole.step = run.state.step
    whole.trained, whole.evaluated = {}, {}  # first free their memory
    whole.trained = gathered(run, trained_weights(run.model, run.optimizer))
    whole.evaluated = whole.trained if run.ema is None else gathered(run, run.ema.weights)


def gathered(run: Run, tensors: Weights) -> Weights:
    """Return the tensors of a sharded model whole, in CPU memory; none but in the main process.

    Those of a model that is not sharded are returned as they are.
    """
    if run.whole is None:
        return tensors
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = cast("DTensor", tensor.detach()).full_tensor()
        if run.ranks.is_main:
            whole[name] = full.cpu()
    return whole


class ShardedSaver:
    """A Saver of a sharded run, in every process: all have a part in every checkpoint."""

    def __init__(self, folder: RunFolder, run: Run, saver: Saver | NullSaver) -> None:
        """`saver` writes in the main process."""
        self._folder = folder
        self._run = run
        self._saver = saver

    def save(self, *, is_end: bool) -> None:
        """As `Saver.save`."""
        if self._run.ranks.broadcast(self._saver.is_due(is_end=is_end)):
            self._gather()
            self._saver.write_checkpoint(is_end=is_end)

    def record_validation(
        self, metrics: Mapping[Metric, float], *, is_kept: bool, is_end: bool
    ) -> None:
        """As `Saver.record_validation`."""
        if self._run.ranks.broadcast(is_end and not self._saver.is_saved):
            self._gather()
        self._saver.record_validation(metrics, is_kept=is_kept, is_end=is_end)

    def _gather(self) -> None:
        """Give the main process what a checkpoint needs from all."""
        run, training = self._run, self._run.config.training
        with self._saver.allowance.spent():
            gather_weights(run)
            part, tensors = shards_part(self._folder, run.state.step), optimizer_tensors(run)
            while error := write_shards(tensors, part, run.ranks, run.hooks.before_write):
                is_full = run.ranks.is_main and error.errno in FULL
                if not run.ranks.broadcast(
                    is_full and make_room(self._folder, training, run.state.step)
                ):
                    logger.warning(f"cannot write the optimizer's state ({error})")
                    if run.ranks.is_main:
                        shutil.rmtree(part, ignore_errors=True)
                    return


def saver_of(folder: RunFolder, run: Run, saver: Saver | NullSaver) -> AnySaver:
    """Return a Saver in which all processes take part, if the run is sharded."""
    return ShardedSaver(folder, run, saver) if run.is_sharded else saver
