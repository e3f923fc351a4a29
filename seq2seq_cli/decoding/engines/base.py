"""The interface between search and engines; the plain engine, which runs the model; ensembles.

B sentences being decoded, W hypotheses of each, V target vocabulary, S source positions.
"""

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native.library import Precision


class DecodingState(Protocol):
    """A batch while it is decoded; at first every sentence has one empty hypothesis."""

    def logits(self, last_BW: Tensor) -> Tensor:
        """Return logits of the token after `last_BW`, BWV in fp32; V may be padded with -inf."""

    def reorder(self, origin_BW: Tensor) -> None:
        """Let hypothesis w of sentence b continue the present hypothesis origin_BW[b, w]."""

    def keep(self, sentences_B: Tensor) -> None:
        """Continue with the given sentences, in that order; the others have been translated."""


class Decoder(Protocol):
    """An engine with a model's weights, or several models together."""

    device: torch.device  # of its tensors
    precision: Precision
    vocab_size: int

    def start(self, src_BS: Tensor) -> DecodingState: ...


class PlainDecoder:
    """The model itself: each hypothesis is a row, with its own copy of the memory."""

    @staticmethod
    def unsupported(model: Transformer, precision: Precision) -> str | None:
        """Return a reason for int8 only: the model itself computes everything else."""
        return "it does not support int8" if precision == "int8" else None

    def __init__(self, model: Transformer, precision: Precision = "fp32") -> None:
        self.model = model
        self.precision = precision
        self.device = model.device
        self.vocab_size = model.tgt_embedding.num_embeddings

    def start(self, src_BS: Tensor) -> "PlainDecodingState":
        return PlainDecodingState(self.model, src_BS, use_bf16=self.precision == "bf16")


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
        sentences_B = torch.arange(len(origin_BW), device=origin_BW.device)
        self._select(sentences_B, origin_BW)

    def keep(self, sentences_B: Tensor) -> None:
        self._select(sentences_B, torch.arange(self._width, device=sentences_B.device))

    def _select(self, sentences_B: Tensor, hypotheses: Tensor) -> None:
        """Select hypotheses, W or BW; each sentence has `width` rows one after the other."""
        rows_BW = sentences_B[:, None] * self._width + hypotheses
        self._cache = self._cache.select(rows_BW.flatten())
        self._width = rows_BW.size(1)


class Ensemble:
    """Models with one vocabulary, whose probabilities are averaged; of ensembles, their members."""

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        members = [each.decoders if isinstance(each, Ensemble) else [each] for each in decoders]
        self.decoders: list[Decoder] = list(itertools.chain(*members))
        self.device, self.precision = decoders[0].device, decoders[0].precision
        self.vocab_size = decoders[0].vocab_size

    def start(self, src_BS: Tensor) -> "EnsembleDecodingState":
        return EnsembleDecodingState(
            [decoder.start(src_BS) for decoder in self.decoders], self.vocab_size
        )


def together(decoders: Sequence[Decoder]) -> Decoder:
    """Return the only decoder, or an ensemble of several."""
    return decoders[0] if len(decoders) == 1 else Ensemble(decoders)


def mean_of_probabilities(logits: Sequence[Tensor]) -> Tensor:
    """Return logits whose softmax is the mean of the softmaxes of the given ones, of one shape."""
    if len(logits) == 1:
        return logits[0]
    return torch.stack([each.log_softmax(dim=-1) for each in logits]).logsumexp(dim=0)


class EnsembleDecodingState:
    def __init__(self, members: Sequence[DecodingState], vocab_size: int) -> None:
        self._members = members
        self._vocab_size = vocab_size

    def logits(self, last_BW: Tensor) -> Tensor:
        logits = [member.logits(last_BW)[..., : self._vocab_size] for member in self._members]
        return mean_of_probabilities(logits)

    def reorder(self, origin_BW: Tensor) -> None:
        for member in self._members:
            member.reorder(origin_BW)

    def keep(self, sentences_B: Tensor) -> None:
        for member in self._members:
            member.keep(sentences_B)
