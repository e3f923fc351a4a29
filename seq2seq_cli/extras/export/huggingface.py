"""Marian and Pegasus models for `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers 5."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.extras.export.format import SIZES_AND_DROPOUT, Format, Source, length_limits
from seq2seq_cli.files import write_json
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizers,
    save_tokenizers,
)

if TYPE_CHECKING:
    from seq2seq_cli.decoding.translator import Translator

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


class HuggingFace(Format):
    """A folder with a Marian model (post-norm) or a Pegasus model (pre-norm)."""

    name = "huggingface"
    library = "transformers"
    needs_sentencepiece = True
    max_positions = 1_024  # size of the table of positional encodings
    model_options: ClassVar = {
        **SIZES_AND_DROPOUT,
        **dict.fromkeys(("attention_bias", "embedding_scale")),
        "feature_positions": None,  # `limits` looks at features
        "tie_embeddings": (True,),
        "norm": ("pre", "post"),
        "activation": ("relu", "gelu"),
        "attention_scale": ("sqrt", "none", "temperature"),
        "positions": ("sinusoidal",),
        "rotary_cross_attention": (False,),
        "position_base": (10_000.0,),
        "position_offset": (0,),
        "norm_epsilon": (1e-5,),
        "output_bias": (False,),
    }
    search_options: ClassVar = {
        "beam_size": "num_beams",
        "length_penalty": "length_penalty",
        "repetition_penalty": "repetition_penalty",
        "no_repeat_ngram_size": "no_repeat_ngram_size",
        "top_k": "top_k",
        "top_p": "top_p",
        "temperature": "temperature",
    }
    tag_usage = """The id of a tag precedes the source:
`[tokenizer.convert_tokens_to_ids(tag), *tokenizer(line)["input_ids"]]`."""
    feature_usage = """Their ids precede the text, after a tag:
`[*tokenizer.convert_tokens_to_ids(features), *tokenizer(line)["input_ids"]]`."""

    def limits(self, config: Config) -> str | None:
        """Marian and Pegasus have one matrix of embeddings, and no rotary positions."""
        needed = {
            "tokenizer.shared": config.tokenizer.shared,
            "model.tie_embeddings": config.model.tie_embeddings,
            "model.positions: sinusoidal": config.model.positions == "sinusoidal",
        }
        if lacking := [option for option, is_given in needed.items() if not is_given]:
            return f"it needs {' and '.join(lacking)}"
        if config.train_text.has_features and not config.model.feature_positions:
            return "model.feature_positions is false"
        return super().limits(config)

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return code that uses the model with the run's search options."""
        normalized = "" if config.tokenizer.normalization.src == "identity" else _NORMALIZED
        return _USAGE.format(
            **length_limits(config.decoding, "length"),
            notes=self.notes(config, tokenizers) + normalized,
        )

    def write(self, translator: "Translator", folder: Path) -> None:
        """Write weights, config, generation config, and a tokenizer for both sides, and our own."""
        plugins.require("transformers", "export", f"--format {self.name}")
        from seq2seq_cli.extras.export.huggingface_tokenizer import fast_tokenizer
        from seq2seq_cli.extras.export.huggingface_weights import weights
        from seq2seq_cli.model.weights import save_tensors

        config, tokenizers = translator.config, translator.tokenizers
        tokenizer = fast_tokenizer(tokenizers.src, self.max_positions)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", _config(config.model, len(tokenizers.tgt)))
        options = config.decoding
        longest = options.max_length(config.data.max_length) + 1  # of the longest source
        search: dict[str, Any] = {"max_new_tokens": min(longest, self.max_positions - 1)}
        search = {**_SPECIAL_TOKENS, **search, "num_beams": 1, **self.search_of(options)}
        if options.beam_size > 1:
            search["early_stopping"] = "never"  # until no better result is possible
        if options.sampling:
            search = {"top_k": 0, "do_sample": True} | search  # from all tokens
        write_json(folder / "generation_config.json", search)
        save_tensors(weights(translator.model), folder / "model.safetensors")
        tokenizer.save_pretrained(folder)
        save_tokenizers(RunFolder(folder), tokenizers)

    def source_ids(self, folder: Path, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of lines according to transformers, without EOS."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder)
        return [tokenizer(line)["input_ids"][:-1] for line in lines]

    def translate(self, folder: Path, sources: Sequence[Source]) -> list[str]:
        """Return the tokens of translations, computed one by one."""
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig
        from transformers.utils import logging

        # It reports tied and computed weights as missing.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        model.generation_config = GenerationConfig(**_SPECIAL_TOKENS)  # greedy, not the run's own
        translations: list[str] = []
        for source in sources:
            ids_BS = torch.tensor([[*source.ids, EOS_ID]])
            output = model.generate(ids_BS, max_new_tokens=source.longest + 1)[0, 1:].tolist()
            output = output[: output.index(EOS_ID)]
            translations.append(" ".join(tokenizer.convert_ids_to_tokens(output)))
        return translations


def _config(config: ModelConfig, vocab_size: int) -> dict[str, Any]:
    is_marian = config.norm == "post"
    layer = {"attention_heads": config.heads, "ffn_dim": config.d_ff, "layerdrop": 0.0}
    sides = {
        f"{side}_{name}": value
        for side, layers in config.layers
        for name, value in {"layers": layers, **layer}.items()
    }
    return {
        "architectures": ["MarianMTModel" if is_marian else "PegasusForConditionalGeneration"],
        "model_type": "marian" if is_marian else "pegasus",
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "max_position_embeddings": HuggingFace.max_positions,
        "d_model": config.d_model,
        **sides,
        "activation_function": config.activation,
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


FORMAT = HuggingFace()
