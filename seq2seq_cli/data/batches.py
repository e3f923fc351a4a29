"""Padded batches as tensors."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from seq2seq_cli.data.batch_plan import Indices, pad_rows
from seq2seq_cli.data.token_store import TokenStore
from seq2seq_cli.data.tokenization import Ids
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, PAD_ID

IGNORE_INDEX = -100  # the label of padding: the default ignore_index of cross_entropy


@dataclass(frozen=True)
class Batch:
    """Padded ids of B pairs, source S and target T positions."""

    src_BS: Tensor  # ends in EOS, then PAD
    tgt_in_BT: Tensor  # begins with BOS, then PAD
    labels_BT: Tensor  # the next token at each position: ends in EOS, then IGNORE_INDEX
    num_tokens: int  # target tokens, padding excluded
    num_src_tokens: int
    numbers_B: Tensor | None = None  # of the pairs, unique in the update

    @property
    def num_positions(self) -> int:
        """Positions of both sides, padding included."""
        return self.src_BS.numel() + self.labels_BT.numel()

    def shard(self, count: int, first: int) -> "Batch":
        """Return every `count`-th pair from `first` on, or one without labels if there is none."""
        if first >= len(self.src_BS):  # a pair whose loss and gradients are zero
            labels_BT = torch.full_like(self.labels_BT[:1], IGNORE_INDEX)
            return Batch(self.src_BS[:1], self.tgt_in_BT[:1], labels_BT, 0, 0)
        src_BS, tgt_in_BT, labels_BT = (
            ids[first::count] for ids in (self.src_BS, self.tgt_in_BT, self.labels_BT)
        )
        num_tokens = int((labels_BT != IGNORE_INDEX).sum())
        num_src_tokens = int((src_BS != PAD_ID).sum())
        numbers_B = None if self.numbers_B is None else self.numbers_B[first::count]
        return Batch(src_BS, tgt_in_BT, labels_BT, num_tokens, num_src_tokens, numbers_B)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; only kernels for CPUs use the numbers."""
        if device.type == "cpu":
            return self
        src_BS, tgt_in_BT, labels_BT = (
            ids.pin_memory().to(device, non_blocking=True)
            for ids in (self.src_BS, self.tgt_in_BT, self.labels_BT)
        )
        return Batch(src_BS, tgt_in_BT, labels_BT, self.num_tokens, self.num_src_tokens)


def number_pairs(batches: Sequence[Batch]) -> list[Batch]:
    """Give the pairs of an update numbers from 0 on, which they keep in parts of their batches."""
    ends = itertools.accumulate(len(batch.src_BS) for batch in batches)
    return [
        replace(batch, numbers_B=torch.arange(end - len(batch.src_BS), end))
        for batch, end in zip(batches, ends, strict=True)
    ]


def make_batch(store: TokenStore, indices: Sequence[int] | Indices) -> Batch:
    """Read the pairs of a batch from the store and pad them."""
    return padded_batch(*([side[int(i)] for i in indices] for side in (store.src, store.tgt)))


def padded_batch(src: Sequence[Ids], tgt: Sequence[Ids]) -> Batch:
    """Make a batch of ids that end in EOS."""
    src_BS, labels_BT = pad_rows(src, PAD_ID), pad_rows(tgt, IGNORE_INDEX)
    tgt_in_BT = np.full_like(labels_BT, BOS_ID)
    tgt_in_BT[:, 1:] = np.where(labels_BT[:, 1:] == IGNORE_INDEX, PAD_ID, labels_BT[:, :-1])
    return Batch(
        torch.from_numpy(src_BS),
        torch.from_numpy(tgt_in_BT),
        torch.from_numpy(labels_BT),
        num_tokens=sum(map(len, tgt)),
        num_src_tokens=sum(map(len, src)),
    )
