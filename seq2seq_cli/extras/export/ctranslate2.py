"""CTranslate2 models (https://opennmt.net/CTranslate2), for serving."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.schema import Config
from seq2seq_cli.extras.export.format import (
    COMMON_OPTIONS,
    Format,
    Source,
    is_imported,
    length_limits,
)
from seq2seq_cli.extras.export.vocabularies import SOURCE_SPM, TARGET_SPM, split_ids, write_spm
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
    line = {line}
    pieces = {pieces}
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
    return {text}


print(translate("a sentence"))
```

Run this in the folder, and translate one sentence at a time, as in the training text.
{notes}"""


# What `translate` does before and after CTranslate2: with vocabularies that were learned here, in
# which ▁ is quoted, and with imported ones.
_LEARNED = {
    "line": '" ".join(line.split()).replace("▁", "\\ufdd0")',
    "pieces": "[src.id_to_piece(i) for i in src.encode(line)]",
    "text": '" ".join(tgt.decode(results[0].hypotheses[0]).split()).replace("\\ufdd0", "▁")',
}
_IMPORTED = {
    "line": '" ".join(line.split())',
    "pieces": "src.encode(line, out_type=str)",
    "text": '" ".join(tgt.decode(results[0].hypotheses[0]).split())',
}


class CTranslate2(Format):
    """A folder with weights in fp32, which CTranslate2 converts on loading, and vocabularies."""

    name = "ctranslate2"
    library = "ctranslate2"
    max_positions = 4_096  # size of the table of positional encodings
    model_options: ClassVar = {
        **COMMON_OPTIONS,
        **dict.fromkeys(("embedding_scale", "position_offset", "source_eos")),
        "feature_positions": (True,),
        "activation": ("relu", "gelu", "silu"),
        "positions": ("sinusoidal", "rotary"),
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

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        """Return code that uses the model with the run's search options."""
        names, code = (SOURCE_SPM, TARGET_SPM), _IMPORTED
        if not is_imported(tokenizers):
            is_one = tokenizers.src is tokenizers.tgt
            paths = RunFolder(Path()).new_tokenizer_paths(is_one=is_one)
            names, code = (paths[0].name, paths[1].name), _LEARNED
        options = {"beam_size": 1} | self.search_of(config.decoding)
        if config.decoding.sampling:
            options = {"sampling_topk": 0} | options  # sample from all tokens
        return _USAGE.format(
            **code,
            src=f'"{names[0]}"',
            tgt=f'"{names[1]}"',
            **length_limits(config.decoding, "len(pieces)"),
            never=never_pieces(tokenizers),
            options=", ".join(f"{name}={value}" for name, value in options.items()),
            notes=self.notes(config, tokenizers),
        )

    def write(self, translator: "Translator", folder: Path) -> None:
        """Write weights, vocabularies and our tokenizers."""
        plugins.require("ctranslate2", "export", f"--format {self.name}")
        from seq2seq_cli.extras.export.ctranslate2_weights import write_weights

        write_weights(translator.model, translator.tokenizers, folder)
        if is_imported(translator.tokenizers):
            write_spm(translator.tokenizers, folder)
        else:
            save_tokenizers(RunFolder(folder), translator.tokenizers)

    def source_ids(
        self, folder: Path, lines: Sequence[str], tokenizers: Tokenizers
    ) -> list[list[int]]:
        """Return the ids here of lines in CTranslate2's own vocabulary."""
        vocabulary = source_vocabulary(folder)
        if is_imported(tokenizers):
            found = split_ids(folder, vocabulary, lines)
            return [tokenizers.src.ids_of([vocabulary[i] for i in ids]) for ids in found]
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        is_shared = (folder / "tokenizer.model").exists()
        src = Tokenizer.load(RunFolder(folder).tokenizer_paths(shared=is_shared)[0])
        return [[ids[piece] for piece in src.pieces_of(src.to_ids(line))] for line in lines]

    def translate(
        self, folder: Path, sources: Sequence[Source], tokenizers: Tokenizers
    ) -> list[str]:
        """Return the pieces of translations, computed one by one."""
        import ctranslate2

        translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
        never = never_pieces(tokenizers)
        pieces = [tokenizers.src.pieces_of(source.ids) for source in sources]
        return [
            " ".join(greedy(translator, [line], source.longest, never)[0])
            for line, source in zip(pieces, sources, strict=True)
        ]


def greedy(
    translator: Any, sources: Sequence[list[str]], longest: int, never: Sequence[list[str]]
) -> list[list[str]]:
    """Return the pieces of greedy translations by a `ctranslate2.Translator`."""
    results = translator.translate_batch(
        sources,
        beam_size=1,
        max_input_length=0,
        max_decoding_length=longest,
        min_decoding_length=0,
        suppress_sequences=never,
    )
    return [result.hypotheses[0] for result in results]


def source_vocabulary(folder: Path) -> list[str]:
    shared, separate = folder / "shared_vocabulary.json", folder / "source_vocabulary.json"
    return read_json(shared if shared.exists() else separate)


def never_pieces(tokenizers: Tokenizers) -> list[list[str]]:
    """Return the tokens that no translation contains, as CTranslate2 expects them.

    Imported models have no PAD there, and perhaps a start token, which their weights make
    impossible.
    """
    never = [UNK_ID] if is_imported(tokenizers) else [PAD_ID, UNK_ID, BOS_ID]
    return [[piece] for piece in tokenizers.tgt.pieces_of(never)]


FORMAT = CTranslate2()
