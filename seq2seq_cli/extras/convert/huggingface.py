"""Reads MarianMT models of transformers: OPUS-MT, and what `seq2seq export` writes.

Sources: `modeling_marian.py`, `configuration_marian.py` and `tokenization_marian.py` of
transformers 5. V vocabulary, D d_model, F d_ff.
"""

from pathlib import Path
from typing import Any

import numpy as np

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.convert.foreign import (
    MOST_ENTRIES,
    MOST_LAYERS,
    Array,
    ForeignModel,
    Names,
    Positions,
    Vocabulary,
    damaged,
    entries_by_id,
    fold_activation,
    incomplete,
    known_activation,
    number,
    own_tokenizers,
    own_vocabularies,
    positions_of,
    probability,
    read_object,
    read_sentencepiece,
    refuse,
    tags_of,
)
from seq2seq_cli.extras.export.weights import parts_of, shape_of
from seq2seq_cli.weight_file import FLOATS, as_float32, read_weight_file

# In the order of transformers; an index names several files.
_WEIGHTS = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
_ACTIVATIONS = {
    "relu": ("relu", 1.0),
    "gelu": ("gelu", 1.0),
    "swish": ("silu", 1.0),
    "silu": ("silu", 1.0),
    "quick_gelu": ("silu", 1.702),  # x · sigmoid(1.702 x) (Hendrycks and Gimpel 2016)
}
_NOT_SEARCHED = (
    *("num_beam_groups", "diversity_penalty"),
    *("encoder_no_repeat_ngram_size", "forced_bos_token_id", "begin_suppress_tokens"),
    *("sequence_bias", "exponential_decay_length_penalty", "min_p", "typical_p"),
)
# Numbers of the search with their ranges here, always and with do_sample.
_NUMBERS = {"length_penalty": (0.0, 10.0), "repetition_penalty": (1.0, 1e3)}
_OF_SAMPLING = {"temperature": (1e-6, 1e3), "top_p": (1e-6, 1.0)}
_HALVES = ("float16", "bfloat16")
_LONGEST = 512  # positions of OPUS-MT


def detect(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any((folder / n).is_file() for n in _WEIGHTS)


def read(folder: Path) -> ForeignModel:
    """Read a folder; UserError if it is damaged, or if a run cannot represent the model."""
    path = folder / "config.json"
    config = read_object(path)
    tokenizers = own_tokenizers(folder)
    tokenizer_options = read_object(folder / "tokenizer_config.json", is_optional=True)
    has_marians = tokenizer_options.get("tokenizer_class") == "MarianTokenizer"
    _check(config, path, is_exported=has_marians or tokenizers is not None)
    names, has_halves = _tensors(folder)
    search = config | read_object(folder / "generation_config.json", is_optional=True)
    src_size = tgt_size = number(config.get("vocab_size"), "vocab_size", path, 4, MOST_ENTRIES)
    is_one = config.get("share_encoder_decoder_embeddings", True) is not False
    if not is_one:
        given = config.get("decoder_vocab_size") or src_size
        tgt_size = number(given, "decoder_vocab_size", path, 4, MOST_ENTRIES)
    sizes, sentencepiece = (src_size, tgt_size), None
    weights, options = _weights(names, config, path, sizes, is_one)
    if tokenizers is not None:
        src, tgt = own_vocabularies(tokenizers, sizes, path)
    else:
        src, tgt = _vocabularies(folder, config, tokenizer_options, sizes)
        source, target = folder / "source.spm", folder / "target.spm"
        sentencepiece = read_sentencepiece(source), read_sentencepiece(target)
    tables = [
        names.take_optional(f"model.{side}.embed_positions.weight", None, options["d_model"])
        for side in ("encoder", "decoder")
    ]
    computed = Positions(has_halves=True, base=10_000.0, offset=0)  # if none is saved
    model = ForeignModel(
        weights=weights,
        model=options,
        src=src,
        tgt=tgt,
        positions=positions_of(tables, computed, names.path),
        sentencepiece=sentencepiece,
        tokenizers=tokenizers,
        languages=_languages(tokenizer_options),
        tags=tags_of(src),
        notes=["weights in half precision were read as they are"] if has_halves else [],
    )
    _add_search(model, search, config)
    return model


def _check(config: dict[str, Any], path: Path, *, is_exported: bool) -> None:
    """Refuse by name what is no MarianMT model; this program exports pre-norm models as Pegasus."""
    kind = config.get("model_type")
    if kind == "marian" or (kind == "pegasus" and is_exported):
        return
    of_t5 = "its relative position biases and RMSNorm have no option here"
    of_bart = "its learned positions and embedding norm have no option here"
    reasons = {
        **dict.fromkeys(("t5", "mt5", "umt5"), of_t5),
        **dict.fromkeys(("mbart", "bart"), of_bart),
        "m2m_100": "its tokenizer puts language codes around the text",
        "pegasus": "there is no tokenizer.model, as in exports of a run",
    }
    reason = reasons.get(str(kind), "only MarianMT can be imported")
    raise refuse(path, f"model_type {short(str(kind))}", reason)


def _tensors(folder: Path) -> tuple[Names, bool]:
    """Return all tensors, and whether any of them has half precision."""
    path = next(folder / name for name in _WEIGHTS if (folder / name).is_file())
    if path.suffix != ".json":
        tensors, has_halves = _read_weights(path)
        return Names(tensors, path), has_halves
    tensors, has_halves = {}, False
    files = read_object(path).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise damaged(path, "it has no table of weights")
    here = {entry.name for entry in folder.iterdir()}
    for file in sorted({*files.values()}):
        if file not in here:
            raise incomplete(path, f"its folder has no file {short(file)}")
        read, is_half = _read_weights(folder / file)
        tensors |= {name: array for name, array in read.items() if files.get(name) == file}
        has_halves |= is_half
    return Names(tensors, path), has_halves


def _read_weights(path: Path) -> tuple[dict[str, Array], bool]:
    """Return the tensors of a file in fp32, and whether any of them has half precision."""
    if path.suffix == ".safetensors":
        stored = {n: t for n, t in read_weight_file(path).tensors.items() if t.dtype in FLOATS}
        has_halves = any(tensor.dtype in _HALVES for tensor in stored.values())
        return {name: as_float32(tensor) for name, tensor in stored.items()}, has_halves
    import torch

    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises any type for a damaged file
        raise damaged(path, short(str(error))) from None
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in tensors.items()
    ):
        raise damaged(path, "it is not a table of weights")
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        is_whole = tensor.layout is torch.strided and tensor.device.type == "cpu"
        is_whole &= dtypes[name] in FLOATS  # not quantized
        # An expanded tensor has more numbers than the file.
        if not is_whole or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise damaged(path, f"{short(name)} is not a complete floating-point tensor")
    has_halves = any(dtype in _HALVES for dtype in dtypes.values())
    return {name: t.detach().float().numpy() for name, t in tensors.items()}, has_halves


def _weights(
    names: Names, config: dict[str, Any], path: Path, sizes: tuple[int, int], is_one: bool
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the weights under our names, and the options of the model."""
    d_model = number(config.get("d_model"), "d_model", path, 2, 65_536)
    layers = {
        side: number(config.get(f"{side}_layers"), f"{side}_layers", path, 1, MOST_LAYERS)
        for side in ("encoder", "decoder")
    }
    for name in ("attention_heads", "ffn_dim"):
        if config.get(f"encoder_{name}") != config.get(f"decoder_{name}"):
            raise refuse(path, f"different {name} in encoder and decoder", "a run has one number")
    heads = number(config.get("encoder_attention_heads"), "encoder_attention_heads", path)
    d_ff = number(config.get("encoder_ffn_dim"), "encoder_ffn_dim", path)
    name = str(config.get("activation_function"))
    activation, factor = known_activation(name, _ACTIVATIONS, path)
    is_pre_norm = config.get("model_type") == "pegasus"
    is_tied = config.get("tie_word_embeddings", True) is not False
    weights = _embeddings(names, (*sizes, d_model), is_one, is_tied)
    lm_head = names.take_optional("lm_head.weight", sizes[1], d_model)
    if not is_tied and lm_head is not None:
        weights["projection.weight"] = lm_head
    weights["projection.bias"] = names.take_or_zeros("final_logits_bias", 1, sizes[1])[0]
    for part in parts_of(layers.items(), is_pre_norm=is_pre_norm):
        shape = shape_of(part.ours, d_model, d_ff)
        weights[f"{part.ours}.weight"] = names.take(f"{part.huggingface}.weight", *shape)
        weights[f"{part.ours}.bias"] = names.take(f"{part.huggingface}.bias", shape[0])
    fold_activation(weights, factor)
    return weights, {
        "d_model": d_model,
        "heads": heads,
        "layers": layers,
        "d_ff": d_ff,
        "dropout": probability(config.get("dropout", 0.1)),
        "attention_dropout": probability(config.get("attention_dropout", 0.0)),
        "activation_dropout": probability(config.get("activation_dropout", 0.0)),
        "activation": activation,
        "norm": "pre" if is_pre_norm else "post",
        "embedding_scale": config.get("scale_embedding") is True,
        "tie_embeddings": "projection.weight" not in weights,
    }


def _embeddings(
    names: Names, sizes: tuple[int, int, int], is_one: bool, is_tied: bool
) -> dict[str, Array]:
    """Take the embeddings, one matrix if both sides share it; untied ones may differ from it."""
    src_size, tgt_size, d_model = sizes
    shared = names.take_optional("model.shared.weight", src_size, d_model)
    src = names.take_optional("model.encoder.embed_tokens.weight", src_size, d_model)
    tgt = names.take_optional("model.decoder.embed_tokens.weight", tgt_size, d_model)
    if is_one and (is_tied or src is None or tgt is None):
        src = tgt = next((array for array in (shared, src, tgt) if array is not None), None)
    if src is None or tgt is None:
        raise incomplete(names.path, "it lacks the weights of embeddings")
    if is_one and np.array_equal(src, tgt):
        return {"tgt_embedding.weight": tgt}
    return {"tgt_embedding.weight": tgt, "src_embedding.weight": src}


def _vocabularies(
    folder: Path, config: dict[str, Any], options: dict[str, Any], sizes: tuple[int, int]
) -> tuple[Vocabulary, Vocabulary]:
    """Read vocab.json, and target_vocab.json if the sides have separate vocabularies."""
    path = folder / "vocab.json"
    if not (folder / "source.spm").is_file() and not path.is_file():
        raise UserError(f"{folder} has no tokenizer: source.spm, target.spm and vocab.json")
    is_separate = options.get("separate_vocabs") is True or sizes[0] != sizes[1]
    src = _vocabulary(path, config, options, sizes[0], is_target=not is_separate)
    if not is_separate:
        return src, src
    path = folder / "target_vocab.json"
    return src, _vocabulary(path, config, options, sizes[1], is_target=True)


def _vocabulary(
    path: Path, config: dict[str, Any], options: dict[str, Any], size: int, *, is_target: bool
) -> Vocabulary:
    ids = read_object(path)
    pieces = entries_by_id(ids, size, path)
    unk = options.get("unk_token", "<unk>")
    unk = str(unk.get("content") if isinstance(unk, dict) else unk)
    if unk not in ids:
        raise UserError(f"{path} has no entry {short(unk)} for unknown tokens")
    where = path.with_name("config.json")
    eos = config.get("eos_token_id")
    eos = eos[0] if isinstance(eos, list) and len(eos) == 1 else eos
    eos = number(eos, "eos_token_id", where, 0, size - 1)
    start, pad = config.get("decoder_start_token_id"), config.get("pad_token_id")
    if not is_target:  # the source has neither
        eos, pad = ids.get("</s>", eos), ids.get("<pad>", pad)
        in_range = isinstance(pad, int) and 0 <= pad < size
        return Vocabulary(pieces, ids[unk], eos, None, pad if in_range else None)
    start = number(start, "decoder_start_token_id", where, 0, size - 1)
    pad = None if pad is None else number(pad, "pad_token_id", where, 0, size - 1)
    return Vocabulary(pieces, ids[unk], eos, start, pad)


def _languages(options: dict[str, Any]) -> LanguagePair | None:
    codes = [options.get("source_lang"), options.get("target_lang")]
    if all(isinstance(code, str) and 2 <= len(code) <= 3 and code.isalpha() for code in codes):
        return LanguagePair(*(str(code).lower() for code in codes))
    return None


def _add_search(model: ForeignModel, search: dict[str, Any], config: dict[str, Any]) -> None:
    """Add the search options of generation_config.json, or of config.json in older models."""
    beam, longest = search.get("num_beams", 1), search.get("max_length", _LONGEST)
    if isinstance(search.get("max_new_tokens"), int):
        longest = search["max_new_tokens"] + 1
    positions = config.get("max_position_embeddings")
    positions = positions if isinstance(positions, int) else _LONGEST
    most = min(longest, positions) if isinstance(longest, int) else _LONGEST
    # The length counts the start token and EOS, which every translation ends with.
    most_tokens = min(max(most - 2, 1), 10_000)
    decoding = model.decoding = {"max_len_factor": 0.0, "max_len_extra": most_tokens}
    model.max_length = max(1, positions - 1)
    if isinstance(beam, int) and 1 <= beam <= 1_000:
        decoding["beam_size"] = beam
    given = dict(_NUMBERS)
    if search.get("do_sample") is True:
        if decoding.get("beam_size", 1) == 1:
            decoding["sampling"] = True
            given |= _OF_SAMPLING
        else:
            model.notes.append("do_sample with num_beams has no equivalent")
    for name, (least, most_value) in given.items():
        value = search.get(name)
        if value in (None, 1.0):
            continue
        if isinstance(value, int | float) and least <= value <= most_value:
            decoding[name] = float(value)
        else:
            model.notes.append(f"{name} {short(str(value))} has no equivalent")
    for name in _NOT_SEARCHED:
        if (value := search.get(name)) not in (None, 0, 1, [], {}):
            model.notes.append(f"{name} {short(str(value))} has no equivalent")
    shortest = search.get("min_new_tokens")
    if shortest is None and isinstance(minimum := search.get("min_length"), int):
        shortest = minimum - 1  # without the start token
    if isinstance(shortest, int):
        shortest = min(shortest, most_tokens)
    # transformers samples from 50 tokens unless told otherwise.
    top_k = search.get("top_k", 50) if "sampling" in decoding else None
    size = search.get("no_repeat_ngram_size")
    counts = {"min_len_extra": shortest, "top_k": top_k, "no_repeat_ngram_size": size}
    decoding |= {n: value for n, value in counts.items() if isinstance(value, int) and value > 0}
    special = {model.tgt.start, model.tgt.pad, model.tgt.unk}
    words, tokens = search.get("bad_words_ids"), search.get("suppress_tokens")
    words = words if isinstance(words, list) else []
    words = [*words, *([token] for token in (tokens if isinstance(tokens, list) else ()))]
    model.bad_words = [
        word
        for word in words
        if isinstance(word, list)
        and all(isinstance(i, int) and 0 <= i < len(model.tgt.pieces) for i in word)
        and not set(word) <= special
    ]
