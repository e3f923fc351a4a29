"""A run as a CTranslate2 model (https://opennmt.net/CTranslate2): a folder for serving."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.types import Activation
from seq2seq_cli.decoding.engines.support import unsupported_model
from seq2seq_cli.errors import UserError
from seq2seq_cli.export.search_options import left_out, longest, named, shortest
from seq2seq_cli.files import read_json
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer, Residual, sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, Tokenizers

_ACTIVATIONS: dict[Activation, str] = {"relu": "RELU", "gelu": "GELU"}  # by CTranslate2's names

_README = """# A CTranslate2 model

```python
import ctranslate2, sentencepiece

src, tgt = (sentencepiece.SentencePieceProcessor(file) for file in ({src}, {tgt}))
translator = ctranslate2.Translator(".")


def translate(line):
    line = " ".join(line.split()).replace("▁", "\\ufdd0")
    pieces = [src.id_to_piece(i) for i in src.encode(line)]
    if not pieces:
        return ""
    found = translator.translate_batch(
        [pieces],
        max_input_length=0,
        max_decoding_length={longest},
        min_decoding_length={shortest},
        suppress_sequences={never},
        {options},
    )
    return " ".join(tgt.decode(found[0].hypotheses[0]).split()).replace("\\ufdd0", "▁")


print(translate("a sentence"))
```

Give it one sentence at a time, as the training text did.
{left_out}"""

_NAMES = {
    "beam_size": "beam_size",
    "length_penalty": "length_penalty",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "top_k": "sampling_topk",
    "top_p": "sampling_topp",
    "temperature": "sampling_temperature",
}
_POSITIONS = 4_096  # the format holds a table of positions; longer sentences are refused by it


def readme(config: Config, tokenizers: Tokenizers) -> str:
    """The lines that use the folder, searching as the run does."""
    paths = RunFolder(Path()).tokenizer_paths(tokenizers.is_shared)
    options = {"beam_size": 1} | named(config.decoding, _NAMES)
    if config.decoding.sampling:
        options = {"sampling_topk": 0} | options  # of all tokens
    return _README.format(
        src=f'"{paths[0].name}"',
        tgt=f'"{paths[1].name}"',
        longest=longest(config.decoding, "len(pieces)"),
        shortest=shortest(config.decoding, "len(pieces)"),
        never=_never(tokenizers),
        options=", ".join(f"{name}={value}" for name, value in options.items()),
        left_out=left_out(config.decoding, _NAMES),
    )


def unsupported(model: Transformer, tokenizers: Tokenizers) -> str | None:
    """The reason why CTranslate2 cannot compute this model; None if it can."""
    return unsupported_model(model, _ACTIVATIONS)


def write_ctranslate2(
    model: Transformer, whole_config: Config, tokenizers: Tokenizers, folder: Path
) -> None:
    """Weights in fp32, which CTranslate2 turns into other types on loading, and vocabularies."""
    try:
        from ctranslate2 import specs
    except ImportError:
        raise UserError(
            "--format ctranslate2 needs the package ctranslate2: pip install 'seq2seq-cli[export]'"
        ) from None
    config = whole_config.model
    spec = specs.TransformerSpec.from_config(
        (config.layers.encoder, config.layers.decoder),
        config.heads,
        pre_norm=config.norm == "pre",
        activation=getattr(specs.common_spec.Activation, _ACTIVATIONS[config.activation]),
    )
    _fill_side(spec.encoder, model.encoder_norm, config)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight)
    for target, layer in zip(spec.encoder.layer, model.encoder, strict=True):
        assert isinstance(layer, EncoderLayer)
        _fill_self_attention(
            target.self_attention, layer.self_attention, layer.self_attention_residual
        )
        _fill_feed_forward(target.ffn, layer)
    _fill_side(spec.decoder, model.decoder_norm, config)
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight)
    _fill_linear(spec.decoder.projection, model.projection)
    for target, layer in zip(spec.decoder.layer, model.decoder, strict=True):
        assert isinstance(layer, DecoderLayer)
        _fill_self_attention(
            target.self_attention, layer.self_attention, layer.self_attention_residual
        )
        cross = layer.cross_attention
        _fill_linear(target.attention.linear[0], cross.query)
        _fill_linear(target.attention.linear[1], cross.key, cross.value)
        _fill_linear(target.attention.linear[2], cross.output)
        _fill_norm(target.attention.layer_norm, layer.cross_attention_residual.norm)
        _fill_feed_forward(target.ffn, layer)
    spec.register_source_vocabulary(tokenizers.src.pieces())
    spec.register_target_vocabulary(tokenizers.tgt.pieces())
    pieces = tokenizers.tgt.pieces()
    spec.config.unk_token, spec.config.bos_token = pieces[UNK_ID], pieces[BOS_ID]
    spec.config.eos_token = pieces[EOS_ID]
    spec.config.decoder_start_token = pieces[BOS_ID]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))


def source_ids(folder: Path, lines: Sequence[str]) -> list[list[int]]:
    """What the pieces are to CTranslate2's own vocabulary."""
    src, _ = _tokenizers(folder)
    shared, separate = folder / "shared_vocabulary.json", folder / "source_vocabulary.json"
    vocabulary = read_json(shared if shared.exists() else separate)
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    return [[ids[piece] for piece in src.pieces_of(src.to_ids(line))] for line in lines]


def translate_lines(
    folder: Path, lines: Sequence[str], max_lengths: Sequence[int]
) -> list[list[str]]:
    """Greedy translations by CTranslate2 itself, one by one, in fp32, as pieces."""
    import ctranslate2

    tokenizers = _tokenizers(folder)
    src = tokenizers.src
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    return [
        translator.translate_batch(
            [src.pieces_of(src.to_ids(line))],
            beam_size=1,
            max_input_length=0,
            max_decoding_length=length,
            min_decoding_length=0,
            suppress_sequences=_never(tokenizers),
        )[0].hypotheses[0]
        for line, length in zip(lines, max_lengths, strict=True)
    ]


def _tokenizers(folder: Path) -> Tokenizers:
    """Those that lie beside the model."""
    paths = RunFolder(folder).tokenizer_paths(shared=(folder / "tokenizer.model").exists())
    return Tokenizers(*map(Tokenizer.load, paths))


def _never(tokenizers: Tokenizers) -> list[list[str]]:
    """Tokens that no translation holds, as CTranslate2 is told."""
    return [[piece] for piece in tokenizers.tgt.pieces_of([PAD_ID, UNK_ID, BOS_ID])]


def _fill_side(side: Any, norm: nn.Module, config: ModelConfig) -> None:
    side.scale_embeddings = config.embedding_scale
    side.position_encodings.encodings = sinusoidal_positions(0, _POSITIONS, config.d_model).numpy()
    if isinstance(norm, nn.LayerNorm):
        _fill_norm(side.layer_norm, norm)


def _fill_self_attention(target: Any, attention: MultiHeadAttention, added: Residual) -> None:
    _fill_linear(target.linear[0], attention.query, attention.key, attention.value)
    _fill_linear(target.linear[1], attention.output)
    _fill_norm(target.layer_norm, added.norm)


def _fill_feed_forward(target: Any, layer: EncoderLayer | DecoderLayer) -> None:
    _fill_linear(target.linear_0, layer.feed_forward.expand)
    _fill_linear(target.linear_1, layer.feed_forward.contract)
    _fill_norm(target.layer_norm, layer.feed_forward_residual.norm)


def _fill_linear(target: Any, *layers: nn.Linear) -> None:
    """Layers of one input are one layer there, their outputs side by side."""
    target.weight = _array(torch.cat([layer.weight for layer in layers]))
    if layers[0].bias is not None:
        target.bias = _array(torch.cat([layer.bias for layer in layers]))


def _fill_norm(target: Any, norm: nn.LayerNorm) -> None:
    target.gamma, target.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().contiguous().cpu().numpy()
