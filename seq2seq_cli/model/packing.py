"""The memory layout of a batch: padded, with a row per sentence, or packed into a single row.

Only attention depends on which sentence a token belongs to; all other layers treat positions alike.
Packed batches (1RD) therefore run through the layers like padded ones (BTD), without computing on
padding, and attention converts them to separate sentences (BHTK) and back.

B sentences, T positions of the longest, N tokens, R positions of the packed row, D = H · K,
H heads, K size of one head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_Gather = Callable[[Tensor], Tensor]


class Padded:
    """One row per sentence, padded to the longest one."""

    places_R = None

    def __init__(self, is_token_BT: Tensor) -> None:
        pass

    def pack_ids(self, ids_BT: Tensor, padding: int) -> Tensor:
        """Return ids in this layout, with `padding` where there is no token."""
        return ids_BT

    def pack_positions(self, positions_TD: Tensor) -> Tensor:
        """Return the positional encoding of every position in this layout."""
        return positions_TD

    def split_heads(self, states_BTD: Tensor, heads: int) -> Tensor:
        """Return one row per sentence and head, BHTK; head h has the h-th part of every vector."""
        return states_BTD.view(*states_BTD.shape[:2], heads, -1).transpose(1, 2)

    def join_heads(self, heads_BHTK: Tensor) -> Tensor:
        """Undo `split_heads`."""
        return heads_BHTK.transpose(1, 2).flatten(2)


class Packed:
    """One row of all tokens, sentence by sentence, padded to a multiple of `STEP`.

    The multiple keeps the number of different matrix shapes small: oneDNN compiles a kernel for
    each, which takes as long as the products themselves. The row always ends in padding, to which
    the padded positions of a batch are mapped.
    """

    STEP = 64

    def __init__(self, is_token_BT: Tensor, numbers_B: Tensor | None = None) -> None:
        """`numbers_B`: the number of each sentence in the update, for the dropout of its rows."""
        batch_index_N = is_token_BT.flatten().nonzero()[:, 0]
        self.num_tokens = len(batch_index_N)
        length = (self.num_tokens // self.STEP + 1) * self.STEP
        self.batch_index_R = torch.cat(
            [batch_index_N, batch_index_N.new_zeros(length - self.num_tokens)]
        )
        self.row_index_BT = torch.full_like(is_token_BT, length - 1, dtype=torch.int64)
        self.row_index_BT.view(-1)[batch_index_N] = torch.arange(
            self.num_tokens, device=batch_index_N.device
        )
        self.longest = is_token_BT.size(1)
        lengths_B = is_token_BT.sum(1)
        self.lengths_B = lengths_B.int()
        self.starts_B = (lengths_B.cumsum(0) - lengths_B).int()
        self.places_R: Tensor | None = None
        if numbers_B is not None:
            sentence_R = self.batch_index_R // self.longest
            self.places_R = (numbers_B[sentence_R] << 32) + self.batch_index_R % self.longest
        self._head_indices: dict[int, _HeadIndices] = {}

    def pack_ids(self, ids_BT: Tensor, padding: int) -> Tensor:
        ids_R = ids_BT.flatten()[self.batch_index_R]
        ids_R[self.num_tokens :] = padding
        return ids_R[None]

    def pack_positions(self, positions_TD: Tensor) -> Tensor:
        return positions_TD[self.batch_index_R % self.longest]

    def split_heads(self, states_1RD: Tensor, heads: int) -> Tensor:
        indices = self._indices_of_heads(heads)
        split: Tensor = _GatherWithInverse.apply(states_1RD, indices.split, indices.join)  # type: ignore[no-untyped-call]
        return split

    def join_heads(self, heads_BHTK: Tensor) -> Tensor:
        indices = self._indices_of_heads(heads_BHTK.size(1))
        joined: Tensor = _GatherWithInverse.apply(heads_BHTK, indices.join, indices.split)  # type: ignore[no-untyped-call]
        return joined

    def _indices_of_heads(self, heads: int) -> "_HeadIndices":
        if heads not in self._head_indices:
            self._head_indices[heads] = _HeadIndices(self, heads)
        return self._head_indices[heads]


BatchLayout = Padded | Packed
LayoutOf = Callable[[Tensor], BatchLayout]  # from which positions are tokens, BT


class _HeadIndices:
    """Indices that gather each head's vectors from the row into a padded batch, and back."""

    def __init__(self, packed: Packed, heads: int) -> None:
        head_H = torch.arange(heads, device=packed.batch_index_R.device)
        longest = packed.longest
        sentence_R, position_R = packed.batch_index_R // longest, packed.batch_index_R % longest
        self.num_tokens = packed.num_tokens
        self.from_row_BHT = packed.row_index_BT[:, None, :] * heads + head_H[:, None]
        self.from_batch_RH = (sentence_R[:, None] * heads + head_H) * longest + position_R[:, None]

    def split(self, states_1RD: Tensor) -> Tensor:
        """Gather into BHTK; padded positions get the end of the row, which is padding."""
        vectors = states_1RD.reshape(self.from_batch_RH.numel(), -1)
        return vectors.index_select(0, self.from_row_BHT.flatten()).view(
            *self.from_row_BHT.shape, -1
        )

    def join(self, heads_BHTK: Tensor) -> Tensor:
        """Gather into 1RD, with zeros after the tokens."""
        vectors = heads_BHTK.reshape(self.from_row_BHT.numel(), -1)
        joined = vectors.index_select(0, self.from_batch_RH.flatten())
        states_1RD = joined.view(1, len(self.from_batch_RH), -1)
        states_1RD[:, self.num_tokens :] = 0
        return states_1RD


class _GatherWithInverse(torch.autograd.Function):
    """A gather whose gradient is the inverse gather, as every token occurs once on either side.

    Padding has no gradient: neither attention nor the loss depends on it.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, gather: _Gather, inverse: _Gather) -> Tensor:
        ctx.inverse = inverse
        return gather(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.inverse(gradient), None, None
