"""The KV caches of the torch engine and the native one: keys and values of all past positions.

A step of a hypothesis fills a slot. Reordering hypotheses moves none: each has a list of its slots,
or a mask. (`model/kv_cache.py` has the cache of the plain engine.)

B sentences, W hypotheses of each, C slots or blocks of slots, T positions so far, H heads, G = B·H
independent attentions, K size of one head, M positions attended to, L decoder layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from seq2seq_cli.decoding.engines import cpu_library

_ROOM = 32  # slots of the torch engine's buffers at first
_VIEW_STEP = 4  # slots by which the views of the buffers grow
KeysAndValues = tuple[Tensor, Tensor]  # GKM and GMK


class TorchCache:
    """Keys and values of the past of a batch, in buffers that are written in place.

    Each step of each hypothesis fills a slot. A hypothesis attends to all slots of its sentence,
    and to some that are still empty; a bias of -inf masks those that are not its own past.
    """

    def __init__(self, num_layers: int, sentences: int, heads: int, size: int) -> None:
        self._past_LC2BHK = torch.zeros(num_layers, _ROOM, 2, sentences, heads, size)
        self._mask_bias_BWC: Tensor | None = None  # None: every hypothesis has all slots
        self._num_slots = 0
        self.views: list[KeysAndValues] = []  # of every layer: keys GKM and values GMK
        self._view_slots()

    def append(self, width: int) -> Sequence[Tensor]:
        """Add a slot for every hypothesis; return where each layer writes it, BW2HK."""
        start, self._num_slots = self._num_slots, self._num_slots + width
        if self._num_slots > self._num_viewed:
            self._view_slots()
        if self._mask_bias_BWC is not None:
            mask_bias_WW = torch.full((width, width), -torch.inf).fill_diagonal_(0)
            new_BWW = mask_bias_WW.expand(len(self._mask_bias_BWC), -1, -1)
            self._mask_bias_BWC = torch.cat([self._mask_bias_BWC, new_BWW], dim=2)
        slots_LW2BHK = self._past_LC2BHK[:, start : self._num_slots]
        return slots_LW2BHK.permute(0, 3, 1, 2, 4, 5).unbind(0)

    def mask_bias(self) -> Tensor:
        """Return 0 for the slots of each hypothesis, else -inf; GWM, or 11M for all alike."""
        if self._mask_bias_BWC is None:
            self._mask_bias_11M[..., self._num_slots - 1] = 0
            return self._mask_bias_11M
        missing = self._num_viewed - self._num_slots
        mask_bias_BWM = F.pad(self._mask_bias_BWC, (0, missing), value=-torch.inf)
        return mask_bias_BWM.repeat_interleave(self._past_LC2BHK.size(4), dim=0)

    def reorder(self, origin_BW: Tensor) -> None:
        if self._mask_bias_BWC is None:
            if origin_BW.size(1) == 1:
                return
            self._mask_bias_BWC = torch.zeros(len(origin_BW), 1, self._num_slots)
        index = origin_BW[:, :, None].expand(-1, -1, self._num_slots)
        self._mask_bias_BWC = self._mask_bias_BWC.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        self._past_LC2BHK = self._past_LC2BHK.index_select(3, sentences_B)
        if self._mask_bias_BWC is not None:
            self._mask_bias_BWC = self._mask_bias_BWC[sentences_B]
        self._view_slots()

    def _view_slots(self) -> None:
        """View the slots in use and a few more, so that not every step needs new views."""
        self._num_viewed = -(-(self._num_slots + 1) // _VIEW_STEP) * _VIEW_STEP
        layers, room, *sizes = self._past_LC2BHK.shape
        if self._num_viewed > room:
            more = self._past_LC2BHK.new_zeros(layers, max(room, self._num_viewed - room), *sizes)
            self._past_LC2BHK = torch.cat([self._past_LC2BHK, more], dim=1)
        past_LM2GK = self._past_LC2BHK[:, : self._num_viewed].flatten(3, 4)
        keys_LMGK, values_LMGK = past_LM2GK.unbind(2)
        self.views = pairs(keys_LMGK.permute(0, 2, 3, 1), values_LMGK.transpose(1, 2))
        self._mask_bias_11M = torch.full((1, 1, self._num_viewed), -torch.inf)
        self._mask_bias_11M[..., : self._num_slots] = 0


def pairs(keys: Tensor, values: Tensor) -> list[KeysAndValues]:
    """Return the pair of every layer; layers are the first dimension of both."""
    return list(zip(keys.unbind(0), values.unbind(0), strict=True))


class NativeCache:
    """Keys and values of the past of a batch, in blocks that C reads and writes.

    Each step of each hypothesis fills a slot, which is never moved; a hypothesis has a list of the
    slots of its past. A block has slots for the sentences that were there when it was allocated, a
    column for each.
    """

    def __init__(
        self, batch: cpu_library.NativeBatch, num_layers: int, d_model: int, sentences: int
    ) -> None:
        """`batch` always points to the present tensors."""
        self._batch = batch
        self._num_layers, self._d_model = num_layers, d_model
        self.blocks: list[Tensor] = []
        self._addresses_C = torch.empty(0, dtype=torch.int64)
        self._num_columns_C = torch.empty(0, dtype=torch.int32)
        self._columns_BC = torch.empty(sentences, 0, dtype=torch.int32)
        self._slots_BWT: Tensor | None = None  # None: every hypothesis has all slots
        self._num_slots = 0

    def append(self, width: int) -> None:
        """Give every hypothesis a slot at the end of its list."""
        first, self._num_slots = self._num_slots, self._num_slots + width
        self._batch.width = width
        self._batch.length += 1
        while self._num_slots > cpu_library.SLOTS * len(self.blocks):
            columns_B = torch.arange(len(self._columns_BC), dtype=torch.int32)
            sizes = (cpu_library.SLOTS, len(columns_B), 2, self._d_model)
            self.blocks.append(cpu_library.empty(self._num_layers, *sizes))
            self._addresses_C = torch.tensor([block.data_ptr() for block in self.blocks])
            num_columns = [block.size(2) for block in self.blocks]
            self._num_columns_C = torch.tensor(num_columns, dtype=torch.int32)
            self._columns_BC = torch.cat([self._columns_BC, columns_B[:, None]], dim=1)
            self._batch.num_blocks = len(self.blocks)
            self._batch.blocks = self._addresses_C.data_ptr()
            self._batch.num_columns = self._num_columns_C.data_ptr()
            self._batch.columns = self._columns_BC.data_ptr()
        if self._slots_BWT is not None:
            new_W1 = torch.arange(first, self._num_slots, dtype=torch.int32)[:, None]
            new_BW1 = new_W1.expand(len(self._slots_BWT), -1, -1)
            self._slots_BWT = torch.cat([self._slots_BWT, new_BW1], dim=2)
            self._batch.slots = self._slots_BWT.data_ptr()

    def reorder(self, origin_BW: Tensor) -> None:
        if self._slots_BWT is None:
            if origin_BW.size(1) == 1:
                return
            slots_T = torch.arange(self._batch.length, dtype=torch.int32)
            self._slots_BWT = slots_T.expand(len(origin_BW), 1, -1)
        index = origin_BW[:, :, None].expand(-1, -1, self._batch.length)
        self._slots_BWT = self._slots_BWT.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        self._columns_BC = self._columns_BC[sentences_B]
        self._batch.columns = self._columns_BC.data_ptr()
        if self._slots_BWT is not None:
            self._slots_BWT = self._slots_BWT[sentences_B]
