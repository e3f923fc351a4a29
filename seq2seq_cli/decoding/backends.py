"""What a translator computes with: the native library alone, or models in PyTorch.

PyTorch takes a second to import. It is imported where the library cannot do what is asked for.
"""

import contextlib
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.types import DecodingPrecision, DeviceName
from seq2seq_cli.decoding.engines.native_model import (
    NativeModel,
    packed,
    parameter_shapes,
    unsupported,
)
from seq2seq_cli.decoding.given_score import GivenScore
from seq2seq_cli.decoding.requests import Hypothesis, Ids, Request
from seq2seq_cli.decoding.search import native_search
from seq2seq_cli.machine import may_have_gpu, num_threads
from seq2seq_cli.native.library import Precision
from seq2seq_cli.native.model_code import is_edited
from seq2seq_cli.tokenizers.tokenizer import Tokenizer, Tokenizers
from seq2seq_cli.weight_file import read_arrays

if TYPE_CHECKING:
    from seq2seq_cli.decoding.engines.base import Decoder
    from seq2seq_cli.decoding.search.banned_words import BannedWords
    from seq2seq_cli.model.transformer import Transformer

Pairs = Sequence[tuple[Ids, Ids]]  # source and target ids without EOS


class StoredModel(NamedTuple):
    """A file of weights, and what else it takes to build its model."""

    path: Path
    config: ModelConfig
    tokenizers: Tokenizers
    sha256: str | None = None  # of the weights that were read first: the file may be replaced

    def read(self, precision: Precision) -> "NativeMember":
        """Read the weights for the library, and note their hash; UserError if they do not fit."""
        src, tgt = self.tokenizers
        shapes = parameter_shapes(
            self.config, len(src), len(tgt), is_shared=self.tokenizers.is_shared
        )
        weights, sha256 = read_arrays(self.path, shapes, self.sha256)
        parts = packed(weights, self.config, precision)
        model = NativeModel(parts, self.config, precision, len(src.features))
        return self._replace(path=self.path.absolute(), sha256=sha256), model

    def load(self, device: DeviceName) -> "Transformer":
        """Build the model in PyTorch. Raises UserError if the file does not fit, or has changed."""
        import torch

        from seq2seq_cli.model.device import choose_device, use_threads
        from seq2seq_cli.model.transformer import build_model
        from seq2seq_cli.model.weights import load_weights

        # So that weights that do not fit cost no memory; a model that was edited may have tensors
        # of its own.
        with contextlib.nullcontext() if is_edited() else torch.device("meta"):
            model = build_model(self.config, self.tokenizers)
        with use_threads(1):  # loading is bound by memory, not by cores
            load_weights(model, self.path, self.sha256)
            return model.to(choose_device(device)).eval()


NativeMember = tuple[StoredModel, NativeModel]  # a model in C, and where its weights are stored


class NativeBackend:
    """Models in C: one, or an ensemble. What C cannot search uses PyTorch, on the same weights."""

    device_type = "cpu"

    def __init__(self, members: Sequence[NativeMember]) -> None:
        self.members = tuple(members)
        self._natives = [model for _, model in self.members]
        self.precision = self._natives[0].precision

    def __reduce__(self) -> tuple[type["NativeBackend"], tuple[Sequence[NativeMember]]]:
        return NativeBackend, (self.members,)

    @functools.cached_property
    def models(self) -> "tuple[Transformer, ...]":
        return tuple(stored.load("cpu") for stored, _ in self.members)

    @functools.cached_property
    def decoder(self) -> "Decoder":
        from seq2seq_cli.decoding.engines.base import together
        from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder

        return together([CpuDecoder(model) for model in self._natives])

    @functools.cached_property
    def _models_in_fp32(self) -> Sequence[NativeModel]:
        return [
            model if model.precision == "fp32" else stored.read("fp32")[1]
            for stored, model in self.members
        ]

    def search(
        self, requests: Sequence[Request], config: DecodingConfig, tokenizer: Tokenizer
    ) -> list[list[Hypothesis]]:
        """See search/search.py: search; the tokenizer is the target's."""
        if not native_search.can_search(requests, config):
            return _search_in_torch(self.decoder, requests, config, tokenizer)
        text_of = native_search.key_of_text(config, tokenizer)
        return native_search.search(self._natives, requests, config, text_of, num_threads())

    def score(
        self, pairs: Pairs, tokens_per_batch: int, *, with_attention: bool = False
    ) -> list[GivenScore]:
        """See search/scoring.py: score_given."""
        models, threads = self._models_in_fp32, num_threads()
        return native_search.score(
            models, pairs, tokens_per_batch, with_attention=with_attention, threads=threads
        )


class TorchBackend:
    """Models in PyTorch, and the decoder of one, or of an ensemble."""

    def __init__(self, models: "Sequence[Transformer]", decoders: "Sequence[Decoder]") -> None:
        from seq2seq_cli.decoding.engines.base import together

        self.models = tuple(models)
        self.decoder = together(decoders)
        self.precision = self.decoder.precision
        self.device_type = self.decoder.device.type

    @classmethod
    def of(
        cls, models: "Sequence[Transformer]", precision: DecodingPrecision, config: Config
    ) -> "TorchBackend":
        """Choose the engine for one model, or for each of an ensemble."""
        from seq2seq_cli.decoding.engines.choice import make_decoder

        engine = config.decoding.engine
        return cls(models, [make_decoder(model, precision, engine) for model in models])

    def search(
        self, requests: Sequence[Request], config: DecodingConfig, tokenizer: Tokenizer
    ) -> list[list[Hypothesis]]:
        return _search_in_torch(self.decoder, requests, config, tokenizer)

    def score(
        self, pairs: Pairs, tokens_per_batch: int, *, with_attention: bool = False
    ) -> list[GivenScore]:
        from seq2seq_cli.decoding.search.scoring import score_given

        return score_given(self.models, pairs, tokens_per_batch, with_attention=with_attention)


Backend = NativeBackend | TorchBackend  # searches and scores with one model, or with several


def join(backends: Sequence[Backend]) -> Backend:
    """Return an ensemble, in C if all backends are and read sources in the same way."""
    natives = [backend for backend in backends if isinstance(backend, NativeBackend)]
    members = [member for backend in natives for member in backend.members]
    if len(natives) == len(backends) and len({model.way_to_read for _, model in members}) == 1:
        return NativeBackend(members)
    models = [model for backend in backends for model in backend.models]
    return TorchBackend(models, [backend.decoder for backend in backends])


def _search_in_torch(
    decoder: "Decoder", requests: Sequence[Request], config: DecodingConfig, tokenizer: Tokenizer
) -> list[list[Hypothesis]]:
    from seq2seq_cli.decoding.search.search import search

    rules = [banned_words(tuple(config.banned_words), tokenizer)] if config.banned_words else []
    text_of = native_search.key_of_text(config, tokenizer)
    return search(decoder, requests, config, rules, text_of)


@functools.lru_cache(maxsize=4)
def banned_words(words: tuple[str, ...], tokenizer: Tokenizer) -> "BannedWords":
    """Return the rule against some words. Raises UserError for an empty one."""
    from seq2seq_cli.decoding.search.banned_words import BannedWords

    return BannedWords(words, tokenizer)


def load_backend(
    path: Path,
    config: Config,
    tokenizers: Tokenizers,
    device: DeviceName,
    precision: DecodingPrecision,
) -> Backend:
    """Load weights: for the native library alone if it decodes this model on this device."""
    stored = StoredModel(path, config.model, tokenizers)
    chosen: Precision = "int8" if precision == "auto" else precision
    on_cpu = device == "cpu" or (device == "auto" and not may_have_gpu())
    if on_cpu and config.decoding.engine != "plain" and not unsupported(config.model, chosen):
        return NativeBackend([stored.read(chosen)])
    return TorchBackend.of([stored.load(device)], precision, config)
