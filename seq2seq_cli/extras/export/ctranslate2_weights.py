"""The weights of a Transformer in CTranslate2's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ctranslate2 import specs
from torch import Tensor, nn

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.config.types import Activation
from seq2seq_cli.extras.export.ctranslate2 import CTranslate2
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizers

_ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU"}  # by CTranslate2's names
_IMPOSSIBLE = -10_000.0  # added to a logit; the exponential of it is zero


def write_weights(
    model: Transformer,
    tokenizers: Tokenizers,
    folder: Path,
    *,
    first_piece: str | None = None,
    never: Sequence[int] = (),
) -> None:
    """Write weights in fp32, which CTranslate2 converts on loading, and vocabularies.

    CTranslate2 then puts `first_piece` before every source, and never outputs some ids.
    """
    options = model.config
    shape = {
        "num_heads": options.heads,
        "pre_norm": options.norm == "pre",
        "activation": getattr(specs.common_spec.Activation, _ACTIVATIONS[options.activation]),
        "rotary_dim": options.d_model // options.heads if options.positions == "rotary" else None,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(options.layers.encoder, **shape),
        specs.TransformerDecoderSpec(options.layers.decoder, **shape),
    )
    _fill_side(spec.encoder, model.encoder, model.encoder_norm, options)
    _fill_side(spec.decoder, model.decoder, model.decoder_norm, options)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight)
    _fill_linear(spec.decoder.projection, model.projection)
    if never:
        bias = np.zeros(len(tokenizers.tgt), np.float32)
        bias[list(never)] = _IMPOSSIBLE
        spec.decoder.projection.bias = bias
    pieces = tokenizers.tgt.pieces()
    spec.register_source_vocabulary(tokenizers.src.pieces())
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token, spec.config.bos_token = pieces[UNK_ID], first_piece or pieces[BOS_ID]
    spec.config.eos_token = pieces[EOS_ID]
    spec.config.decoder_start_token = pieces[BOS_ID]
    spec.config.add_source_bos, spec.config.add_source_eos = first_piece is not None, True
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _fill_side(side: Any, layers: nn.ModuleList, norm: nn.Module, config: ModelConfig) -> None:
    side.scale_embeddings = config.embedding_scale
    if config.positions == "sinusoidal":
        encodings = sinusoidal_positions(0, CTranslate2.max_positions, config.d_model)
        side.position_encodings.encodings = encodings.numpy()
    elif hasattr(side, "position_encodings"):  # not used, but required by the specification
        side.position_encodings.encodings = np.zeros((1, config.d_model), np.float32)
    if not isinstance(norm, nn.Identity):
        _fill_norm(side.layer_norm, norm)
    for target, layer in zip(side.layer, layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        attention, feed_forward = layer.self_attention, layer.feed_forward
        linear = target.self_attention.linear
        query = attention.query_with_scale()
        _fill_linear(linear[0], query, attention.key, attention.value)
        _fill_linear(linear[1], attention.output)
        _fill_norm(target.self_attention.layer_norm, layer.self_attention_residual.norm)
        if isinstance(layer, DecoderLayer):
            cross, linear = layer.cross_attention, target.attention.linear
            _fill_linear(linear[0], cross.query_with_scale())
            _fill_linear(linear[1], cross.key, cross.value)
            _fill_linear(linear[2], cross.output)
            _fill_norm(target.attention.layer_norm, layer.cross_attention_residual.norm)
        _fill_linear(target.ffn.linear_0, feed_forward.expand)
        _fill_linear(target.ffn.linear_1, feed_forward.contract)
        _fill_norm(target.ffn.layer_norm, layer.feed_forward_residual.norm)


def _fill_linear(target: Any, *layers: nn.Linear) -> None:
    """Fill one layer with layers of the same input, their outputs concatenated."""
    target.weight = _array(torch.cat([layer.weight for layer in layers]))
    if layers[0].bias is not None:
        target.bias = _array(torch.cat([layer.bias for layer in layers]))


def _fill_norm(target: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm), type(norm)
    target.gamma, target.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().cpu().numpy()
