"""The greatest logits of every row, found in two stages.

B sentences, W hypotheses of each, V target vocabulary.
"""

from typing import NamedTuple

from torch import Tensor

_CHUNK = 64  # logits of which the greatest is looked up first
_FEW = 100_000  # logits of which one stage finds the greatest sooner


class TopK(NamedTuple):
    """The greatest of every row, in falling order."""

    logits: Tensor
    tokens: Tensor


def top_k(logits_BWV: Tensor, k: int) -> TopK:
    """As torch.topk: but only chunks that have one of the k greatest maxima are searched."""
    vocabulary = logits_BWV.size(-1)
    k = min(k, vocabulary)
    if k == 1 and logits_BWV.numel() < _FEW:
        return TopK(*logits_BWV.max(dim=-1, keepdim=True))
    chunks = vocabulary // _CHUNK
    if vocabulary % _CHUNK or chunks < 2 * k:
        return TopK(*logits_BWV.topk(k))
    chunked = logits_BWV.view(*logits_BWV.shape[:-1], chunks, _CHUNK)
    chosen_BWk = chunked.amax(dim=-1).topk(k, sorted=False).indices
    index = chosen_BWk[..., None].expand(-1, -1, -1, _CHUNK)
    values, places = chunked.gather(2, index).flatten(2).topk(k)
    return TopK(values, chosen_BWk.gather(-1, places // _CHUNK) * _CHUNK + places % _CHUNK)
