"""Out of memory: batch sizes that did not fit are remembered, and such batches split in advance."""

import gc
import logging
from collections.abc import Iterable

import torch

from seq2seq_cli.data.batches import Batch
from seq2seq_cli.errors import UserError

logger = logging.getLogger(__name__)

_MESSAGES = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")

Size = list[int]  # of a batch: sentences, positions of the longer side (a list, as in JSON)


class BatchSizes:
    """Which sizes of batches did not fit into memory.

    A batch that has at least as many sentences as one that did not fit, and is at least as long, is
    split in halves before it is tried.
    """

    def __init__(self, too_large: list[Size] | None = None) -> None:
        """`too_large`: what earlier updates learnt; it grows here."""
        self.too_large = [] if too_large is None else too_large

    def split(self, batches: Iterable[Batch]) -> list[Batch]:
        """The same pairs, in batches that are not known to be too large."""
        parts = []
        for batch in batches:
            if any(_covers(_size(batch), failed) for failed in self.too_large):
                parts += self.split([batch.shard(2, 0), batch.shard(2, 1)])
            else:
                parts.append(batch)
        return parts

    def record_oom(self, batch: Batch, step: int, num_processes: int) -> None:
        """Reported once a run. Raises UserError if the batch has no two pairs for any process."""
        size = _size(batch)
        where = f"step {step:,}: out of memory with {shape_of(batch)}"
        if size[0] <= num_processes:
            raise UserError(
                f"{where}, which cannot be split; lower data.max_length, or make the model smaller "
                "(model.layers, d_model, d_ff)"
            )
        logger.log(
            logging.DEBUG if self.too_large else logging.WARNING,
            f"{where}: it is split in halves, and so are later ones of this size; the gradient "
            "stays the same, but updates take longer (training.tokens_per_batch: auto avoids it)",
        )
        self.too_large[:] = [seen for seen in self.too_large if not _covers(seen, size)] + [size]


def shape_of(batch: Batch) -> str:
    """In words."""
    sentences, src_positions = batch.src_BS.shape
    return (
        f"a batch of {sentences:,} sentence{'s' * (sentences > 1)}, {src_positions:,} source and "
        f"{batch.labels_BT.size(1):,} target positions each"
    )


def _size(batch: Batch) -> Size:
    return [len(batch.src_BS), max(batch.src_BS.size(1), batch.labels_BT.size(1))]


def _covers(size: Size, other: Size) -> bool:
    """At least as many sentences, and at least as long."""
    return size[0] >= other[0] and size[1] >= other[1]


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a GPU or here. (Mostly Linux ends the process instead.)"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def free_memory() -> None:
    """Give back what nobody holds any longer."""
    gc.collect()
    torch.cuda.empty_cache()
