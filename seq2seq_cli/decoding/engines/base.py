"""What a search asks of a model: the next token's logits for hypotheses that grow and are chosen.

B sentences being decoded, W hypotheses of each, V target vocabulary, S source positions.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from seq2seq_cli.decoding.engines.linear import Precision
from seq2seq_cli.model.transformer import Transformer

WORTH_LEAVING = 0.75  # share of unfinished sentences at which copying them to leave others pays


class DecodingState(Protocol):
    """A batch half-way through its decoding; at first every sentence has one empty hypothesis."""

    def logits(self, last_BW: Tensor) -> Tensor:
        """Of the token after `last_BW`, BWV in fp32; V may be rounded up with -inf."""

    def reorder(self, origin_BW: Tensor) -> None:
        """From now on hypothesis w of sentence b continues the old hypothesis origin_BW[b, w]."""

    def keep(self, sentences_B: Tensor) -> None:
        """The given sentences go on, in that order; the others have been translated."""


@runtime_checkable
class GreedyDecodingState(DecodingState, Protocol):
    """Those that choose a token themselves, sooner than who asks for all logits."""

    def argmax_token(self, last_BW: Tensor, forbidden_N: Tensor) -> Tensor:
        """The likeliest token after `last_BW` but those forbidden, BW; EOS where none is left."""


class Decoder(Protocol):
    """Something that can be searched: a model, a fast twin of it, or several models together."""

    device: torch.device  # where its tensors are
    vocab_size: int

    def start(self, src_BS: Tensor) -> DecodingState: ...


class PlainDecoder:
    """The model as it is: each hypothesis is a row of its own, with its copy of the source."""

    @staticmethod
    def unsupported(model: Transformer, precision: Precision) -> str | None:
        """It computes every model, but not in int8."""
        return "it has no int8 products" if precision == "int8" else None

    def __init__(self, model: Transformer, precision: Precision = "fp32") -> None:
        self.model = model
        self.use_bf16 = precision == "bf16"
        self.device = model.device
        self.vocab_size = model.projection.out_features

    def start(self, src_BS: Tensor) -> "PlainDecodingState":
        return PlainDecodingState(self.model, src_BS, use_bf16=self.use_bf16)


class PlainDecodingState:
    def __init__(self, model: Transformer, src_BS: Tensor, *, use_bf16: bool = False) -> None:
        self._model = model
        self._use_bf16 = use_bf16
        with self._precision():
            self._cache = model.start_cache(model.encode(src_BS))
        self._width = 1

    def _precision(self) -> torch.autocast:
        return torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._use_bf16)

    def logits(self, last_BW: Tensor) -> Tensor:
        with self._precision():
            logits_N1V = self._model.decode(last_BW.reshape(-1, 1), self._cache)
        return logits_N1V.float().view(*last_BW.shape, -1)

    def reorder(self, origin_BW: Tensor) -> None:
        self._cache = self._cache.select(rows_of(origin_BW, self._width))
        self._width = origin_BW.size(1)

    def keep(self, sentences_B: Tensor) -> None:
        hypotheses_W = torch.arange(self._width, device=sentences_B.device)
        self._cache = self._cache.select(
            (sentences_B[:, None] * self._width + hypotheses_W).flatten()
        )


class Ensemble:
    """Several models with one vocabulary: the mean of their probabilities."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self.decoders = decoders
        self.device, self.vocab_size = decoders[0].device, decoders[0].vocab_size

    def start(self, src_BS: Tensor) -> "EnsembleDecodingState":
        return EnsembleDecodingState([one.start(src_BS) for one in self.decoders], self.vocab_size)


class EnsembleDecodingState:
    def __init__(self, members: Sequence[DecodingState], vocab_size: int) -> None:
        self._members = members
        self._vocab_size = vocab_size

    def logits(self, last_BW: Tensor) -> Tensor:
        """Log-probabilities, which are logits too: their softmax is the mean of softmaxes."""
        of_each = [member.logits(last_BW)[..., : self._vocab_size] for member in self._members]
        log_probs = [logits_BWV.log_softmax(dim=-1) for logits_BWV in of_each]
        return torch.stack(log_probs).logsumexp(dim=0)

    def reorder(self, origin_BW: Tensor) -> None:
        for member in self._members:
            member.reorder(origin_BW)

    def keep(self, sentences_B: Tensor) -> None:
        for member in self._members:
            member.keep(sentences_B)


def rows_of(origin_BW: Tensor, width: int) -> Tensor:
    """Numbers of the rows of `width` hypotheses each sentence has, sentence after sentence."""
    first_B1 = torch.arange(len(origin_BW), device=origin_BW.device)[:, None] * width
    return (first_B1 + origin_BW).flatten()
