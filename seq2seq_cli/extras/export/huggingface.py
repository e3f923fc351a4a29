"""Marian and Pegasus models for `AutoModelForSeq2SeqLM` and `AutoTokenizer` of transformers 5."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.languages import languages_of
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.extras.export.format import (
    COMMON_OPTIONS,
    Format,
    Source,
    has_imported_kind,
    is_imported,
    length_limits,
)
from seq2seq_cli.extras.export.vocabularies import Rows, huggingface_rows
from seq2seq_cli.extras.export.weights import huggingface_weights
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
        **COMMON_OPTIONS,
        **dict.fromkeys(("embedding_scale", "position_offset")),
        "feature_positions": (True,),
        "activation": ("relu", "gelu", "silu"),
        "positions": ("sinusoidal",),
        "source_eos": (True,),
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
        """Two matrices of embeddings are possible only with Marian's own tokenizer."""
        model = config.model
        needed = {"model.positions: sinusoidal": model.positions == "sinusoidal"}
        if not has_imported_kind(config) or model.norm == "pre":  # Pegasus has one matrix too
            one = {
                "tokenizer.shared": config.tokenizer.shared,
                "model.tie_embeddings": model.tie_embeddings,
            }
            needed = one | needed
        if lacking := [option for option, is_given in needed.items() if not is_given]:
            return f"it needs {' and '.join(lacking)}"
        if model.norm_epsilon > _EPSILON:
            return (
                f"model.norm_epsilon {model.norm_epsilon:g} is greater than its own, {_EPSILON:g}"
            )
        return super().limits(config)

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return code that uses the model with the run's search options."""
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
            **length_limits(config.decoding, "length"),
            notes=notes,
        )

    def notes(self, config: Config, tokenizers: Tokenizers) -> str:
        """Marian's own tokenizer reads a tag at the start of the text."""
        notes = super().notes(config, tokenizers)
        own = 'A tag is the beginning of the text: `translate(">>deu<< a sentence")`.'
        return notes.replace(self.tag_usage, own) if is_imported(tokenizers) else notes

    def write(self, translator: "Translator", folder: Path) -> None:
        """Write weights, config, generation config, and a tokenizer for both sides, and our own."""
        plugins.require("transformers", "export", f"--format {self.name}")
        from seq2seq_cli.extras.export.huggingface_tokenizer import (
            fast_tokenizer,
            write_marian_tokenizer,
        )
        from seq2seq_cli.model.weights import save_tensors

        config, tokenizers = translator.config, translator.tokenizers
        rows = huggingface_rows(tokenizers)
        fast = (
            None if is_imported(tokenizers) else fast_tokenizer(tokenizers.src, self.max_positions)
        )
        folder.mkdir(parents=True, exist_ok=True)
        is_one = translator.model.src_embedding is translator.model.tgt_embedding
        special = _special_tokens(rows)
        described = _config(config.model, rows, is_one=is_one) | special
        write_json(folder / "config.json", {**described, "forced_eos_token_id": None})
        options = config.decoding
        longest = options.max_length(config.data.max_length) + 1  # of the longest source
        search: dict[str, Any] = {"max_new_tokens": min(longest, self.max_positions - 1)}
        search = {**_search(special, rows), **search, "num_beams": 1, **self.search_of(options)}
        if options.width > 1:
            search["early_stopping"] = "never"  # until no better result is possible
        if options.sampling:
            search = {"top_k": 0, "do_sample": True} | search  # from all tokens
        write_json(folder / "generation_config.json", search)
        tensors = huggingface_weights(translator.model, rows, self.max_positions)
        save_tensors(tensors, folder / "model.safetensors")
        if fast is None:
            write_marian_tokenizer(tokenizers, rows, folder, self.max_positions, _codes(config))
        else:
            fast.save_pretrained(folder)
            save_tokenizers(RunFolder(folder), tokenizers)

    def source_ids(
        self, folder: Path, lines: Sequence[str], tokenizers: Tokenizers
    ) -> list[list[int]]:
        """Return the ids here of what transformers makes of lines, without EOS."""
        tokenizer, rows = _auto_tokenizer(folder), huggingface_rows(tokenizers)
        return [[rows.src[i] for i in tokenizer(line)["input_ids"][:-1]] for line in lines]

    def translate(
        self, folder: Path, sources: Sequence[Source], tokenizers: Tokenizers
    ) -> list[str]:
        """Return the tokens of translations, computed one by one."""
        import torch
        from transformers import AutoModelForSeq2SeqLM, GenerationConfig
        from transformers.utils import logging

        # It reports tied and computed weights as missing.
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        tokenizer, rows = _auto_tokenizer(folder), huggingface_rows(tokenizers)
        theirs = {row: number for number, row in enumerate(rows.src)}
        special = _special_tokens(rows)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        # Greedy, not the run's own search.
        model.generation_config = GenerationConfig(**_search(special, rows))
        translations: list[str] = []
        for source in sources:
            ids_BS = torch.tensor([[*(theirs[i] for i in source.ids), special["eos_token_id"]]])
            output = model.generate(ids_BS, max_new_tokens=source.longest + 1)[0, 1:].tolist()
            output = output[: output.index(special["eos_token_id"])]
            translations.append(" ".join(tokenizer.convert_ids_to_tokens(output)))
        return translations


def _auto_tokenizer(folder: Path) -> Any:
    import warnings

    from transformers import AutoTokenizer

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Recommended: pip install sacremoses")  # which is unused
        return AutoTokenizer.from_pretrained(folder)


def _special_tokens(rows: Rows) -> dict[str, int]:
    """Return the ids of special tokens there; imported models have one for PAD and BOS."""
    start, tgt = rows.tgt.index(BOS_ID), list(rows.tgt)
    pad = tgt.index(PAD_ID) if PAD_ID in tgt else start
    return {
        "decoder_start_token_id": start,
        "bos_token_id": start,
        "eos_token_id": tgt.index(EOS_ID),
        "pad_token_id": pad,
    }


def _search(special: Mapping[str, int], rows: Rows) -> dict[str, Any]:
    """Return what generation needs: EOS at the maximum length, and tokens never to output."""
    never = [special["pad_token_id"], rows.tgt.index(UNK_ID), special["bos_token_id"]]
    return {
        **special,
        "forced_eos_token_id": special["eos_token_id"],
        "suppress_tokens": list(dict.fromkeys(never)),
    }


def _codes(config: Config) -> dict[str, str]:
    languages = languages_of(config.data)
    return {} if languages is None else {"source_lang": languages.src, "target_lang": languages.tgt}


def _config(config: ModelConfig, rows: Rows, *, is_one: bool) -> dict[str, Any]:
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
