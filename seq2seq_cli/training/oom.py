"""Out of memory: remembers batch shapes that did not fit, and splits such batches in advance."""

import gc
import logging
from collections.abc import Iterable, Sequence

import torch

from seq2seq_cli.console import counted
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.training.run import BatchShape, Run

logger = logging.getLogger(__name__)

_MESSAGES = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def split_batches(batches: Iterable[Batch], too_large: Sequence[BatchShape]) -> list[Batch]:
    """Return the same pairs in batches that are not known to be too large, halving the others."""
    parts = []
    for batch in batches:
        if any(_covers(_shape(batch), failed) for failed in too_large):
            parts += split_batches([batch.shard(2, 0), batch.shard(2, 1)], too_large)
        else:
            parts.append(batch)
    return parts


def record_oom(run: Run, batch: Batch) -> None:
    """Remember the shape of a batch that ran out of memory. UserError if it cannot be split."""
    state, shape = run.state, _shape(batch)
    what = f"step {state.step + 1:,}: out of memory with {describe_shape(batch)}"
    if shape[0] <= run.parallel.world_size:
        raise UserError(
            f"{what}, which cannot be split; lower data.max_length, or make the model smaller "
            "(model.layers, d_model, d_ff)"
        )
    logger.log(
        logging.DEBUG if state.too_large else logging.WARNING,
        f"{what}: it is split in half, and so are later ones of this size; the gradient "
        "stays the same, but updates take longer (training.tokens_per_batch: auto avoids it)",
    )
    state.too_large = [seen for seen in state.too_large if not _covers(seen, shape)] + [shape]


def describe_shape(batch: Batch) -> str:
    sentences, src_positions = batch.src_BS.shape
    return (
        f"a batch of {counted(sentences, 'sentence')}, {src_positions:,} source and "
        f"{batch.labels_BT.size(1):,} target positions each"
    )


def _shape(batch: Batch) -> BatchShape:
    return [len(batch.src_BS), max(batch.src_BS.size(1), batch.labels_BT.size(1))]


def _covers(a: BatchShape, b: BatchShape) -> bool:
    """Return True if `a` has at least as many sentences as `b`, and is at least as long."""
    return a[0] >= b[0] and a[1] >= b[1]


def is_out_of_memory(error: Exception) -> bool:
    """Return True if an allocation failed on a GPU or here. (Linux mostly kills the process.)"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def free_memory() -> None:
    """Return unused memory to the system or the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
