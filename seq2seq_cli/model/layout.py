"""How the tokens of a batch lie in memory: padded, a row for each sentence, or packed into one row.

Only attention sees which sentence a token belongs to; everything else treats all positions alike.
So packed batches (1RD) run through the layers as if they were padded ones (BTD), without spending
time on padding, and attention asks the layout for sentences side by side (BHTK) and back.

B sentences, T positions of the longest, R positions of all tokens in one row, D = H · K, H heads,
K size of one head.
"""

from typing import Any, Protocol

import torch
from torch import Tensor


class Layout(Protocol):
    """A layout of the tokens of one side of a batch."""

    def __init__(self, is_token_BT: Tensor) -> None: ...

    def place(self, ids_BT: Tensor, padding: int) -> Tensor:
        """Ids in this layout; what is not a token is `padding`."""

    def place_signals(self, signals_TD: Tensor) -> Tensor:
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

    def place_signals(self, signals_TD: Tensor) -> Tensor:
        return signals_TD

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
        self.shape = is_token_BT.shape
        slots_R = is_token_BT.flatten().nonzero()[:, 0]
        self.num_tokens = len(slots_R)
        length = (self.num_tokens // self.STEP + 1) * self.STEP
        self.slots_R = torch.cat([slots_R, slots_R.new_zeros(length - self.num_tokens)])
        self.places = slots_R.new_full((is_token_BT.numel(),), length - 1)  # B·T: where in the row
        self.places[slots_R] = torch.arange(self.num_tokens, device=slots_R.device)

    def place(self, ids_BT: Tensor, padding: int) -> Tensor:
        ids_R = ids_BT.flatten()[self.slots_R]
        ids_R[self.num_tokens :] = padding
        return ids_R[None]

    def place_signals(self, signals_TD: Tensor) -> Tensor:
        return signals_TD[self.slots_R % self.shape[1]]

    def split_heads(self, states_1RD: Tensor, heads: int) -> Tensor:
        padded: Tensor = _Pad.apply(states_1RD[0], self)  # type: ignore[no-untyped-call]
        return padded.view(*self.shape, heads, -1).transpose(1, 2)

    def join_heads(self, heads_BHTK: Tensor) -> Tensor:
        padded = heads_BHTK.transpose(1, 2).reshape(len(self.places), -1)
        packed: Tensor = _Pack.apply(padded, self)  # type: ignore[no-untyped-call]
        return packed[None]

    def pad(self, rows_RD: Tensor) -> Tensor:
        """Every slot of the padded batch its row; a padded slot the last row, which is padding."""
        return rows_RD.index_select(0, self.places)

    def pack(self, slots: Tensor) -> Tensor:
        """Every row its slot of the padded batch; zeros behind the tokens."""
        rows_RD = slots.index_select(0, self.slots_R)
        rows_RD[self.num_tokens :] = 0
        return rows_RD


class _Pad(torch.autograd.Function):
    """`Packed.pad`. Its gradient is `pack`: attention gives padded positions none."""

    @staticmethod
    def forward(ctx: Any, rows_RD: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return packed.pad(rows_RD)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.packed.pack(gradient), None


class _Pack(torch.autograd.Function):
    """`Packed.pack`. Its gradient is `pad`: the loss gives the padding behind the tokens none."""

    @staticmethod
    def forward(ctx: Any, slots: Tensor, packed: Packed) -> Tensor:
        ctx.packed = packed
        return packed.pack(slots)

    @staticmethod
    def backward(ctx: Any, gradient_RD: Tensor) -> tuple[Tensor, None]:
        return ctx.packed.pad(gradient_RD), None
