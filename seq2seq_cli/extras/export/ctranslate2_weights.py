"""The weights of a Transformer in CTranslate2's format."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ctranslate2 import specs
from torch import Tensor, nn

from seq2seq_cli.config.types import Activation
from seq2seq_cli.extras.export.ctranslate2 import CTranslate2
from seq2seq_cli.extras.export.format import is_imported
from seq2seq_cli.extras.export.vocabularies import ctranslate2_rows, names_of
from seq2seq_cli.extras.export.weights import query_with_scale
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizers

_ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}
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
        "rotary_base": options.position_base,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(options.layers.encoder, **shape),
        specs.TransformerDecoderSpec(options.layers.decoder, **shape),
    )
    _fill_side(spec.encoder, model.encoder, model.encoder_norm, model)
    _fill_side(spec.decoder, model.decoder, model.decoder_norm, model)
    has_start = bool(model.tgt_embedding.weight[BOS_ID].any())
    src_rows, tgt_rows = map(list, ctranslate2_rows(tokenizers, has_start=has_start))
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight[src_rows])
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight[tgt_rows])
    spec.decoder.start_from_zero_embedding = BOS_ID not in tgt_rows
    if is_imported(tokenizers):
        never = [*never, BOS_ID]
    projection, output = spec.decoder.projection, model.projection
    projection.weight = _array(output.weight[tgt_rows])
    if never or output.bias is not None:
        bias = np.zeros(len(tokenizers.tgt), np.float32)
        if output.bias is not None:
            bias = _array(output.bias)
        bias[list(never)] = _IMPOSSIBLE
        projection.bias = bias[tgt_rows]
    spec.register_source_vocabulary(names_of(tokenizers.src, src_rows))
    spec.register_target_vocabulary(names_of(tokenizers.tgt, tgt_rows))
    unk, bos, eos = tokenizers.tgt.pieces_of([UNK_ID, BOS_ID, EOS_ID])
    start = bos if BOS_ID in tgt_rows else eos  # any entry: the decoder gets a zero vector
    spec.config.unk_token, spec.config.bos_token = unk, first_piece or start
    spec.config.eos_token, spec.config.decoder_start_token = eos, start
    spec.config.layer_norm_epsilon = options.norm_epsilon
    spec.config.add_source_bos = first_piece is not None
    spec.config.add_source_eos = options.source_eos
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def _fill_side(side: Any, layers: nn.ModuleList, norm: nn.Module, model: Transformer) -> None:
    config = model.config
    side.scale_embeddings = config.embedding_scale
    encodings = model.position_vectors(0, CTranslate2.max_positions)
    if encodings is not None:
        side.position_encodings.encodings = _array(encodings)
    elif hasattr(side, "position_encodings"):  # not used, but required by the specification
        side.position_encodings.encodings = np.zeros((1, config.d_model), np.float32)
    if not isinstance(norm, nn.Identity):
        _fill_norm(side.layer_norm, norm)
    for target, layer in zip(side.layer, layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        attention, linear = layer.self_attention, target.self_attention.linear
        _fill_linear(linear[0], query_with_scale(attention), attention.key, attention.value)
        _fill_linear(linear[1], attention.output)
        _fill_norm(target.self_attention.layer_norm, layer.self_attention_residual.norm)
        if isinstance(layer, DecoderLayer):
            cross, linear = layer.cross_attention, target.attention.linear
            _fill_linear(linear[0], query_with_scale(cross))
            _fill_linear(linear[1], cross.key, cross.value)
            _fill_linear(linear[2], cross.output)
            _fill_norm(target.attention.layer_norm, layer.cross_attention_residual.norm)
        _fill_linear(target.ffn.linear_0, layer.feed_forward.expand)
        _fill_linear(target.ffn.linear_1, layer.feed_forward.contract)
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
