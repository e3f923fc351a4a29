"""The torch engine: the Transformer for decoding on a CPU, in fewer operations of PyTorch.

It computes what `model/transformer.py` computes, except for rounding. Projections of the same input
are one product; keys and values are written into buffers, not concatenated; all hypotheses of a
sentence attend to one copy of its source. Products are fp32, bf16 or int8 (`torch_linear.py`).

B sentences, W hypotheses of each, N = B·W rows, S source positions, D d_model, H heads, G = B·H
independent attentions, K size of one head, M positions attended to, L decoder layers, V vocabulary,
J pairs of dimensions of a head, T positions.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.decoding.engines.base import Precision
from seq2seq_cli.decoding.engines.capabilities import (
    ALL_VALUES,
    MODULES,
    Capabilities,
    PositionTable,
)
from seq2seq_cli.decoding.engines.kv_cache import TorchCache, pairs
from seq2seq_cli.decoding.engines.torch_layers import (
    Step,
    TorchDecoderLayer,
    TorchEncoderLayer,
    rotate,
)
from seq2seq_cli.decoding.engines.torch_linear import int8_engines, make_linear
from seq2seq_cli.model.attention import padding_mask
from seq2seq_cli.model.device import use_threads
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer
from seq2seq_cli.model.transformer import Transformer

_VOCABULARY_STEP = 64  # the vocabulary is rounded up to a multiple, for top_k.py

# The least work of a pass that pays for a second thread, in products; reading a weight costs as
# much as 13 of them. With less work threads mostly wait for each other.
_THREADS_THRESHOLD = 40 << 20
_WORK_OF_READING = 13

_CAPABILITIES = Capabilities(
    MODULES,
    activations=None,
    options={
        **ALL_VALUES,
        "norm": ("pre", "post"),
        "attention_scale": ("sqrt", "none", "temperature"),
        "positions": ("sinusoidal", "rotary"),
    },
)


class TorchDecoder:
    """A copy of a model's weights, laid out for decoding."""

    device = torch.device("cpu")

    @staticmethod
    def unsupported(model: Transformer, precision: Precision) -> str | None:
        """Return the reason why it cannot compute the model on this machine, or None."""
        if model.device.type != "cpu":
            return "it needs a CPU"
        if precision == "int8" and int8_engines() is None:
            return "PyTorch does not support int8 on this processor"
        return _CAPABILITIES.missing(model)

    def __init__(self, model: Transformer, precision: Precision) -> None:
        """`unsupported` must have returned None."""
        encoder: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
        decoder: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
        self.pad_id = model.pad_id
        self.precision = precision
        self.vocab_size = model.projection.out_features
        self.heads = encoder[0].self_attention.heads
        self.d_model = model.projection.in_features
        self.size = self.d_model // self.heads
        self.scaled_src = model.src_embedding.weight.detach() * model.scale
        self.scaled_tgt = model.tgt_embedding.weight.detach() * model.scale
        self.encoder = [TorchEncoderLayer(layer, precision) for layer in encoder]
        self.decoder = [TorchDecoderLayer(layer, precision) for layer in decoder]
        attentions = [layer.cross_attention for layer in decoder]
        self.memory = make_linear(
            [part for a in attentions for part in (a.key, a.value)], precision
        )
        self.encoder_norm, self.decoder_norm = model.encoder_norm, model.decoder_norm
        self._rotates_memory = model.config.rotary_cross_attention
        self._positions = PositionTable(model)
        self._is_rotary = model.config.positions == "rotary"
        self.projection = make_linear([_round_up(model.projection)], precision)
        self._encoder_size = sum(weight.numel() for weight in model.encoder.parameters())
        self.decoder_size = sum(weight.numel() for weight in model.decoder.parameters())
        self.decoder_size += model.projection.weight.numel()

    def positions(self, start: int, stop: int) -> tuple[Tensor | None, Tensor | None]:
        """Return what is added to states at these positions, TD, or their rotations, complex TJ."""
        part = self._positions.up_to(stop)[start:stop]
        return (None, torch.view_as_complex(part)) if self._is_rotary else (part, None)

    def start(self, src_BS: Tensor) -> "TorchDecodingState":
        """Encode the sources."""
        with torch.inference_mode(), use_threads(num_threads(self._encoder_size, src_BS.numel())):
            mask_B11S = padding_mask(src_BS, self.pad_id)
            mask_bias_B11S = None
            if not mask_B11S.all():
                mask_bias_B11S = torch.zeros(mask_B11S.shape).masked_fill_(~mask_B11S, -torch.inf)
            vectors_SD, rotation_SJ = self.positions(0, src_BS.size(1))
            if (index_BS := self._positions.of_sources(src_BS)) is not None:
                vectors_SD, rotation_SJ = (
                    table if table is None else table[index_BS]
                    for table in (vectors_SD, rotation_SJ)
                )
            states_BSD = F.embedding(src_BS, self.scaled_src)
            if vectors_SD is not None:
                states_BSD += vectors_SD
            states_ND = states_BSD.flatten(0, 1)
            mask_bias_G1S = _for_heads(mask_bias_B11S, self.heads)
            for layer in self.encoder:
                states_ND = layer(states_ND, mask_bias_G1S, src_BS.shape, rotation_SJ)
            memory = self.memory(self.encoder_norm(states_ND))
            memory_BSL2HK = memory.view(*src_BS.shape, -1, 2, self.heads, self.size)
            if self._rotates_memory:
                assert rotation_SJ is not None, "the config requires rotary self-attention"
                rotate(memory_BSL2HK[..., 0, :, :], rotation_SJ)
            return TorchDecodingState(self, memory_BSL2HK, mask_bias_B11S)


class TorchDecodingState:
    """The `DecodingState` of one batch; keys and values are moved only when sentences leave."""

    def __init__(
        self, model: TorchDecoder, memory_BSL2HK: Tensor, mask_bias_B11S: Tensor | None
    ) -> None:
        self._model = model
        self._memory_L2BHSK = memory_BSL2HK.permute(2, 3, 0, 4, 1, 5).contiguous()
        self._mask_bias_B11S = mask_bias_B11S
        self._past = TorchCache(len(model.decoder), len(memory_BSL2HK), model.heads, model.size)
        self._position = 0
        self._view_memory()

    def logits(self, last_BW: Tensor) -> Tensor:
        model, shape = self._model, last_BW.shape
        with torch.inference_mode(), use_threads(num_threads(model.decoder_size, last_BW.numel())):
            new = self._past.append(shape[1])
            vectors_1D, rotation_1J = model.positions(self._position, self._position + 1)
            step = Step(shape, rotation_1J, self._past.mask_bias(), self._mask_bias_G1S)
            states_ND = F.embedding(last_BW.view(-1), model.scaled_tgt)
            if vectors_1D is not None:
                states_ND += vectors_1D
            self._position += 1
            for layer, new_BW2HK, past, memory in zip(
                model.decoder, new, self._past.views, self._memory_views, strict=True
            ):
                states_ND = layer(states_ND, new_BW2HK, past, memory, step)
            logits_NV = model.projection(model.decoder_norm(states_ND))
            return logits_NV.view(*shape, -1)

    def reorder(self, origin_BW: Tensor) -> None:
        self._past.reorder(origin_BW)

    def keep(self, sentences_B: Tensor) -> None:
        self._past.keep(sentences_B)
        self._memory_L2BHSK = self._memory_L2BHSK.index_select(2, sentences_B)
        if self._mask_bias_B11S is not None:
            self._mask_bias_B11S = self._mask_bias_B11S[sentences_B]
        self._view_memory()

    def _view_memory(self) -> None:
        keys_LGSK, values_LGSK = self._memory_L2BHSK.flatten(2, 3).unbind(1)
        self._memory_views = pairs(keys_LGSK.mT, values_LGSK)
        self._mask_bias_G1S = _for_heads(self._mask_bias_B11S, self._model.heads)


def num_threads(num_weights: int, rows: int) -> int:
    """Return the number of threads for a pass of `rows` rows through `num_weights` weights."""
    is_little = num_weights * (rows + _WORK_OF_READING) < _THREADS_THRESHOLD
    return 1 if is_little else torch.get_num_threads()


def _for_heads(mask_bias_B11S: Tensor | None, heads: int) -> Tensor | None:
    """Repeat a sentence's mask bias for each of its heads, G1S."""
    return None if mask_bias_B11S is None else mask_bias_B11S[:, 0].repeat_interleave(heads, dim=0)


def _round_up(projection: nn.Linear) -> nn.Linear:
    """Add outputs of -inf up to a multiple of `_VOCABULARY_STEP`."""
    size, weight_VD = projection.out_features, projection.weight.detach()
    bias_V = torch.zeros(size) if projection.bias is None else projection.bias.detach()
    missing = -size % _VOCABULARY_STEP
    rounded = nn.Linear(projection.in_features, size + missing)
    rounded.weight = nn.Parameter(F.pad(weight_VD, (0, 0, 0, missing)))
    rounded.bias = nn.Parameter(F.pad(bias_V, (0, missing), value=-torch.inf))
    return rounded
