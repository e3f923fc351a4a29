"""top_k(): the greatest logits of every row, found in two stages.

B sentences, W hypotheses of each, V target vocabulary.
"""

from torch import Tensor

_CHUNK = 64  # logits whose maximum is computed in the first stage
_FEW = 100_000  # logits up to which one stage is faster if k is 1


def top_k(logits_BWV: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what torch.topk returns, BWk; search only the chunks with the k greatest maxima."""
    vocabulary = logits_BWV.size(-1)
    k = min(k, vocabulary)
    if k == 1 and logits_BWV.numel() < _FEW:
        return logits_BWV.max(dim=-1, keepdim=True)
    chunks = vocabulary // _CHUNK
    if vocabulary % _CHUNK or chunks < 2 * k:
        return logits_BWV.topk(k)
    chunked = logits_BWV.view(*logits_BWV.shape[:-1], chunks, _CHUNK)
    chosen_BWk = chunked.amax(dim=-1).topk(k, sorted=False).indices
    index = chosen_BWk[..., None].expand(-1, -1, -1, _CHUNK)
    values, places = chunked.gather(2, index).flatten(2).topk(k)
    return values, chosen_BWk.gather(-1, places // _CHUNK) * _CHUNK + places % _CHUNK
