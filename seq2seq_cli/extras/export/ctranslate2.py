"""CTranslate2 models (https://opennmt.net/CTranslate2), for serving."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from seq2seq_cli import plugins
from seq2seq_cli.config.schema import Config
from seq2seq_cli.extras.export.format import Format, Source, is_imported
from seq2seq_cli.extras.export.vocabularies import SPMS, split_ids, write_tokenizers
from seq2seq_cli.files import read_json
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, PAD_ID, UNK_ID, Tokenizer, Tokenizers

if TYPE_CHECKING:
    from seq2seq_cli.decoding.translator import Translator

_USAGE = """```python
import ctranslate2, sentencepiece

src, tgt = (sentencepiece.SentencePieceProcessor(file) for file in ("{src}", "{tgt}"))
translator = ctranslate2.Translator(".")


def translate(line):
    line = " ".join(line.split()){quoted}
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
    return " ".join(tgt.decode(results[0].hypotheses[0]).split()){unquoted}


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
        **Format.model_options,
        **dict.fromkeys(("embedding_scale", "position_offset", "source_eos")),
        "feature_positions": (True,),
        "activation": ("relu", "gelu", "silu"),
        "positions": ("sinusoidal", "rotary"),
    }
    search_options: ClassVar = {
        **Format.search_options,
        "beam_size": "beam_size",
        "top_k": "sampling_topk",
        "top_p": "sampling_topp",
        "temperature": "sampling_temperature",
    }
    tag_usage = "A tag is the first piece of the source: `pieces = [tag, *pieces]`."
    feature_usage = "They precede the text, after a tag: `pieces = [*features, *pieces]`."

    def usage(self, config: Config, tokenizers: Tokenizers) -> str:
        (src, tgt), pieces, quoted, unquoted = SPMS, "src.encode(line, out_type=str)", "", ""
        if not is_imported(tokenizers):  # but learned here, with ▁ quoted
            paths = RunFolder(Path()).new_tokenizer_paths(is_one=tokenizers.src is tokenizers.tgt)
            src, tgt = (path.name for path in paths)
            pieces = "[src.id_to_piece(i) for i in src.encode(line)]"
            quoted, unquoted = r'.replace("▁", "\ufdd0")', r'.replace("\ufdd0", "▁")'
        options = {"beam_size": 1} | self.search_of(config.decoding)
        if config.decoding.sampling:
            options = {"sampling_topk": 0} | options  # sample from all tokens
        elif config.decoding.width > 1:
            options["patience"] = config.decoding.width  # until no better result is likely
        return _USAGE.format(
            src=src,
            tgt=tgt,
            pieces=pieces,
            quoted=quoted,
            unquoted=unquoted,
            **self.length_limits(config.decoding, "len(pieces)"),
            never=never_pieces(tokenizers),
            options=", ".join(f"{name}={value}" for name, value in options.items()),
            notes=self.notes(config, tokenizers),
        )

    def write(self, translator: "Translator", folder: Path) -> None:
        plugins.require("ctranslate2", "export", f"--format {self.name}")
        from seq2seq_cli.extras.export.ctranslate2_weights import write_weights

        write_weights(translator.model, translator.tokenizers, folder)
        write_tokenizers(translator.tokenizers, folder)

    def source_ids(self, folder: Path, lines: list[str], tokenizers: Tokenizers) -> list[list[int]]:
        vocabulary = source_vocabulary(folder)
        if is_imported(tokenizers):
            found = split_ids(folder, vocabulary, lines)
            return [tokenizers.src.ids_of([vocabulary[i] for i in ids]) for ids in found]
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        src = Tokenizer.load(RunFolder(folder).tokenizer_paths(shared=True)[0])
        return [[ids[piece] for piece in src.pieces_of(src.to_ids(line))] for line in lines]

    def translate(self, folder: Path, sources: list[Source], tokenizers: Tokenizers) -> list[str]:
        import ctranslate2

        translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
        never = never_pieces(tokenizers)
        translations: list[str] = []
        for source in sources:  # one by one
            pieces = tokenizers.src.pieces_of(source.ids)
            translations += map(" ".join, greedy(translator, [pieces], source.longest, never))
        return translations


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
    """Return tokens never to output; imported models lack PAD, and a bias bars a start token."""
    never = [UNK_ID] if is_imported(tokenizers) else [PAD_ID, UNK_ID, BOS_ID]
    return [[piece] for piece in tokenizers.tgt.pieces_of(never)]


FORMAT = CTranslate2()
