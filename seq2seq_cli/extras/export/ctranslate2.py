"""Writes a run as a CTranslate2 model (https://opennmt.net/CTranslate2), for serving."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.types import Activation
from seq2seq_cli.decoding.translation import Translation
from seq2seq_cli.errors import UserError, pip_arguments
from seq2seq_cli.extras.export.comparison import Source
from seq2seq_cli.extras.export.search_options import longest, named, notes, shortest
from seq2seq_cli.files import read_json
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    Tokenizers,
    save_tokenizers,
)

_ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU"}  # by CTranslate2's names

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

_TAG = "A tag is the first piece of the source: `pieces = [tag, *pieces]`."
_FEATURES = (
    "They are pieces before those of the text, after a tag: `pieces = [*features, *pieces]`."
)
_NAMES = {
    "beam_size": "beam_size",
    "length_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "temperature": "sampling_temperature",
}
LIBRARY = "ctranslate2"
HAS_TAGS = True
_IMPOSSIBLE = -10_000.0  # added to a logit; the exponential of it is zero
MOST_POSITIONS = 4_096  # size of the table of positional encodings; longer sentences are rejected


def usage(config: Config, tokenizers: Tokenizers) -> str:
    """Return code that uses the model with the run's search options, and what it does not do."""
    paths = RunFolder(Path()).new_tokenizer_paths(is_one=tokenizers.src is tokenizers.tgt)
    options = {"beam_size": 1} | named(config.decoding, _NAMES)
    if config.decoding.sampling:
        options = {"sampling_topk": 0} | options  # sample from all tokens
    return _USAGE.format(
        src=f'"{paths[0].name}"',
        tgt=f'"{paths[1].name}"',
        longest=longest(config.decoding, "len(pieces)"),
        shortest=shortest(config.decoding, "len(pieces)"),
        never=_never(tokenizers),
        options=", ".join(f"{name}={value}" for name, value in options.items()),
        notes=notes(config, tokenizers, _NAMES, tag=_TAG, features=_FEATURES),
    )


def write_model(model: Transformer, config: Config, tokenizers: Tokenizers, folder: Path) -> None:
    """Write weights, vocabularies and our tokenizers."""
    write_weights(model, tokenizers, folder)
    save_tokenizers(RunFolder(folder), tokenizers)


def write_weights(
    model: Transformer,
    tokenizers: Tokenizers,
    folder: Path,
    *,
    first_piece: str | None = None,
    never: Sequence[int] = (),
) -> None:
    """Write weights in fp32, which CTranslate2 converts on loading, and vocabularies.

    CTranslate2 then puts `first_piece` before every source, and never outputs some ids.
    """
    try:
        from ctranslate2 import specs
    except ImportError:
        raise UserError(
            f"--format ctranslate2 needs the package ctranslate2: "
            f"pip install {pip_arguments('export')}"
        ) from None
    options = model.config
    shape = {
        "num_heads": options.heads,
        "pre_norm": options.norm == "pre",
        "activation": getattr(specs.common_spec.Activation, _ACTIVATIONS[options.activation]),
        "rotary_dim": options.d_model // options.heads if options.positions == "rotary" else None,
    }
    spec = specs.TransformerSpec(
        specs.TransformerEncoderSpec(options.layers.encoder, **shape),
        specs.TransformerDecoderSpec(options.layers.decoder, **shape),
    )
    _fill_side(spec.encoder, model.encoder, model.encoder_norm, options)
    _fill_side(spec.decoder, model.decoder, model.decoder_norm, options)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight)
    _fill_linear(spec.decoder.projection, model.projection)
    if never:
        bias = np.zeros(len(tokenizers.tgt), np.float32)
        bias[list(never)] = _IMPOSSIBLE
        spec.decoder.projection.bias = bias
    pieces = tokenizers.tgt.pieces()
    spec.register_source_vocabulary(tokenizers.src.pieces())
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token, spec.config.bos_token = pieces[UNK_ID], first_piece or pieces[BOS_ID]
    spec.config.eos_token = pieces[EOS_ID]
    spec.config.decoder_start_token = pieces[BOS_ID]
    spec.config.add_source_bos, spec.config.add_source_eos = first_piece is not None, True
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def search(decoding: DecodingConfig) -> dict[str, Any]:
    """Return what the compared search has beside being greedy: nothing."""
    return {}


def source_ids(folder: Path, lines: Sequence[str]) -> list[list[int]]:
    """Return the ids of lines in CTranslate2's own vocabulary."""
    (src, _), ids = _tokenizers(folder), source_vocabulary(folder)
    return [[ids[piece] for piece in src.pieces_of(src.to_ids(line))] for line in lines]


def source_vocabulary(folder: Path) -> dict[str, int]:
    """Return the ids of pieces of the source in a model."""
    shared, separate = folder / "shared_vocabulary.json", folder / "source_vocabulary.json"
    vocabulary = read_json(shared if shared.exists() else separate)
    return {piece: number for number, piece in enumerate(vocabulary)}


def translate(folder: Path, sources: Sequence[Source]) -> list[str]:
    """Return greedy translations by CTranslate2, one by one in fp32, as pieces."""
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


def shown(translation: Translation) -> str:
    """Return a translation of this toolkit as `translate` returns those of CTranslate2."""
    return " ".join(translation.tokens)


def _tokenizers(folder: Path) -> Tokenizers:
    """Load the tokenizers beside the model."""
    paths = RunFolder(folder).tokenizer_paths(shared=(folder / "tokenizer.model").exists())
    return Tokenizers(*map(Tokenizer.load, paths))


def _never(tokenizers: Tokenizers) -> list[list[str]]:
    """Return the tokens that no translation contains, as CTranslate2 expects them."""
    return [[piece] for piece in tokenizers.tgt.pieces_of([PAD_ID, UNK_ID, BOS_ID])]


def _fill_side(side: Any, layers: nn.ModuleList, norm: nn.Module, config: ModelConfig) -> None:
    side.scale_embeddings = config.embedding_scale
    if config.positions == "sinusoidal":
        encodings = sinusoidal_positions(0, MOST_POSITIONS, config.d_model)
        side.position_encodings.encodings = encodings.numpy()
    elif hasattr(side, "position_encodings"):  # not used, but required by the specification
        side.position_encodings.encodings = np.zeros((1, config.d_model), np.float32)
    if isinstance(norm, nn.LayerNorm):
        _fill_norm(side.layer_norm, norm)
    for target, layer in zip(side.layer, layers, strict=True):
        assert isinstance(layer, EncoderLayer | DecoderLayer)
        attention, feed_forward = layer.self_attention, layer.feed_forward
        linear = target.self_attention.linear
        query = attention.query_with_scale()
        _fill_linear(linear[0], query, attention.key, attention.value)
        _fill_linear(linear[1], attention.output)
        _fill_norm(target.self_attention.layer_norm, layer.self_attention_residual.norm)
        if isinstance(layer, DecoderLayer):
            cross, linear = layer.cross_attention, target.attention.linear
            _fill_linear(linear[0], cross.query_with_scale())
            _fill_linear(linear[1], cross.key, cross.value)
            _fill_linear(linear[2], cross.output)
            _fill_norm(target.attention.layer_norm, layer.cross_attention_residual.norm)
        _fill_linear(target.ffn.linear_0, feed_forward.expand)
        _fill_linear(target.ffn.linear_1, feed_forward.contract)
        _fill_norm(target.ffn.layer_norm, layer.feed_forward_residual.norm)


def _fill_linear(target: Any, *layers: nn.Linear) -> None:
    """Fill one layer with layers of the same input, their outputs concatenated."""
    target.weight = _array(torch.cat([layer.weight for layer in layers]))
    if layers[0].bias is not None:
        target.bias = _array(torch.cat([layer.bias for layer in layers]))


def _fill_norm(target: Any, norm: nn.LayerNorm) -> None:
    target.gamma, target.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().cpu().numpy()
