"""Reads folders of the original Marian: .npz, decoder.yml, vocabularies and SentencePiece models.

Sources: marian-nmt/marian-dev, and the converters of transformers and CTranslate2.
"""

import filecmp
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from seq2seq_cli.config.loader import yaml_value
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
    known_activation,
    number,
    one_d_ff,
    probability,
    read_sentencepiece,
    refuse,
    tags_of,
    unzipping,
)
from seq2seq_cli.extras.export.marian import marian_base
from seq2seq_cli.extras.export.weights import Part, parts_of, shape_of
from seq2seq_cli.files import MEBIBYTE, read_bounded, reading
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import open_model

_SPECIAL = "special:model.yml"
_EPSILON = 1e-9  # of LayerNorm: src/graph/expression_operators.cpp
# Marian's gelu is x · sigmoid(1.702 x).
_ACTIVATIONS = {"relu": ("relu", 1.0), "swish": ("silu", 1.0), "gelu": ("silu", 1.702)}
# What has no option here, with the values that models without it have.
_UNKNOWN = {
    "transformer-no-projection": (False, "no output projection in attention"),
    "transformer-train-position-embeddings": (False, "learned positions"),
    "transformer-ffn-depth": (2, "feed-forward networks of another depth"),
    "transformer-tied-layers": ([], "tied layers"),
    "right-left": (False, "a decoder from right to left"),
    "lemma-dim-emb": (0, "factored vocabularies"),
    "ulr": (False, "universal embeddings"),
}


def detect(folder: Path) -> bool:
    return (folder / "decoder.yml").is_file() or any(folder.glob("*.npz"))


def read(folder: Path) -> ForeignModel:
    """Read a folder; UserError if it is damaged, or if a run cannot represent the model."""
    if (folder / "source.bpe").is_file() and not (folder / "source.spm").is_file():
        what = "source.bpe, BPE of text that Moses tokenized"
        raise refuse(folder, what, "only SentencePiece models can be read")
    decoder = decoder_options(folder)
    path = model_path(folder, decoder)
    tensors = read_npz(path)
    if _SPECIAL not in tensors:
        raise UserError(f"{path} is not a model of Marian: it lacks {_SPECIAL}")
    text = tensors.pop(_SPECIAL).tobytes().rstrip(b"\0").decode("utf-8", "replace")
    options = _options(text, path)
    _check(options, path)
    weights, model = _weights(Names(tensors, path), options, path)
    tgt_weight = weights["tgt_embedding.weight"]
    sizes = len(weights.get("src_embedding.weight", tgt_weight)), len(tgt_weight)
    paths = vocabulary_paths(folder, decoder)
    src, (source, target) = _vocabulary(paths[0], sizes[0]), paths
    is_one = filecmp.cmp(source, target, shallow=False)
    tgt = src if is_one else _vocabulary(target, sizes[1])
    if source.suffix != ".spm":
        source, target = folder / "source.spm", folder / "target.spm"
    found = ForeignModel(
        weights=weights,
        model=model,
        src=src,
        tgt=tgt,
        positions=Positions(has_halves=True, base=marian_base(model["d_model"]), offset=0),
        sentencepiece=(read_sentencepiece(source), read_sentencepiece(target)),
        tags=tags_of(src),
    )
    _add_search(found, {**options, **decoder})
    return found


def model_path(folder: Path, decoder: dict[str, Any]) -> Path:
    """Return the file of the weights: the first that decoder.yml names, or the only one."""
    named = decoder.get("models")
    if isinstance(named, list) and named and isinstance(named[0], str):
        path = folder / Path(named[0]).name
    else:
        found = sorted(folder.glob("*.npz"))
        if len(found) != 1:
            raise UserError(f"{folder} has {len(found)} .npz files, and no decoder.yml names one")
        path = found[0]
    if path.suffix != ".npz":
        raise refuse(path, "Marian's .bin format", "only its .npz files are read")
    if not path.is_file():
        raise UserError(f"{path} is missing, which {folder / 'decoder.yml'} names")
    return path


def vocabulary_paths(folder: Path, decoder: dict[str, Any]) -> tuple[Path, Path]:
    """Return the vocabularies of source and target, which may be the same file."""
    named = decoder.get("vocabs")
    if isinstance(named, list) and named and all(isinstance(name, str) for name in named):
        paths = [folder / Path(name).name for name in named]
    else:
        paths = sorted({*folder.glob("*vocab.yml"), *folder.glob("*vocab.json")})
        if len(paths) != 1:
            raise UserError(
                f"{folder} has {len(paths)} vocabularies, and no decoder.yml names one "
                "for each side"
            )
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is missing, which holds a vocabulary of the model")
    return paths[0], paths[-1]


def decoder_options(folder: Path) -> dict[str, Any]:
    path = folder / "decoder.yml"
    if not path.is_file():
        return {}
    return _options(_text(path, MEBIBYTE), path)


def _options(text: str, path: Path) -> dict[str, Any]:
    try:
        options = yaml_value(text, str(path))
    except UserError:
        options = None
    if not isinstance(options, dict):
        raise damaged(path, "its options are not valid YAML")
    return options


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays, without pickle; UserError if they are damaged, or a bomb."""
    arrays: dict[str, NDArray[Any]] = {}
    with unzipping(path) as archive:
        entries = archive.infolist()
        expanded = sum(entry.file_size for entry in entries)
        if expanded > 8 * path.stat().st_size + 16 * MEBIBYTE:
            raise UserError(f"{path} is not a model: it would expand to {expanded:,} bytes")
        for entry in entries:
            with archive.open(entry) as file:
                arrays[entry.filename.removesuffix(".npy")] = npy.read_array(file)
    return arrays


def _check(options: dict[str, Any], path: Path) -> None:
    """Refuse by name what has no option here."""
    if options.get("type", "transformer") != "transformer":
        raise refuse(path, f"the type {short(str(options['type']))}", "only transformer is read")
    decoder = options.get("transformer-decoder-autoreg", "self-attention")
    if decoder == "rnn":
        decoder = str(options.get("dec-cell", "gru")).upper()
    if decoder != "self-attention":
        raise refuse(path, f"the decoder {short(str(decoder))}", "a run's has self-attention")
    for name, (value, what) in _UNKNOWN.items():
        if options.get(name, value) != value:
            raise refuse(path, f"{what} ({name})", "there is no option for that")
    if "n" in str(options.get("transformer-postprocess-emb") or ""):
        raise refuse(path, "an embedding norm", "there is no option for that")
    found = tuple(
        str(options.get(f"transformer-{name}") or "")
        for name in ("preprocess", "postprocess", "postprocess-top")
    )
    if found not in (("", "dan", ""), ("n", "da", "n")):
        raise refuse(path, f"the order of operations {found}", "a run has post- or pre-norm")


def _weights(
    names: Names, options: dict[str, Any], path: Path
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the weights under our names, and the options of the model."""
    name = str(options.get("transformer-ffn-activation", "swish"))
    activation, factor = known_activation(name, _ACTIVATIONS, path)
    weights = _embeddings(names)
    d_model = weights["tgt_embedding.weight"].shape[1]
    number(d_model, "dim-emb", path, 4, 65_536)
    heads = number(options.get("transformer-heads", 8), "transformer-heads", path)
    is_pre_norm = bool(options.get("transformer-preprocess"))
    layers = {
        side: number(options.get(name, 6), name, path, 1, MOST_LAYERS)
        for side, name in (("encoder", "enc-depth"), ("decoder", "dec-depth"))
    }
    parts = parts_of(layers.items(), is_pre_norm=is_pre_norm)
    _take_parts(names, weights, parts, d_model)
    d_ff = one_d_ff(weights, path)
    fold_activation(weights, factor)
    _output(names, weights, d_model)
    if names.tensors:
        raise refuse(path, f"the weights {short(min(names.tensors))}", "no layer here has them")
    return weights, {
        "d_model": d_model,
        "heads": heads,
        "layers": layers,
        "d_ff": d_ff,
        "dropout": probability(options.get("transformer-dropout")),
        "attention_dropout": probability(options.get("transformer-dropout-attention")),
        "activation_dropout": probability(options.get("transformer-dropout-ffn")),
        "activation": activation,
        "norm": "pre" if is_pre_norm else "post",
        "norm_epsilon": _EPSILON,
        "embedding_scale": True,
        "tie_embeddings": "projection.weight" not in weights,
    }


def _embeddings(names: Names) -> dict[str, Array]:
    shared = names.take_optional("Wemb", None, None)
    if shared is not None:
        return {"tgt_embedding.weight": shared}
    tgt = names.take("decoder_Wemb", None, None)
    src = names.take("encoder_Wemb", None, tgt.shape[1])
    return {"tgt_embedding.weight": tgt, "src_embedding.weight": src}


def _output(names: Names, weights: dict[str, Array], d_model: int) -> None:
    """Take the output projection, tied to the embeddings unless the file has another one."""
    size, name = len(weights["tgt_embedding.weight"]), "decoder_ff_logit_out"
    transposed = names.take_optional(f"{name}_W", d_model, size)
    weight = names.take_optional(f"{name}_Wt", size, d_model)
    if transposed is not None:
        weight = np.ascontiguousarray(transposed.T)
    if weight is not None:
        weights["projection.weight"] = weight
    weights["projection.bias"] = names.take_or_zeros(f"{name}_b", 1, size)[0]


def _take_parts(
    names: Names, weights: dict[str, Array], parts: Iterable[Part], d_model: int
) -> None:
    """Take the layers, whose matrices Marian stores with inputs as rows; a missing bias is zero."""
    d_ff: int | None = None  # known in each layer after its first matrix of this size
    for ours, _, weight, bias in parts:
        if ours.endswith("norm"):
            weights[f"{ours}.weight"] = names.take(weight, 1, d_model)[0]
            weights[f"{ours}.bias"] = names.take(bias, 1, d_model)[0]
            continue
        shape = reversed(shape_of(ours, d_model, d_ff))
        matrix = np.ascontiguousarray(names.take(weight, *shape).T)
        weights[f"{ours}.weight"] = matrix
        weights[f"{ours}.bias"] = names.take_or_zeros(bias, 1, len(matrix))[0]
        d_ff = len(matrix) if ours.endswith("expand") else None


def _vocabulary(path: Path, size: int) -> Vocabulary:
    """Read a vocabulary: YAML, JSON or a SentencePiece model, whose ids then are Marian's."""
    if path.suffix == ".spm":
        processor, all_pieces = open_model(read_sentencepiece(path))
        ids = {piece: i for i, piece in enumerate(all_pieces)}
        found = Vocabulary(entries_by_id(ids, size, path), processor.unk_id(), processor.eos_id())
    else:
        ids = read_vocabulary(_text(path, 64 * MEBIBYTE), path)
        pieces = entries_by_id(ids, size, path)
        found = Vocabulary(pieces, ids.get("<unk>", -1), ids.get("</s>", -1))
    if min(found.unk, found.eos) < 0:
        raise UserError(f"{path} is not a vocabulary of Marian: it lacks <unk> or </s>")
    return found


def _text(path: Path, most_bytes: int) -> str:
    with reading(path):
        return read_bounded(path, most_bytes).decode("utf-8", "replace")


_COMPLEX = re.compile(r"^\? (.*?)\r?\n:(.*)$", re.MULTILINE)  # an entry and its id on two lines
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b"}
_ESCAPES |= {"f": "\f", "v": "\v", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}
_ESCAPED = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)


def read_vocabulary(text: str, path: Path) -> dict[str, int]:
    """Read the lines `entry: id` of a vocabulary, or a JSON object.

    A YAML library would take entries such as ~ and true for other types, and reject characters
    that Marian writes as they are.
    """
    if text.lstrip().startswith("{"):
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise damaged(path, "it is not JSON") from None
        if isinstance(content, dict):
            return content
    ids: dict[str, int] = {}
    text = _COMPLEX.sub(r"\1:\2\n", text)
    for line_number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        if not line or (line.startswith("#") and ":" not in line) or line == "---":
            continue
        key, colon, value = line.rpartition(":")
        if not colon or not re.fullmatch(r"\s*[0-9]{1,9}\s*", value) or len(ids) >= MOST_ENTRIES:
            raise UserError(f"{path}, line {line_number}: this is not an entry with its id")
        ids[_unquoted(key.strip(" "))] = int(value)
    return ids


def _unquoted(key: str) -> str:
    if len(key) >= 2 and key[0] == key[-1] == "'":
        return key[1:-1].replace("''", "'")
    if len(key) < 2 or not key[0] == key[-1] == '"':
        return key

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        if code is None:
            return _ESCAPES.get(match[4], match[4])
        return chr(int(code, 16)) if int(code, 16) <= 0x10FFFF else "\ufffd"

    return _ESCAPED.sub(character, key[1:-1])


def _add_search(model: ForeignModel, options: dict[str, Any]) -> None:
    """Add beam, length normalization and maximum length of decoder.yml."""
    beam, normalize = options.get("beam-size"), options.get("normalize", 0)
    factor = options.get("max-length-factor", 3)
    model.decoding = {"max_len_factor": 3.0, "max_len_extra": 3, "length_penalty": 0.0}
    if isinstance(factor, int | float) and 0 < factor <= 100:
        model.decoding["max_len_factor"] = float(factor)
    if isinstance(beam, int) and 1 <= beam <= 1_000:
        model.decoding["beam_size"] = beam
    if isinstance(normalize, int | float) and 0 <= normalize <= 10:
        model.decoding["length_penalty"] = float(normalize)
    if options.get("word-penalty", 0):
        model.notes.append("word-penalty of decoder.yml has no equivalent")
    if isinstance(options.get("models"), list) and len(options["models"]) > 1:
        model.notes.append("only the first model of the ensemble in decoder.yml was read")
    longest = options.get("max-length")
    model.max_length = longest if isinstance(longest, int) and 50 <= longest <= 10_000 else 500
