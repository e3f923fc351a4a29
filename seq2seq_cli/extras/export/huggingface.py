"""Marian and Pegasus models for `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers 5."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.languages import languages_of
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.extras.export.format import Format, Source, has_imported_kind, is_imported
from seq2seq_cli.extras.export.vocabularies import Rows, huggingface_rows, write_tokenizers
from seq2seq_cli.extras.export.weights import huggingface_weights
from seq2seq_cli.files import write_json
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizers

if TYPE_CHECKING:
    from seq2seq_cli.decoding.translator import Translator

_USAGE = """```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("."), AutoModelForSeq2SeqLM.from_pretrained(".")


def translate(line):
    inputs = tokenizer({line}, return_tensors="pt")
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

_OTHER_EPSILON = """
transformers normalizes with an epsilon of 1e-05, the model was made with {:g}: logits differ by
about a hundred-thousandth of their size.
"""

_STORED_POSITIONS = """
The weights include the model's own table of positions. `from_pretrained` reads it, but
`save_pretrained` leaves it out: copy `embed_positions.weight` of encoder and decoder.
"""

_EPSILON = 1e-5  # of transformers' norms


class HuggingFace(Format):
    """A folder with a Marian model (post-norm) or a Pegasus model (pre-norm)."""

    name = "huggingface"
    library = "transformers"
    needs_sentencepiece = True
    max_positions = 1_024  # size of the table of positional encodings
    model_options: ClassVar = {
        **Format.model_options,
        **dict.fromkeys(("embedding_scale", "position_offset")),
        "feature_positions": (True,),
        "activation": ("relu", "gelu", "silu"),
        "positions": ("sinusoidal",),
        "source_eos": (True,),
    }
    search_options: ClassVar = {
        **Format.search_options,
        "beam_size": "num_beams",
        **{name: name for name in ("top_k", "top_p", "temperature")},
    }
    tag_usage = """The id of a tag precedes the source:
`[tokenizer.convert_tokens_to_ids(tag), *tokenizer(line)["input_ids"]]`."""
    feature_usage = """Their ids precede the text, after a tag:
`[*tokenizer.convert_tokens_to_ids(features), *tokenizer(line)["input_ids"]]`."""

    def limits(self, config: Config) -> str | None:
        """Two matrices of embeddings are possible only with Marian's own tokenizer."""
        model = config.model
        has_two = has_imported_kind(config) and model.norm == "post"  # Pegasus has one matrix
        needed = {
            "tokenizer.shared": has_two or config.tokenizer.shared,
            "model.tie_embeddings": has_two or model.tie_embeddings,
            "model.positions: sinusoidal": model.positions == "sinusoidal",
        }
        if lacking := [option for option, is_given in needed.items() if not is_given]:
            return f"it needs {' and '.join(lacking)}"
        if model.norm_epsilon > _EPSILON:
            return (
                f"model.norm_epsilon {model.norm_epsilon:g} is greater than its own, {_EPSILON:g}"
            )
        return super().limits(config)

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        notes, is_own = self.notes(config, tokenizers), is_imported(tokenizers)
        if not is_own and config.tokenizer.normalization.src != "identity":
            notes += _NORMALIZED
        if config.model.norm_epsilon != _EPSILON:
            notes += _OTHER_EPSILON.format(config.model.norm_epsilon)
        positions = config.model.position_base, config.model.position_offset
        if config.model.norm == "post" and positions != (10_000, 0):
            notes += _STORED_POSITIONS
        return _USAGE.format(
            line="line" if not is_own else '" ".join(line.split())',
            **self.length_limits(config.decoding, "length"),
            notes=notes,
        )

    def notes(self, config: Config, tokenizers: Tokenizers) -> str:
        """Marian's own tokenizer reads a tag such as >>deu<< at the start of the text."""
        notes = super().notes(config, tokenizers)
        own = 'A tag is the beginning of the text: `translate(">>deu<< a sentence")`.'
        default = [config.decoding.tag] if config.decoding.tag else []
        tags = [*config.train_text.tags, *default] or tokenizers.src.user_defined_symbols()
        are_marians = all(tag.startswith(">>") and tag.endswith("<<") for tag in tags)
        is_own = is_imported(tokenizers) and are_marians
        return notes.replace(self.tag_usage, own) if is_own else notes

    def write(self, translator: "Translator", folder: Path) -> None:
        """Write weights, config, generation config, and a tokenizer for both sides, and our own."""
        plugins.require("transformers", "export", f"--format {self.name}")
        from seq2seq_cli.extras.export import huggingface_tokenizer
        from seq2seq_cli.model.weights import save_tensors

        config, tokenizers = translator.config, translator.tokenizers
        rows, most = huggingface_rows(tokenizers), self.max_positions
        folder.mkdir(parents=True, exist_ok=True)
        if is_imported(tokenizers):
            languages = languages_of(config.data)
            huggingface_tokenizer.write_marian_tokenizer(tokenizers, rows, folder, most, languages)
        else:
            huggingface_tokenizer.fast_tokenizer(tokenizers.src, most).save_pretrained(folder)
        write_tokenizers(tokenizers, folder)
        is_one = translator.model.src_embedding is translator.model.tgt_embedding
        described = _config(config.model, rows, is_one=is_one) | _special_tokens(rows)
        write_json(folder / "config.json", {**described, "forced_eos_token_id": None})
        options = config.decoding
        longest = options.max_length(config.data.max_length) + 1  # of the longest source
        search = {**_search(rows), "max_new_tokens": min(longest, most - 1)}
        search = {**search, "num_beams": 1, **self.search_of(options)}
        if options.width > 1:
            search["early_stopping"] = "never"  # until no better result is possible
        if options.sampling:
            search = {"top_k": 0, "do_sample": True} | search  # from all tokens
        write_json(folder / "generation_config.json", search)
        tensors = huggingface_weights(translator.model, rows, most)
        save_tensors(tensors, folder / "model.safetensors")

    def source_ids(self, folder: Path, lines: list[str], tokenizers: Tokenizers) -> list[list[int]]:
        tokenizer, rows = _auto_tokenizer(folder), huggingface_rows(tokenizers)
        return [[rows.src[i] for i in tokenizer(line)["input_ids"][:-1]] for line in lines]

    def translate(self, folder: Path, sources: list[Source], tokenizers: Tokenizers) -> list[str]:
        import torch
        from transformers import AutoModelForSeq2SeqLM, GenerationConfig
        from transformers.utils import logging

        # It reports tied and computed weights as missing.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        tokenizer, rows = _auto_tokenizer(folder), huggingface_rows(tokenizers)
        theirs = {row: number for number, row in enumerate(rows.src)}
        eos = rows.tgt.index(EOS_ID)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        # Greedy, not the run's own search.
        model.generation_config = GenerationConfig(**_search(rows))
        translations: list[str] = []
        for source in sources:
            ids_BS = torch.tensor([[*(theirs[i] for i in source.ids), eos]])
            output = model.generate(ids_BS, max_new_tokens=source.longest + 1)[0, 1:].tolist()
            tokens = tokenizer.convert_ids_to_tokens(output[: output.index(eos)])
            translations.append(" ".join(tokens))
        return translations


def _auto_tokenizer(folder: Path) -> Any:
    import warnings

    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")  # which is unused
        return AutoTokenizer.from_pretrained(folder)


def _special_tokens(rows: Rows) -> dict[str, int]:
    """Return the ids of special tokens there; imported models have one for PAD and BOS."""
    start = rows.tgt.index(BOS_ID)
    return {
        "decoder_start_token_id": start,
        "bos_token_id": start,
        "eos_token_id": rows.tgt.index(EOS_ID),
        "pad_token_id": rows.tgt.index(PAD_ID) if PAD_ID in rows.tgt else start,
    }


def _search(rows: Rows) -> dict[str, Any]:
    """Return what generation needs: EOS at the maximum length, and tokens never to output."""
    special: dict[str, Any] = _special_tokens(rows)
    never = [special["pad_token_id"], rows.tgt.index(UNK_ID), special["bos_token_id"]]
    special["forced_eos_token_id"] = special["eos_token_id"]
    return {**special, "suppress_tokens": list(dict.fromkeys(never))}


def _config(config: ModelConfig, rows: Rows, *, is_one: bool) -> dict[str, Any]:
    is_marian = config.norm == "post"
    sides: dict[str, Any] = {}
    for side, layers in config.layers:
        sides |= {f"{side}_layers": layers, f"{side}_layerdrop": 0.0}
        sides |= {f"{side}_attention_heads": config.heads, f"{side}_ffn_dim": config.d_ff}
    return {
        "architectures": ["MarianMTModel" if is_marian else "PegasusForConditionalGeneration"],
        "model_type": "marian" if is_marian else "pegasus",
        "vocab_size": len(rows.src),
        "decoder_vocab_size": len(rows.tgt),
        "max_position_embeddings": HuggingFace.max_positions,
        "d_model": config.d_model,
        **sides,
        "activation_function": {"silu": "swish"}.get(config.activation, config.activation),
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": False,  # as the weights are scaled already
        "share_encoder_decoder_embeddings": is_one,
        "tie_word_embeddings": config.tie_embeddings,
        "is_encoder_decoder": True,
        "dtype": "float32",
    }


FORMAT = HuggingFace()
