"""A run as a Hugging Face model, for `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers 5.

post-norm is their Marian architecture and pre-norm their Pegasus; both hold this model exactly.
Their sinusoidal positions have all sines first, ours have sines and cosines in turn, so that the
dimensions of every vector between layers change places: evens first, then odds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.types import Activation
from seq2seq_cli.decoding.engines.support import unsupported_model
from seq2seq_cli.export.huggingface_tokenizer import fast_tokenizer
from seq2seq_cli.export.search_options import left_out, longest, named, shortest
from seq2seq_cli.files import write_json
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, FeedForward
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import save_tensors
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizers

_ACTIVATIONS: dict[Activation, str] = {"relu": "relu", "gelu": "gelu"}  # by its own names
_README = """# A Hugging Face model

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForSeq2SeqLM.from_pretrained(".")


def translate(line):
    inputs = tokenizer(line, return_tensors="pt")
    length = inputs["input_ids"].shape[1] - 1
    if not length:
        return ""
    found = model.generate(
        **inputs,
        max_new_tokens={longest} + 1,
        min_new_tokens={shortest},
    )
    return " ".join(tokenizer.decode(found[0], skip_special_tokens=True).split())


print(translate("a sentence"))
```

Give it one sentence at a time, as the training text did. `generation_config.json` has the other
options of the search.
{left_out}"""

_NORMALIZED = """
The package `tokenizers` normalizes Unicode as SentencePiece does, but may lose a combining mark
that has no composed form with its letter.
"""

_SPECIAL_TOKENS = {
    "decoder_start_token_id": BOS_ID,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "forced_eos_token_id": EOS_ID,  # where a translation has its greatest length
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
_POSITIONS = 1_024  # the architecture holds a table of positions; longer sentences do not fit it


def readme(config: Config, tokenizers: Tokenizers) -> str:
    """The lines that use the folder, searching as the run does."""
    normalized = "" if config.tokenizer.normalization.src == "identity" else _NORMALIZED
    return _README.format(
        longest=longest(config.decoding, "length"),
        shortest=shortest(config.decoding, "length"),
        left_out=left_out(config.decoding, _NAMES) + normalized,
    )


def unsupported(model: Transformer, tokenizers: Tokenizers) -> str | None:
    """The reason why neither of the two can hold this model; None if one can."""
    if not tokenizers.is_shared:
        return "it needs tokenizer.shared, one vocabulary for both sides"
    if not model.config.tie_embeddings:
        return "it needs model.tie_embeddings"
    return unsupported_model(model, _ACTIVATIONS)


def write_huggingface(
    model: Transformer, whole_config: Config, tokenizers: Tokenizers, folder: Path
) -> None:
    """Weights, config, generation config, and a tokenizer for both sides."""
    config = whole_config.model
    tokenizer = fast_tokenizer(tokenizers.src, _POSITIONS)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", _config(config, len(tokenizers.tgt)))
    write_json(folder / "generation_config.json", _generation_config(whole_config))
    save_tensors(_weights(model), folder / "model.safetensors")
    tokenizer.save_pretrained(folder)


def source_ids(folder: Path, lines: Sequence[str]) -> list[list[int]]:
    """What transformers makes of lines, without EOS."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(line)["input_ids"][:-1] for line in lines]


def translate_lines(
    folder: Path, lines: Sequence[str], max_lengths: Sequence[int]
) -> list[list[str]]:
    """Greedy translations by transformers itself, one by one, as pieces."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    plain = GenerationConfig(**_SPECIAL_TOKENS)  # type: ignore[no-untyped-call]
    model.generation_config = plain  # instead of the run's own search
    found: list[list[str]] = []
    for line, length in zip(lines, max_lengths, strict=True):
        inputs = tokenizer(line, return_tensors="pt")
        output = model.generate(**inputs, max_new_tokens=length + 1)[0, 1:].tolist()
        output = output[: output.index(EOS_ID)]
        found.append(list(tokenizer.convert_ids_to_tokens(output)))
    return found


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
        "max_position_embeddings": _POSITIONS,
        "d_model": config.d_model,
        **sides,
        "activation_function": _ACTIVATIONS[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": config.embedding_scale,
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
    """The run's search, as far as the format has it; lengths for the longest source there is."""
    options = config.decoding
    found = {
        **_SPECIAL_TOKENS,
        "max_new_tokens": min(
            int(options.max_len_factor * config.data.max_length) + options.max_len_extra + 1,
            _POSITIONS - 1,
        ),
        "num_beams": 1,
        **named(options, _NAMES),
    }
    if options.beam_size > 1:
        found["early_stopping"] = "never"  # not before nothing better can come
    if options.sampling:
        found = {"top_k": 0, "do_sample": True} | found  # of all tokens
    return found


def _weights(model: Transformer) -> dict[str, Tensor]:
    d_model = model.projection.in_features
    order = torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])
    found = {"model.shared.weight": model.tgt_embedding.weight[:, order]}
    found["final_logits_bias"] = torch.zeros(1, model.projection.out_features)
    for side, layers, norm in (
        ("encoder", model.encoder, model.encoder_norm),
        ("decoder", model.decoder, model.decoder_norm),
    ):
        if isinstance(norm, nn.LayerNorm):
            found |= _norm(f"model.{side}.layer_norm", norm, order)
        for number, layer in enumerate(layers):
            name = f"model.{side}.layers.{number}"
            assert isinstance(layer, EncoderLayer | DecoderLayer)
            found |= _attention(f"{name}.self_attn", layer.self_attention, order)
            found |= _norm(
                f"{name}.self_attn_layer_norm", layer.self_attention_residual.norm, order
            )
            found |= _feed_forward(name, layer.feed_forward, order)
            found |= _norm(f"{name}.final_layer_norm", layer.feed_forward_residual.norm, order)
            if isinstance(layer, DecoderLayer):
                found |= _attention(f"{name}.encoder_attn", layer.cross_attention, order)
                found |= _norm(
                    f"{name}.encoder_attn_layer_norm", layer.cross_attention_residual.norm, order
                )
    return found


def _attention(name: str, attention: MultiHeadAttention, order: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for part in ("query", "key", "value"):
        layer: nn.Linear = getattr(attention, part)
        found |= _linear(f"{name}.{part[0]}_proj", layer.weight[:, order], layer.bias)
    bias = attention.output.bias
    return found | _linear(
        f"{name}.out_proj", attention.output.weight[order], None if bias is None else bias[order]
    )


def _feed_forward(name: str, layer: FeedForward, order: Tensor) -> dict[str, Tensor]:
    expand, contract = layer.expand, layer.contract
    return _linear(f"{name}.fc1", expand.weight[:, order], expand.bias) | _linear(
        f"{name}.fc2", contract.weight[order], contract.bias[order]
    )


def _linear(name: str, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    """The architectures have biases everywhere; zeros are none."""
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def _norm(name: str, norm: nn.LayerNorm, order: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": norm.weight[order], f"{name}.bias": norm.bias[order]}
