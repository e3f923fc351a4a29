"""CTranslate2 models (https://opennmt.net/CTranslate2), for serving."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.schema import Config
from seq2seq_cli.extras.export.format import SIZES_AND_DROPOUT, Format, Source, length_limits
from seq2seq_cli.files import read_json
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import (
    BOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    Tokenizers,
    save_tokenizers,
)

if TYPE_CHECKING:
    from seq2seq_cli.decoding.translator import Translator

_USAGE = """```python
import ctranslate2, sentencepiece

src, tgt = (sentencepiece.SentencePieceProcessor(file) for file in ({src}, {tgt}))
translator = ctranslate2.Translator(".")


def translate(line):
    line = " ".join(line.split()).replace("▁", "\\ufdd0")
    pieces = [src.id_to_piece(i) for i in src.encode(line)]
    if not pieces:
        return ""
    results = translator.translate_batch(
        [pieces],
        max_input_length=0,
        max_decoding_length={longest},
        min_decoding_length={shortest},
        suppress_sequences={never},
        {options},
    )
    return " ".join(tgt.decode(results[0].hypotheses[0]).split()).replace("\\ufdd0", "▁")


print(translate("a sentence"))
```

Run this in the folder, and translate one sentence at a time, as in the training text.
{notes}"""


class CTranslate2(Format):
    """A folder with weights in fp32, which CTranslate2 converts on loading, and vocabularies."""

    name = "ctranslate2"
    library = "ctranslate2"
    max_positions = 4_096  # size of the table of positional encodings
    model_options: ClassVar = {
        **SIZES_AND_DROPOUT,
        **dict.fromkeys(("attention_bias", "tie_embeddings", "embedding_scale")),
        "feature_positions": None,  # `limits` looks at features
        "norm": ("pre", "post"),
        "activation": ("relu", "gelu"),
        "attention_scale": ("sqrt", "none", "temperature"),
        "positions": ("sinusoidal", "rotary"),
        "rotary_cross_attention": (False,),
        "position_base": (10_000.0,),
        "position_offset": (0,),
        "norm_epsilon": (1e-5,),
        "output_bias": (False,),
    }
    search_options: ClassVar = {
        "beam_size": "beam_size",
        "length_penalty": "length_penalty",
        "repetition_penalty": "repetition_penalty",
        "no_repeat_ngram_size": "no_repeat_ngram_size",
        "top_k": "sampling_topk",
        "top_p": "sampling_topp",
        "temperature": "sampling_temperature",
    }
    tag_usage = "A tag is the first piece of the source: `pieces = [tag, *pieces]`."
    feature_usage = "They precede the text, after a tag: `pieces = [*features, *pieces]`."

    def limits(self, config: Config) -> str | None:
        """CTranslate2 has no features that share a position."""
        if config.train_text.has_features and not config.model.feature_positions:
            return "model.feature_positions is false"
        return super().limits(config)

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return code that uses the model with the run's search options."""
        paths = RunFolder(Path()).new_tokenizer_paths(is_one=tokenizers.src is tokenizers.tgt)
        options = {"beam_size": 1} | self.search_of(config.decoding)
        if config.decoding.sampling:
            options = {"sampling_topk": 0} | options  # sample from all tokens
        return _USAGE.format(
            src=f'"{paths[0].name}"',
            tgt=f'"{paths[1].name}"',
            **length_limits(config.decoding, "len(pieces)"),
            never=_never(tokenizers),
            options=", ".join(f"{name}={value}" for name, value in options.items()),
            notes=self.notes(config, tokenizers),
        )

    def write(self, translator: "Translator", folder: Path) -> None:
        """Write weights, vocabularies and our tokenizers."""
        plugins.require("ctranslate2", "export", f"--format {self.name}")
        from seq2seq_cli.extras.export.ctranslate2_weights import write_weights

        write_weights(translator.model, translator.tokenizers, folder)
        save_tokenizers(RunFolder(folder), translator.tokenizers)

    def source_ids(self, folder: Path, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of lines in CTranslate2's own vocabulary."""
        (src, _), ids = _tokenizers(folder), source_vocabulary(folder)
        return [[ids[piece] for piece in src.pieces_of(src.to_ids(line))] for line in lines]

    def translate(self, folder: Path, sources: Sequence[Source]) -> list[str]:
        """Return the pieces of translations, computed one by one."""
        import ctranslate2

        tokenizers = _tokenizers(folder)
        translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
        results = [
            translator.translate_batch(
                [tokenizers.src.pieces_of(source.ids)],
                beam_size=1,
                max_input_length=0,
                max_decoding_length=source.longest,
                min_decoding_length=0,
                suppress_sequences=_never(tokenizers),
            )[0]
            for source in sources
        ]
        return [" ".join(result.hypotheses[0]) for result in results]


def source_vocabulary(folder: Path) -> dict[str, int]:
    """Return the ids of a model's source pieces."""
    shared, separate = folder / "shared_vocabulary.json", folder / "source_vocabulary.json"
    vocabulary = read_json(shared if shared.exists() else separate)
    return {piece: number for number, piece in enumerate(vocabulary)}


def _tokenizers(folder: Path) -> Tokenizers:
    paths = RunFolder(folder).tokenizer_paths(shared=(folder / "tokenizer.model").exists())
    return Tokenizers(*map(Tokenizer.load, paths))


def _never(tokenizers: Tokenizers) -> list[list[str]]:
    """Return the tokens that no translation contains, as CTranslate2 expects them."""
    return [[piece] for piece in tokenizers.tgt.pieces_of([PAD_ID, UNK_ID, BOS_ID])]


FORMAT = CTranslate2()
