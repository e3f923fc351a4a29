"""The weights of a Transformer by the names that Marian and Pegasus have for them.

Their positional encodings have all sines before all cosines, while ours alternate, so that the
dimensions of every vector between layers are permuted: first the even ones, then the odd ones.
"""

import torch
from torch import Tensor, nn

from seq2seq_cli.extras.export.vocabularies import Rows
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer
from seq2seq_cli.model.transformer import Transformer


def weights(model: Transformer, rows: Rows, num_positions: int) -> dict[str, Tensor]:
    """Return the weights by their names in both architectures, without a scale of embeddings.

    The embeddings hold the scale, and the last norm its inverse, for the projection that is tied to
    them. With `scale_embedding: true`, the decoder of these architectures scales the embeddings
    that a program passes in place of ids, while the encoder does not. inseq passes embeddings that
    it has scaled itself to both, so the decoder would scale twice.

    `rows`: the vocabularies in their order. A table of `num_positions` positions is among the
    weights if transformers would compute another one.
    """
    options, projection = model.config, model.projection
    order = torch.cat([torch.arange(0, options.d_model, 2), torch.arange(1, options.d_model, 2)])
    src, tgt = (
        part.weight[list(some)][:, order] * model.scale
        for part, some in zip((model.src_embedding, model.tgt_embedding), rows, strict=True)
    )
    named = {"model.encoder.embed_tokens.weight": src, "model.decoder.embed_tokens.weight": tgt}
    if model.src_embedding is model.tgt_embedding:
        named = {"model.shared.weight": tgt}
    if not options.tie_embeddings:
        named["lm_head.weight"] = projection.weight[list(rows.tgt)][:, order]
    bias = torch.zeros(len(tgt)) if projection.bias is None else projection.bias[list(rows.tgt)]
    named["final_logits_bias"] = bias[None]
    if (options.position_base, options.position_offset) != (10_000, 0):
        table_TD = model.position_vectors(0, num_positions)
        assert table_TD is not None
        for side in ("encoder", "decoder"):
            named[f"model.{side}.embed_positions.weight"] = table_TD[:, order].clone()
    for side, layers, norm in (
        ("encoder", model.encoder, model.encoder_norm),
        ("decoder", model.decoder, model.decoder_norm),
    ):
        if not isinstance(norm, nn.Identity):
            named |= _norm(f"model.{side}.layer_norm", norm, order)
        for number, layer in enumerate(layers):
            name = f"model.{side}.layers.{number}"
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            attentions = {"self_attn": (layer.self_attention, layer.self_attention_residual)}
            if isinstance(layer, DecoderLayer):
                cross = (layer.cross_attention, layer.cross_attention_residual)
                attentions["encoder_attn"] = cross
            for part, (attention, residual) in attentions.items():
                named |= _attention(f"{name}.{part}", attention, order)
                named |= _norm(f"{name}.{part}_layer_norm", residual.norm, order)
            expand, contract = layer.feed_forward.expand, layer.feed_forward.contract
            named |= _linear(f"{name}.fc1", expand.weight[:, order], expand.bias)
            named |= _linear(f"{name}.fc2", contract.weight[order], contract.bias[order])
            named |= _norm(f"{name}.final_layer_norm", layer.feed_forward_residual.norm, order)
    if not options.tie_embeddings:
        return named
    last_norm = "model.decoder.layer_norm"
    if isinstance(model.decoder_norm, nn.Identity):
        last_norm = f"model.decoder.layers.{len(model.decoder) - 1}.final_layer_norm"
    for part in ("weight", "bias"):
        named[f"{last_norm}.{part}"] = named[f"{last_norm}.{part}"] / model.scale
    return named


def _attention(name: str, attention: MultiHeadAttention, order: Tensor) -> dict[str, Tensor]:
    bias = attention.output.bias
    weights = _linear(
        f"{name}.out_proj", attention.output.weight[order], None if bias is None else bias[order]
    )
    projections = {"q": attention.query_with_scale(), "k": attention.key, "v": attention.value}
    for part, layer in projections.items():
        weights |= _linear(f"{name}.{part}_proj", layer.weight[:, order], layer.bias)
    return weights


def _linear(name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """Name a layer's weight and bias; the architectures require a bias, which may be zero."""
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def _norm(name: str, norm: nn.Module, order: Tensor) -> dict[str, Tensor]:
    assert isinstance(norm, nn.LayerNorm), type(norm)
    return {f"{name}.weight": norm.weight[order], f"{name}.bias": norm.bias[order]}
