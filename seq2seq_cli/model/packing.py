"""How the tokens of a batch lie in memory: padded, a row for each sentence, or packed into one row.

Only attention sees which sentence a token belongs to; everything else treats all positions alike.
So packed batches (1RD) run through the layers as if they were padded ones (BTD), without spending
time on padding, and attention asks the layout for sentences side by side (BHTK) and back.

B sentences, T positions of the longest, N tokens, R positions of the row they fill, D = H · K,
H heads, K size of one head.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

_Way = Callable[[Tensor], Tensor]


class Layout(Protocol):
    """A layout of the tokens of one side of a batch."""

    def __init__(self, is_token_BT: Tensor) -> None: ...

    def place(self, ids_BT: Tensor, padding: int) -> Tensor:
        """Ids in this layout; what is not a token is `padding`."""

    def pack_positions(self, positions_TD: Tensor) -> Tensor:
        """For every position what belongs to its place in its sentence."""

    def split_heads(self, states_BTD: Tensor, heads: int) -> Tensor:
        """BHTK: head h owns the h-th part of every vector."""

    def join_heads(self, heads_BHTK: Tensor) -> Tensor:
        """The way back, to states in this layout."""


class Padded:
    """A row for each sentence, as long as the longest."""

    def __init__(self, is_token_BT: Tensor) -> None:
        pass

    def place(self, ids_BT: Tensor, padding: int) -> Tensor:
        return ids_BT

    def pack_positions(self, positions_TD: Tensor) -> Tensor:
        return positions_TD

    def split_heads(self, states_BTD: Tensor, heads: int) -> Tensor:
        return states_BTD.view(*states_BTD.shape[:2], heads, -1).transpose(1, 2)

    def join_heads(self, heads_BHTK: Tensor) -> Tensor:
        return heads_BHTK.transpose(1, 2).flatten(2)


class Packed:
    """One row of all tokens, sentence after sentence, filled up to a multiple of `STEP`.

    Few lengths of that row occur in a run, and so few shapes of matrix products: oneDNN compiles
    a kernel for every shape it meets, which costs as much time as the products themselves. The
    row always ends in padding, to which padded positions are mapped.
    """

    STEP = 64

    def __init__(self, is_token_BT: Tensor) -> None:
        slots_N = is_token_BT.flatten().nonzero()[:, 0]
        self.num_tokens = len(slots_N)
        length = (self.num_tokens // self.STEP + 1) * self.STEP
        self.slots_R = torch.cat([slots_N, slots_N.new_zeros(length - self.num_tokens)])
        self.place_BT = torch.full_like(is_token_BT, length - 1, dtype=torch.int64)
        self.place_BT.view(-1)[slots_N] = torch.arange(self.num_tokens, device=slots_N.device)
        self._gathers: dict[int, _HeadIndices] = {}

    def place(self, ids_BT: Tensor, padding: int) -> Tensor:
        ids_R = ids_BT.flatten()[self.slots_R]
        ids_R[self.num_tokens :] = padding
        return ids_R[None]

    def pack_positions(self, positions_TD: Tensor) -> Tensor:
        return positions_TD[self.slots_R % self.place_BT.size(1)]

    def split_heads(self, states_1RD: Tensor, heads: int) -> Tensor:
        gathers = self._head_indices_of(heads)
        split: Tensor = _GatherWithInverse.apply(states_1RD, gathers.split, gathers.join)  # type: ignore[no-untyped-call]
        return split

    def join_heads(self, heads_BHTK: Tensor) -> Tensor:
        gathers = self._head_indices_of(heads_BHTK.size(1))
        joined: Tensor = _GatherWithInverse.apply(heads_BHTK, gathers.join, gathers.split)  # type: ignore[no-untyped-call]
        return joined

    def _head_indices_of(self, heads: int) -> "_HeadIndices":
        if heads not in self._gathers:
            self._gathers[heads] = _HeadIndices(self, heads)
        return self._gathers[heads]


class _HeadIndices:
    """The way of every head's vectors between the row and the padded batch, as two gathers."""

    def __init__(self, packed: Packed, heads: int) -> None:
        head_H = torch.arange(heads, device=packed.slots_R.device)
        longest = packed.place_BT.size(1)
        sentence_R, position_R = packed.slots_R // longest, packed.slots_R % longest
        self.num_tokens = packed.num_tokens
        self.from_row_BHT = packed.place_BT[:, None, :] * heads + head_H[:, None]
        self.from_batch_RH = (sentence_R[:, None] * heads + head_H) * longest + position_R[:, None]

    def split(self, states_1RD: Tensor) -> Tensor:
        """BHTK; a padded position gets the end of the row, which is padding."""
        vectors = states_1RD.reshape(self.from_batch_RH.numel(), -1)
        return vectors.index_select(0, self.from_row_BHT.flatten()).view(
            *self.from_row_BHT.shape, -1
        )

    def join(self, heads_BHTK: Tensor) -> Tensor:
        """1RD; zeros behind the tokens."""
        vectors = heads_BHTK.reshape(self.from_row_BHT.numel(), -1)
        joined = vectors.index_select(0, self.from_batch_RH.flatten())
        states_1RD = joined.view(1, len(self.from_batch_RH), -1)
        states_1RD[:, self.num_tokens :] = 0
        return states_1RD


class _GatherWithInverse(torch.autograd.Function):
    """Vectors moved there; their gradients are moved back, as each token has one place on a side.

    Padding has no gradient: attention gives padded positions none, and the loss none to the
    padding behind the tokens.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, there: _Way, back: _Way) -> Tensor:
        ctx.back = back
        return there(states)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None
