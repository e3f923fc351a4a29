"""The weights of a Transformer in Marian's .npz, by Marian's names.

Marian's positions have all sines before all cosines, so that the dimensions of every vector between
layers are permuted (see `huggingface_weights.py`). Matrices have inputs as rows, vectors one row.
"""

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq_cli.config.loader import yaml_text
from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.extras.export.vocabularies import Rows
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, Residual
from seq2seq_cli.model.transformer import Transformer

_ACTIVATIONS = {"relu": "relu", "silu": "swish"}


def npz(model: Transformer, rows: Rows) -> bytes:
    """Return the content of model.npz, uncompressed, with its options as special:model.yml."""
    options = model.config
    arrays = {name: _array(tensor) for name, tensor in _weights(model, rows).items()}
    described = _options(options, rows, is_one="Wemb" in arrays)
    text = "".join(f"{name}: {yaml_text(value)}\n" for name, value in described.items())
    arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0", np.int8)
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def _weights(model: Transformer, rows: Rows) -> dict[str, Tensor]:
    d_model, tgt = model.config.d_model, list(rows.tgt)
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    named = {
        "encoder_Wemb": model.src_embedding.weight[list(rows.src)][:, order],
        "decoder_Wemb": model.tgt_embedding.weight[tgt][:, order],
    }
    if model.src_embedding is model.tgt_embedding:
        named = {"Wemb": named["decoder_Wemb"]}
    if not model.config.tie_embeddings:
        named["decoder_ff_logit_out_Wt"] = model.projection.weight[tgt][:, order]
    bias = torch.zeros(len(tgt)) if model.projection.bias is None else model.projection.bias[tgt]
    named["decoder_ff_logit_out_b"] = bias[None]
    for side, layers, norm in (
        ("encoder", model.encoder, model.encoder_norm),
        ("decoder", model.decoder, model.decoder_norm),
    ):
        if not isinstance(norm, nn.Identity):
            named |= _norm(f"{side}_top_ln", norm, order)
        for number, layer in enumerate(layers, 1):
            named |= _layer(f"{side}_l{number}", layer, order)
    return named


def _layer(name: str, layer: nn.Module, order: Tensor) -> dict[str, Tensor]:
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    named = _attention(f"{name}_self", layer.self_attention, layer.self_attention_residual, order)
    if isinstance(layer, DecoderLayer):
        cross = layer.cross_attention, layer.cross_attention_residual
        named |= _attention(f"{name}_context", *cross, order)
    expand, contract = layer.feed_forward.expand, layer.feed_forward.contract
    named[f"{name}_ffn_W1"], named[f"{name}_ffn_b1"] = expand.weight.T[order], expand.bias[None]
    named[f"{name}_ffn_W2"] = contract.weight.T[:, order]
    named[f"{name}_ffn_b2"] = contract.bias[None, order]
    return named | _residual(f"{name}_ffn_ffn_ln", layer.feed_forward_residual, order)


def _attention(
    name: str, attention: MultiHeadAttention, residual: Residual, order: Tensor
) -> dict[str, Tensor]:
    named = {}
    parts = {"q": attention.query_with_scale(), "k": attention.key, "v": attention.value}
    for letter, layer in parts.items():
        named[f"{name}_W{letter}"] = layer.weight.T[order]
        named[f"{name}_b{letter}"] = _bias(layer)[None]
    named[f"{name}_Wo"] = attention.output.weight.T[:, order]
    named[f"{name}_bo"] = _bias(attention.output)[None, order]
    return named | _residual(f"{name}_Wo_ln", residual, order)


def _bias(layer: nn.Linear) -> Tensor:
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias


def _residual(name: str, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    """Name a norm; one before its sub-layer has another name than one after it."""
    return _norm(name, residual.norm, order, "_pre" if residual.norm_first else "")


def _norm(name: str, norm: nn.Module, order: Tensor, suffix: str = "") -> dict[str, Tensor]:
    assert isinstance(norm, nn.LayerNorm), type(norm)
    return {
        f"{name}_scale{suffix}": norm.weight[None, order],
        f"{name}_bias{suffix}": norm.bias[None, order],
    }


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().cpu().numpy()


def _options(config: ModelConfig, rows: Rows, *, is_one: bool) -> dict[str, Any]:
    """Return Marian's own options of the model."""
    is_pre_norm = config.norm == "pre"
    return {
        "type": "transformer",
        "dim-vocabs": [len(rows.src), len(rows.tgt)],
        "dim-emb": config.d_model,
        "enc-depth": config.layers.encoder,
        "dec-depth": config.layers.decoder,
        "transformer-heads": config.heads,
        "transformer-no-projection": False,
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-depth": 2,
        "transformer-ffn-activation": _ACTIVATIONS[config.activation],
        "transformer-dropout": config.dropout,
        "transformer-dropout-attention": config.attention_dropout,
        "transformer-dropout-ffn": config.activation_dropout,
        "transformer-decoder-autoreg": "self-attention",
        "transformer-preprocess": "n" if is_pre_norm else "",
        "transformer-postprocess": "da" if is_pre_norm else "dan",
        "transformer-postprocess-emb": "d",
        "transformer-postprocess-top": "n" if is_pre_norm else "",
        "transformer-train-position-embeddings": False,
        "transformer-guided-alignment-layer": "last",
        "tied-embeddings": config.tie_embeddings and not is_one,
        "tied-embeddings-src": False,
        "tied-embeddings-all": is_one,
        "skip": False,
        "lemma-dim-emb": 0,
        "ulr": False,
        "input-types": [],
    }
