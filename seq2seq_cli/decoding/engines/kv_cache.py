"""The KV cache of the torch engine: keys and values of all past positions.

A step of a hypothesis fills a slot. Reordering hypotheses moves none: each has a mask of its slots.
(`model/kv_cache.py` has the cache of the plain engine.)

B sentences, W hypotheses of each, C slots, H heads, G = B·H independent attentions, K size of one
head, M positions attended to, L decoder layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

_ROOM = 32  # slots of the buffers at first
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
