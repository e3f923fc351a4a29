"""Sampling of tokens, with temperature, top-k and nucleus sampling.

B sentences still being decoded, W hypotheses of each, V target vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.requests import Request
from seq2seq_cli.tokenizers.tokenizer import EOS_ID

Choose = Callable[[Tensor, Sequence[int]], Tensor]  # of tokens, BW, from logits and sentences
_SEGMENTS_APART = 0x9E3779B97F4A7C15  # far more than a text has lines


def sampler(config: DecodingConfig, requests: Sequence[Request], vocab_size: int) -> Choose:
    """Draw from the softmax with temperature, top-k and nucleus sampling (Holtzman et al. 2020).

    A draw depends only on the seed, the numbers of line and segment, and the position. It is EOS
    where the rules leave no token.
    """
    seeds = (
        config.seed * 1_000_003 + request.number + request.segment * _SEGMENTS_APART
        for request in requests
    )
    generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]

    def choose(logits_BWV: Tensor, sentences: Sequence[int]) -> Tensor:
        logits_BWV = logits_BWV[..., :vocab_size] / config.temperature
        if config.top_k is not None:
            least = logits_BWV.topk(min(config.top_k, logits_BWV.size(-1))).values[..., -1:]
            logits_BWV = logits_BWV.masked_fill(logits_BWV < least, -torch.inf)
        if config.top_p < 1:
            # The most probable tokens that together have the probability `top_p`, at least one.
            ordered, index = logits_BWV.sort(dim=-1, descending=True)
            probabilities = ordered.softmax(dim=-1)
            is_beyond = probabilities.cumsum(dim=-1) - probabilities >= config.top_p
            is_beyond[..., 0] = False  # top_p may be 0 in fp32
            ordered = ordered.masked_fill(is_beyond, -torch.inf)
            logits_BWV = logits_BWV.scatter(-1, index, ordered)
        size = logits_BWV.shape[1:]
        noise_BWV = torch.empty(len(sentences), *size, dtype=torch.float32, device="cpu")
        for noise_WV, sentence in zip(noise_BWV, sentences, strict=True):
            noise_WV.exponential_(generator=generators[sentence])
        gumbel_BWV = -noise_BWV.clamp_(min=1e-20).log_().to(logits_BWV.device)
        drawn = (logits_BWV + gumbel_BWV).max(dim=-1)  # the Gumbel-max trick: an exact draw
        return drawn.indices.masked_fill(drawn.values == -torch.inf, EOS_ID)

    return choose
