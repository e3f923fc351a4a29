"""Functions of the native library that searches with PyTorch call.

B sentences, W hypotheses of each, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.native.library import library, precisions

CPU = torch.device("cpu")


def empty(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.float32, device=CPU)


def log_sum_exp(logits_BWV: Tensor) -> Tensor:
    """Return the logarithm of the sum of e^logits, BW1."""
    if not can_read(logits_BWV):
        return logits_BWV.logsumexp(dim=-1, keepdim=True)
    totals_BW1 = empty(*logits_BWV.shape[:-1], 1)
    rows, size, threads = totals_BW1.numel(), logits_BWV.size(-1), torch.get_num_threads()
    library().log_sum_exp(rows, size, logits_BWV.data_ptr(), totals_BW1.data_ptr(), threads)
    return totals_BW1


def argmax_token(logits_BWV: Tensor, otherwise: int) -> Tensor:
    """Return the first token of the greatest logit, BW; `otherwise` where all logits are -inf."""
    tokens_BW = torch.empty(logits_BWV.shape[:-1], dtype=torch.int64)
    rows, size, threads = tokens_BW.numel(), logits_BWV.size(-1), torch.get_num_threads()
    library().find_greatest(
        rows, size, logits_BWV.data_ptr(), 0, None, otherwise, tokens_BW.data_ptr(), threads
    )
    return tokens_BW


class BeamStep(NamedTuple):
    """The next hypotheses of every sentence, the best first, and those that end."""

    sums_BW: Tensor  # log-probabilities, -inf where too few continuations are possible
    origins_BW: Tensor  # the hypothesis that is continued
    tokens_BW: Tensor
    ended_BW: Tensor  # log-probability of each present hypothesis with its end; -inf: it goes on


def beam_step(logits_BWV: Tensor, offsets_BW1: Tensor, beam_size: int, end: int) -> BeamStep:
    """Continue the hypotheses by the most probable tokens; see cpu_decoder.c: beam_step."""
    sentences, width, size = logits_BWV.shape
    origins_BW, tokens_BW = torch.empty(2, sentences, beam_size, dtype=torch.int64)
    sums_BW, ended_BW = empty(sentences, beam_size), empty(sentences, width)
    library().beam_step(
        sentences,
        width,
        size,
        logits_BWV.data_ptr(),
        offsets_BW1.data_ptr(),
        beam_size,
        end,
        sums_BW.data_ptr(),
        origins_BW.data_ptr(),
        tokens_BW.data_ptr(),
        ended_BW.data_ptr(),
        torch.get_num_threads(),
    )
    return BeamStep(sums_BW, origins_BW, tokens_BW, ended_BW)


def can_read(x: Tensor) -> bool:
    """Whether C can read the tensor, and was compiled for this processor."""
    is_plain = x.device == CPU and x.dtype == torch.float32 and x.is_contiguous()
    return is_plain and bool(precisions())
