"""The weights of a Transformer by the names that transformers and Marian have for them.

Their positional encodings have all sines before all cosines, while ours alternate, so that the
dimensions of every vector between layers are permuted: first the even ones, then the odd ones.
"""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor, nn

    from seq2seq_cli.extras.export.vocabularies import Rows
    from seq2seq_cli.model.attention import MultiHeadAttention
    from seq2seq_cli.model.transformer import Transformer

# Parameters whose rows, or else columns, are dimensions of the vectors between layers.
_ROWS = re.compile(r".*\.(?:output|contract)\.(?:weight|bias)|.*norm\.(?:weight|bias)")
_COLUMNS = re.compile(
    r".*\.(?:query|key|value|expand)\.weight|.*embedding\.weight|projection\.weight"
)

# The parts of a layer by our names, with the names in transformers (Marian and Pegasus) and in
# Marian, where {} stands for the kind of tensor.
_PARTS = {
    "self_attention.query": ("self_attn.q_proj", "self_{}q"),
    "self_attention.key": ("self_attn.k_proj", "self_{}k"),
    "self_attention.value": ("self_attn.v_proj", "self_{}v"),
    "self_attention.output": ("self_attn.out_proj", "self_{}o"),
    "self_attention_residual.norm": ("self_attn_layer_norm", "self_Wo_ln_{}"),
    "cross_attention.query": ("encoder_attn.q_proj", "context_{}q"),
    "cross_attention.key": ("encoder_attn.k_proj", "context_{}k"),
    "cross_attention.value": ("encoder_attn.v_proj", "context_{}v"),
    "cross_attention.output": ("encoder_attn.out_proj", "context_{}o"),
    "cross_attention_residual.norm": ("encoder_attn_layer_norm", "context_Wo_ln_{}"),
    "feed_forward.expand": ("fc1", "ffn_{}1"),
    "feed_forward.contract": ("fc2", "ffn_{}2"),
    "feed_forward_residual.norm": ("final_layer_norm", "ffn_ffn_ln_{}"),
}


class Part(NamedTuple):
    """A linear layer or a norm, by its names here, in transformers and in Marian."""

    ours: str
    huggingface: str
    marian_weight: str
    marian_bias: str


def parts_of(layers: Iterable[tuple[str, int]], *, is_pre_norm: bool) -> Iterator[Part]:
    """Yield what has a weight and a bias, given the number of layers of each side.

    Marian has other names for the norms before their sub-layers.
    """
    suffix = "_pre" if is_pre_norm else ""
    for side, count in layers:
        if is_pre_norm:
            marians = f"{side}_top_ln_scale", f"{side}_top_ln_bias"
            yield Part(f"{side}_norm", f"model.{side}.layer_norm", *marians)
        for number in range(count):
            for part, (theirs, marian) in _PARTS.items():
                if side == "encoder" and part.startswith("cross"):
                    continue
                kinds = (f"scale{suffix}", f"bias{suffix}") if part.endswith("norm") else ("W", "b")
                ours, name = f"{side}.{number}.{part}", f"model.{side}.layers.{number}.{theirs}"
                yield Part(ours, name, *map(f"{side}_l{number + 1}_{marian}".format, kinds))


def shape_of(part: str, d_model: int, d_ff: int | None) -> tuple[int | None, ...]:
    """Return the shape of the weight of a part; its bias has the first dimension."""
    rows = d_ff if part.endswith("expand") else d_model
    columns = d_ff if part.endswith("contract") else d_model
    return (d_model,) if part.endswith("norm") else (rows, columns)


def with_rows(
    weights: Mapping[str, "Tensor"], src_ids: Sequence[int], tgt_ids: Sequence[int]
) -> dict[str, "Tensor"]:
    """Return tensors by our names with these entries of the vocabularies, in this order."""
    of_tgt = ("tgt_embedding.weight", "projection.weight", "projection.bias")
    ids = {"src_embedding.weight": src_ids, **dict.fromkeys(of_tgt, tgt_ids)}
    return {name: w[list(ids[name])] if name in ids else w for name, w in weights.items()}


def permuted(weights: Mapping[str, Any], order: Any) -> dict[str, Any]:
    """Return arrays or tensors by our names with the dimensions between layers in an order."""
    changed = dict(weights)
    for name, weight in weights.items():
        if _ROWS.fullmatch(name):
            changed[name] = weight[order]
        elif _COLUMNS.fullmatch(name):
            changed[name] = weight[:, order]
    return changed


def query_with_scale(attention: "MultiHeadAttention") -> "nn.Linear":
    """Return a query projection that includes the scale: q·k / √K are the scores."""
    import torch

    query = copy.deepcopy(attention.query)
    with torch.no_grad():
        for parameter in query.parameters():
            heads = parameter.view(attention.heads, attention.head_size, -1)
            heads.mul_(attention.scale.factor())
    return query


def _sines_first(d_model: int) -> list[int]:
    """Return the dimensions here in the order of the other programs."""
    return [*range(0, d_model, 2), *range(1, d_model, 2)]


def _parameters(model: "Transformer", rows: "Rows") -> dict[str, "Tensor"]:
    """Return the parameters by our names, with dimensions and vocabularies in the other order.

    Tied ones have their first name. Queries contain the scale of attention, and every layer has a
    bias, which may be zero.
    """
    from torch import nn

    from seq2seq_cli.model.attention import MultiHeadAttention
    from seq2seq_cli.model.parameters import unique_parameters

    found = unique_parameters(model)
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            query = unique_parameters(query_with_scale(module))
            found |= {f"{name}.query.{part}": tensor for part, tensor in query.items()}
        elif isinstance(module, nn.Linear):
            found.setdefault(f"{name}.bias", module.weight.new_zeros(module.out_features))
    return permuted(with_rows(found, *rows), _sines_first(model.config.d_model))


def huggingface_weights(
    model: "Transformer", rows: "Rows", num_positions: int
) -> dict[str, "Tensor"]:
    """Return the weights by the names of Marian and Pegasus, without a scale of embeddings.

    The embeddings hold the scale, and the last norm its inverse, for the projection that is tied to
    them. With `scale_embedding: true`, the decoder of these architectures scales the embeddings
    that a program passes in place of ids, while the encoder does not. inseq passes embeddings that
    it has scaled itself to both, so the decoder would scale twice.

    `rows`: the vocabularies in their order. A table of `num_positions` positions is among the
    weights if transformers would compute another one, and for Pegasus, which warns if it is not.
    """
    ours, options = _parameters(model, rows), model.config
    tgt = ours["tgt_embedding.weight"] * model.scale
    named = {"model.shared.weight": tgt}
    if (src := ours.get("src_embedding.weight")) is not None:
        named = {"model.encoder.embed_tokens.weight": src * model.scale}
        named["model.decoder.embed_tokens.weight"] = tgt
    if not options.tie_embeddings:
        named["lm_head.weight"] = ours["projection.weight"]
    named["final_logits_bias"] = ours["projection.bias"][None]
    is_pre_norm = options.norm == "pre"
    if is_pre_norm or (options.position_base, options.position_offset) != (10_000, 0):
        table_TD = model.position_vectors(0, num_positions)
        assert table_TD is not None
        for side in ("encoder", "decoder"):
            table = table_TD[:, _sines_first(options.d_model)]
            named[f"model.{side}.embed_positions.weight"] = table
    for part in parts_of(options.layers, is_pre_norm=is_pre_norm):
        for kind in ("weight", "bias"):
            named[f"{part.huggingface}.{kind}"] = ours[f"{part.ours}.{kind}"]
    if options.tie_embeddings:
        last = f"model.decoder.layers.{options.layers.decoder - 1}.final_layer_norm"
        last = "model.decoder.layer_norm" if is_pre_norm else last
        for kind in ("weight", "bias"):
            named[f"{last}.{kind}"] = named[f"{last}.{kind}"] / model.scale
    return named


def marian_weights(model: "Transformer", rows: "Rows") -> dict[str, "Tensor"]:
    """Return the weights by Marian's names: matrices with inputs as rows, vectors as one row."""
    ours, options = _parameters(model, rows), model.config
    named = {"Wemb": ours["tgt_embedding.weight"]}
    if (src := ours.get("src_embedding.weight")) is not None:
        named = {"encoder_Wemb": src, "decoder_Wemb": ours["tgt_embedding.weight"]}
    if not options.tie_embeddings:
        named["decoder_ff_logit_out_Wt"] = ours["projection.weight"]
    named["decoder_ff_logit_out_b"] = ours["projection.bias"][None]
    for part in parts_of(options.layers, is_pre_norm=options.norm == "pre"):
        tensor = ours[f"{part.ours}.weight"]
        named[part.marian_weight] = tensor[None] if tensor.dim() == 1 else tensor.T
        named[part.marian_bias] = ours[f"{part.ours}.bias"][None]
    return named
