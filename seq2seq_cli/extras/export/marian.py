"""Folders of the original Marian (Junczys-Dowmunt et al. 2018), as OPUS-MT publishes them.

Marian itself is not needed: what is written is compared through CTranslate2's converter, which
reads it with other positions and another epsilon (`compared_model`).
"""

import io
import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.loader import yaml_text
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.extras.export import vocabularies
from seq2seq_cli.extras.export.ctranslate2 import CTranslate2
from seq2seq_cli.extras.export.format import Format, Source, has_imported_kind
from seq2seq_cli.extras.export.vocabularies import Rows, marian_rows
from seq2seq_cli.extras.export.weights import marian_weights
from seq2seq_cli.files import write_atomic
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, Tokenizers

if TYPE_CHECKING:
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.model.transformer import Transformer

MODEL = "model.npz"
_ACTIVATIONS = {"relu": "relu", "silu": "swish"}
_EPSILON = 1e-5  # of CTranslate2's norms; Marian has 1e-9

_USAGE = """```bash
echo "a sentence" | spm_encode --model source.spm |
    marian-decoder -c decoder.yml --cpu-threads 1 | sed 's/ //g; s/▁/ /g; s/^ //'
```

Run this in the folder, and translate one sentence at a time, as in the training text.
`spm_encode` is SentencePiece's program. Marian normalizes with an epsilon of 1e-09; this model was
made with {epsilon:g}.
{notes}"""


class Marian(Format):
    """A folder with an .npz of weights, decoder.yml, vocabularies and SentencePiece models."""

    name = "marian"
    library = "marian"
    is_for_imported = True
    max_positions = 2_048  # that CTranslate2's converter writes
    model_options: ClassVar = {
        **Format.model_options,
        "feature_positions": None,
        "embedding_scale": (True,),
        "activation": ("relu", "silu"),  # its gelu is x · sigmoid(1.702 x)
        "positions": ("sinusoidal",),
        "position_offset": (0,),
        "source_eos": (True,),
    }
    has_min_length = False
    search_options: ClassVar = {"beam_size": "beam-size", "length_penalty": "normalize"}
    tag_usage = "A tag is a word of its own before the pieces of the source."

    def limits(self, config: Config) -> str | None:
        """Marian has its own sinusoids, and a vocabulary in addition to SentencePiece's."""
        model, base = config.model, marian_base(config.model.d_model)
        if not has_imported_kind(config):
            return "its vocabulary was not imported"
        if reason := super().limits(config):
            return reason
        if not math.isclose(model.position_base, base, rel_tol=1e-6):
            return f"model.position_base is {model.position_base:g}, and Marian's is {base:g}"
        if model.norm_epsilon > _EPSILON:
            return f"model.norm_epsilon {model.norm_epsilon:g} is greater than {_EPSILON:g}"
        return None

    def limits_of_run(self, translator: "Translator") -> str | None:
        """Marian's decoder starts from a zero vector."""
        if translator.model.tgt_embedding.weight[BOS_ID].any():
            return "the embedding of its start token is not zero, as it is in Marian"
        return super().limits_of_run(translator)

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        notes = self.notes(config, tokenizers)
        return _USAGE.format(notes=notes, epsilon=config.model.norm_epsilon)

    def write(self, translator: "Translator", folder: Path) -> None:
        """Write weights, decoder.yml, SentencePiece models and one or two vocabularies."""
        plugins.require("ctranslate2", "export", f"--format {self.name}")  # to compare
        tokenizers, decoding = translator.tokenizers, translator.config.decoding
        rows, names = marian_rows(tokenizers), vocabulary_names(tokenizers)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / MODEL, _npz(translator.model, rows))
        for name, tokenizer, ids in zip(names, tokenizers, rows, strict=True):
            pieces = vocabularies.names_of(tokenizer, ids)
            lines = (f"{_quoted(piece)}: {number}\n" for number, piece in enumerate(pieces))
            write_atomic(folder / name, "".join(lines).encode())
        vocabularies.write_tokenizers(tokenizers, folder)
        options: dict[str, Any] = {
            "relative-paths": True,
            "models": [MODEL],
            "vocabs": names,
            "beam-size": decoding.width,
            "normalize": self.search_of(decoding).get("normalize", 1.0),
        }
        if decoding.max_len_factor:
            options["max-length-factor"] = decoding.max_len_factor
        write_atomic(folder / "decoder.yml", _yaml(options))

    def source_ids(self, folder: Path, lines: list[str], tokenizers: Tokenizers) -> list[list[int]]:
        from ctranslate2.converters.marian import load_vocab

        rows, vocabulary = marian_rows(tokenizers).src, vocabulary_names(tokenizers)[0]
        found = vocabularies.split_ids(folder, load_vocab(str(folder / vocabulary)), lines)
        return [[rows[i] for i in ids] for ids in found]

    def compared_model(self, model: "Transformer") -> "Transformer":
        """Return the model with the positions and the epsilon that CTranslate2 gives it."""
        from seq2seq_cli.model.transformer import Transformer

        changed = {"position_base": 10_000.0, "norm_epsilon": _EPSILON}
        config, src, tgt = model.config, model.src_embedding, model.tgt_embedding
        config, sizes = config.model_copy(update=changed), (src.num_embeddings, tgt.num_embeddings)
        other = Transformer(config, *sizes, src is tgt, model.pad_id).eval()
        other.load_state_dict(model.state_dict())
        return other

    def translate(self, folder: Path, sources: list[Source], tokenizers: Tokenizers) -> list[str]:
        """Return the pieces of translations by CTranslate2, which converts the folder."""
        from ctranslate2.converters import MarianConverter

        names = [str(folder / name) for name in vocabulary_names(tokenizers)]
        with tempfile.TemporaryDirectory() as converted:
            converter = MarianConverter(str(folder / MODEL), names)
            converter.convert(converted, force=True)
            return CTranslate2().translate(Path(converted), sources, tokenizers)


def _npz(model: "Transformer", rows: Rows) -> bytes:
    """Return the content of model.npz, uncompressed, with its options as special:model.yml."""
    import numpy as np

    named = marian_weights(model, rows).items()
    arrays: dict[str, Any] = {
        name: tensor.float().contiguous().cpu().numpy() for name, tensor in named
    }
    described = _yaml(_options(model.config, rows, is_one="Wemb" in arrays))
    arrays["special:model.yml"] = np.frombuffer(described + b"\0", np.int8)
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def _yaml(options: Mapping[str, Any]) -> bytes:
    return "".join(f"{name}: {yaml_text(value)}\n" for name, value in options.items()).encode()


def _options(config: ModelConfig, rows: Rows, *, is_one: bool) -> dict[str, Any]:
    """Return Marian's own options of the model."""
    is_pre_norm = config.norm == "pre"
    absent = ("transformer-no-projection", "transformer-train-position-embeddings")
    return {
        "type": "transformer",
        "dim-vocabs": [len(rows.src), len(rows.tgt)],
        "dim-emb": config.d_model,
        "enc-depth": config.layers.encoder,
        "dec-depth": config.layers.decoder,
        "transformer-heads": config.heads,
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
        "transformer-guided-alignment-layer": "last",
        "tied-embeddings": config.tie_embeddings and not is_one,
        "tied-embeddings-all": is_one,
        **dict.fromkeys((*absent, "tied-embeddings-src", "skip", "ulr"), False),
        "lemma-dim-emb": 0,
        "input-types": [],
    }


def marian_base(d_model: int) -> float:
    """Return the base of Marian's sinusoids, whose rate j is 10000^(-j / (d/2 - 1))."""
    half = d_model // 2
    return float(10_000.0 ** (half / max(half - 1, 1)))


def vocabulary_names(tokenizers: Tokenizers) -> list[str]:
    """Return the files of source and target vocabulary, which may be one file."""
    return ["vocab.yml"] * 2 if tokenizers.is_shared else ["source.vocab.yml", "target.vocab.yml"]


def _quoted(piece: str) -> str:
    """Return an entry in YAML's double quotes; readers take other characters as they are."""
    if len(piece) == 1 and not piece.isprintable() and ord(piece) < 0x100:
        return f'"\\x{ord(piece):02X}"'
    return json.dumps(piece, ensure_ascii=False)


FORMAT = Marian()
