"""Writes a run for `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers 5.

With post-norm the model is exactly a Marian model, with pre-norm a Pegasus model. Their positional
encodings have all sines before all cosines, while ours alternate, so that the dimensions of every
vector between layers are permuted: first the even ones, then the odd ones.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.types import Activation
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.extras.export.comparison import Source
from seq2seq_cli.extras.export.huggingface_tokenizer import fast_tokenizer
from seq2seq_cli.extras.export.search_options import longest, named, notes, shortest
from seq2seq_cli.files import write_json
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import save_tensors
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizers,
    save_tokenizers,
)

_ACTIVATIONS: dict[Activation, str] = {"relu": "relu", "gelu": "gelu"}  # by its own names
_USAGE = """```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForSeq2SeqLM.from_pretrained(".")


def translate(line):
    inputs = tokenizer(line, return_tensors="pt")
    length = inputs["input_ids"].shape[1] - 1
    if not length:
        return ""
    output = model.generate(
        **inputs,
        max_new_tokens={longest} + 1,
        min_new_tokens={shortest},
    )
    return " ".join(tokenizer.decode(output[0], skip_special_tokens=True).split())


print(translate("a sentence"))
```

Run this in the folder, and translate one sentence at a time, as in the training text.
`generation_config.json` contains the other search options.
{notes}"""

_TAG = """The id of a tag comes before those of the source:
`[tokenizer.convert_tokens_to_ids(tag), *tokenizer(line)["input_ids"]]`."""
_FEATURES = """Their ids come before those of the text, after a tag:
`[*tokenizer.convert_tokens_to_ids(features), *tokenizer(line)["input_ids"]]`."""

_NORMALIZED = """
The package `tokenizers` normalizes Unicode like SentencePiece, but may lose combining marks that
have no composed form with their letter.
"""

_SPECIAL_TOKENS = {
    "decoder_start_token_id": BOS_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "forced_eos_token_id": EOS_ID,  # at the maximum length
    "suppress_tokens": [PAD_ID, UNK_ID, BOS_ID],
}
_NAMES = {
    "beam_size": "num_beams",
    "length_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "top_k": "top_k",
    "top_p": "top_p",
    "temperature": "temperature",
}
LIBRARY = "transformers"
HAS_TAGS = True
MOST_POSITIONS = 1_024  # size of the table of positional encodings; longer sentences do not fit


def usage(config: Config, tokenizers: Tokenizers) -> str:
    """Return code that uses the model with the run's search options, and what it does not do."""
    normalized = "" if config.tokenizer.normalization.src == "identity" else _NORMALIZED
    return _USAGE.format(
        longest=longest(config.decoding, "length"),
        shortest=shortest(config.decoding, "length"),
        notes=notes(config, tokenizers, _NAMES, tag=_TAG, features=_FEATURES) + normalized,
    )


def write_model(model: Transformer, config: Config, tokenizers: Tokenizers, folder: Path) -> None:
    """Write weights, config, generation config, and a tokenizer for both sides, and our own."""
    tokenizer = fast_tokenizer(tokenizers.src, MOST_POSITIONS)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", _config(config.model, len(tokenizers.tgt)))
    write_json(folder / "generation_config.json", _generation_config(config))
    save_tensors(_weights(model), folder / "model.safetensors")
    tokenizer.save_pretrained(folder)
    save_tokenizers(RunFolder(folder), tokenizers)


def search(decoding: DecodingConfig) -> dict[str, Any]:
    """Return what the compared search has beside being greedy: nothing."""
    return {}


def source_ids(folder: Path, lines: Sequence[str]) -> list[list[int]]:
    """Return the ids of lines according to transformers, without EOS."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(line)["input_ids"][:-1] for line in lines]


def translate(folder: Path, sources: Sequence[Source]) -> list[str]:
    """Return greedy translations by transformers, one by one, as pieces."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    # It reports tied and computed weights as missing.
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    greedy = GenerationConfig(**_SPECIAL_TOKENS)
    model.generation_config = greedy  # instead of the run's own search options
    translations: list[str] = []
    for source in sources:
        ids_BS = torch.tensor([[*source.ids, EOS_ID]])
        output = model.generate(ids_BS, max_new_tokens=source.longest + 1)[0, 1:].tolist()
        output = output[: output.index(EOS_ID)]
        translations.append(" ".join(tokenizer.convert_ids_to_tokens(output)))
    return translations


def shown(translation: Translation) -> str:
    """Return a translation of this toolkit as `translate` returns those of transformers."""
    return " ".join(translation.tokens)


def _config(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    is_marian = config.norm == "post"
    sides = {
        f"{side}_{name}": value
        for side, layers in (("encoder", config.layers.encoder), ("decoder", config.layers.decoder))
        for name, value in (
            ("layers", layers),
            ("attention_heads", config.heads),
            ("ffn_dim", config.d_ff),
            ("layerdrop", 0.0),
        )
    }
    return {
        "architectures": ["MarianMTModel" if is_marian else "PegasusForConditionalGeneration"],
        "model_type": "marian" if is_marian else "pegasus",
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "max_position_embeddings": MOST_POSITIONS,
        "d_model": config.d_model,
        **sides,
        "activation_function": _ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": False,  # as the weights are scaled already
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        "pad_token_id": PAD_ID,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def _generation_config(config: Config) -> dict[str, Any]:
    """Return the run's supported search options, with the length limit of the longest source."""
    options = config.decoding
    generation_config = {
        **_SPECIAL_TOKENS,
        "max_new_tokens": min(
            options.max_length(config.data.max_length) + 1,
            MOST_POSITIONS - 1,
        ),
        "num_beams": 1,
        **named(options, _NAMES),
    }
    if options.beam_size > 1:
        generation_config["early_stopping"] = "never"  # search until no better result is possible
    if options.sampling:
        generation_config = {"top_k": 0, "do_sample": True} | generation_config  # all tokens
    return generation_config


def _weights(model: Transformer) -> dict[str, Tensor]:
    """Return the weights by their names in both architectures, without a scale of embeddings.

    The embeddings hold the scale, and the last norm its inverse, for the projection that is tied to
    them. With `scale_embedding: true`, the decoder of these architectures scales the embeddings
    that a program passes in place of ids, while the encoder does not. inseq passes embeddings that
    it has scaled itself to both, so those of the decoder would be scaled twice.
    """
    d_model = model.projection.in_features
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    weights = {"model.shared.weight": model.tgt_embedding.weight[:, order] * model.scale}
    weights["final_logits_bias"] = torch.zeros(1, model.projection.out_features)
    for side, layers, norm in (
        ("encoder", model.encoder, model.encoder_norm),
        ("decoder", model.decoder, model.decoder_norm),
    ):
        if isinstance(norm, nn.LayerNorm):
            weights |= _norm(f"model.{side}.layer_norm", norm, order)
        for number, layer in enumerate(layers):
            name = f"model.{side}.layers.{number}"
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            attentions = {"self_attn": (layer.self_attention, layer.self_attention_residual)}
            if isinstance(layer, DecoderLayer):
                cross = (layer.cross_attention, layer.cross_attention_residual)
                attentions["encoder_attn"] = cross
            for part, (attention, residual) in attentions.items():
                weights |= _attention(f"{name}.{part}", attention, order)
                weights |= _norm(f"{name}.{part}_layer_norm", residual.norm, order)
            weights |= _feed_forward(name, layer.feed_forward, order)
            weights |= _norm(f"{name}.final_layer_norm", layer.feed_forward_residual.norm, order)
    last_norm = "model.decoder.layer_norm"
    if not isinstance(model.decoder_norm, nn.LayerNorm):
        last_norm = f"model.decoder.layers.{len(model.decoder) - 1}.final_layer_norm"
    for part in ("weight", "bias"):
        weights[f"{last_norm}.{part}"] = weights[f"{last_norm}.{part}"] / model.scale
    return weights


def _attention(name: str, attention: MultiHeadAttention, order: Tensor) -> dict[str, Tensor]:
    bias = attention.output.bias
    weights = _linear(
        f"{name}.out_proj", attention.output.weight[order], None if bias is None else bias[order]
    )
    projections = {"q": attention.query_with_scale(), "k": attention.key, "v": attention.value}
    for part, layer in projections.items():
        weights |= _linear(f"{name}.{part}_proj", layer.weight[:, order], layer.bias)
    return weights


def _feed_forward(name: str, layer: FeedForward, order: Tensor) -> dict[str, Tensor]:
    expand, contract = layer.expand, layer.contract
    return _linear(f"{name}.fc1", expand.weight[:, order], expand.bias) | _linear(
        f"{name}.fc2", contract.weight[order], contract.bias[order]
    )


def _linear(name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """Name a layer's weight and bias; the architectures require a bias, which may be zero."""
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def _norm(name: str, norm: nn.LayerNorm, order: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": norm.weight[order], f"{name}.bias": norm.bias[order]}
