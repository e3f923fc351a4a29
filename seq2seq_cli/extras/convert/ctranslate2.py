"""Reads CTranslate2 models: model.bin, config.json, vocabularies and SentencePiece models.

Sources: `python/ctranslate2/specs/model_spec.py`, `src/models/model.cc` and
`src/layers/transformer.cc` of OpenNMT/CTranslate2. V vocabulary, D d_model, F d_ff.
"""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    fold_activation,
    incomplete,
    known_activation,
    number,
    one_d_ff,
    own_tokenizers,
    own_vocabularies,
    positions_of,
    read_object,
    read_sentencepiece,
    refuse,
    tags_of,
)
from seq2seq_cli.extras.convert.missing_rows import IMPOSSIBLE
from seq2seq_cli.extras.convert.spm_vocab_tokenizer import SPECIAL_PIECES
from seq2seq_cli.extras.export.marian import marian_base
from seq2seq_cli.files import MEBIBYTE, read_bounded, read_json, reading
from seq2seq_cli.tokenizers.tokenizer import Tokenizers
from seq2seq_cli.weight_file import StoredTensor, as_float32

_SIDES = ("encoder", "decoder")
_VERSIONS = range(3, 7)
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_OLD_TYPES = {4: "float32", 2: "int16", 1: "int8"}  # by the size of an item, before version 4
_MOST_VARIABLES = 1 << 20
# By CTranslate2's numbers; the third is tanh's approximation of gelu.
_ACTIVATIONS = {0: ("relu", 1.0), 2: ("silu", 1.0), 3: ("gelu", 1.0), 4: ("silu", 1.702)}
# Spec names of models for translation, with the number of heads if the variables do not say it.
_SPECS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
# Features that a model may lack: variables that are 0 then.
_FLAGS = (
    *("multi_query_attention", "alibi", "alibi_use_positive_positions", "scale_alibi"),
    *("scale_outputs", "rms_norm"),
)
# Variables that do not affect translations: of any part, and of the whole model.
_IGNORED = (
    *("alignment_heads", "alignment_layer", "embeddings_merge", "num_heads_kv"),
    "layer_norm_use_residual",
)
_IGNORED_OF_MODEL = ("spec_revision", "with_relative_position")
_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_SENTENCEPIECE = (
    ("source.spm", "target.spm"),
    ("source.model", "target.model"),
    ("src.model", "tgt.model"),
    ("spm.model", "spm.model"),
    ("sentencepiece.model", "sentencepiece.model"),
    ("sentencepiece.bpe.model", "sentencepiece.bpe.model"),
)


# Their names of attentions, ours, and our linear layers that are fused in each of theirs.
_ATTENTION = (
    ("self_attention", "self_attention", [["query", "key", "value"], ["output"]]),
    ("attention", "cross_attention", [["query"], ["key", "value"], ["output"]]),
)


class ModelFile(NamedTuple):
    """The content of model.bin."""

    spec: str
    variables: dict[str, NDArray[Any]]


def detect(folder: Path) -> bool:
    return (folder / "model.bin").is_file()


def read(folder: Path, sentencepiece: tuple[bytes, bytes] | None = None) -> ForeignModel:
    """Read a folder; UserError if it is damaged, or if a run cannot represent the model.

    `sentencepiece`: the models of source and target; None: they are in the folder.
    """
    path, is_package = folder / "model.bin", sentencepiece is not None
    file = read_model_file(path)
    if file.spec not in _SPECS:
        spec = f"the type {short(file.spec)}"
        raise refuse(path, spec, "only Transformers for translation are read")
    reader = _Reader(file, path, read_object(folder / "config.json", is_optional=True))
    config, is_zero = reader.config, reader.starts_from_zero
    model, positions = reader.read()
    tgt_weight = reader.weights["tgt_embedding.weight"]
    sizes = len(reader.weights.get("src_embedding.weight", tgt_weight)), len(tgt_weight)
    pieces = pieces_in(folder, sizes)
    special = {name: str(config.get(name) or default) for name, default in _TOKENS.items()}
    tokenizers = None if is_package else _own_tokenizers(folder)
    if tokenizers is not None and pieces == tuple(tuple(side.pieces()) for side in tokenizers):
        src, tgt = own_vocabularies(tokenizers, sizes, path)
    else:
        tokenizers, sentencepiece = None, sentencepiece or _sentencepiece(folder)
        start = None if is_zero else _start_token(config, special, path)
        tgt = _vocabulary(pieces[1], special, start, path)
        src = tgt if pieces[0] is pieces[1] else _vocabulary(pieces[0], special, None, path)
    found = ForeignModel(
        weights=reader.weights,
        model=model,
        src=src,
        tgt=tgt,
        positions=positions,
        sentencepiece=sentencepiece,
        tokenizers=tokenizers,
        decoding={"beam_size": 2, "max_len_factor": 0.0, "max_len_extra": 255},  # its defaults
        notes=reader.notes,
    )
    _add_source_tokens(found, config, path)
    # Marian's models see EOS, which CTranslate2's converter from transformers leaves to the caller.
    # Argos Translate gives none, and neither do models that this program wrote, whose BOS is EOS.
    is_ours = config.get("bos_token") == special["eos_token"]
    if is_zero and not (found.model["source_eos"] or is_ours or is_package):
        found.model["source_eos"] = found.is_eos_given = True
        found.notes.append("CTranslate2 leaves EOS after a source to its caller, but a run adds it")
    return found


def _own_tokenizers(folder: Path) -> Tokenizers | None:
    """Return the tokenizers of an exported run; None for other models of the same file names."""
    try:
        return own_tokenizers(folder)
    except UserError:
        return None


def _start_token(config: dict[str, Any], special: dict[str, str], path: Path) -> str:
    """Return what starts the decoder; UserError if the caller gives it, null, or languages."""
    start = config.get("decoder_start_token", special["bos_token"])
    if not isinstance(start, str) or not start:
        raise refuse(path, "a start token that the caller gives", "a run has one of its own")
    if start == special["eos_token"] and config.get("add_source_eos") is not True:
        what = "EOS as the start token and none after sources, as M2M100 and NLLB have"
        raise refuse(path, what, "a run cannot put language codes around a text")
    return start


def _add_source_tokens(model: ForeignModel, config: dict[str, Any], path: Path) -> None:
    """Add what CTranslate2 puts around every source: a tag before it, EOS after it."""
    tags = [*tags_of(model.src)]
    if config.get("add_source_bos") is True:
        tag = config.get("bos_token")
        if not isinstance(tag, str) or tag not in model.src.pieces or tag in SPECIAL_PIECES:
            raise refuse(path, "a start token before every source", "a run has only tags there")
        model.decoding["tag"] = tag
        tags.append(tag)
    model.tags = tuple(dict.fromkeys(tags))
    model.model["source_eos"] = config.get("add_source_eos") is True


class _Bytes:
    """A file's bytes, read from the start."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data, self.path, self.position = memoryview(data), path, 0

    def take(self, size: int) -> memoryview:
        part = self.data[self.position : self.position + size]
        if len(part) != size:
            raise damaged(self.path, "it is cut off")
        self.position += size
        return part

    def number(self, code: str) -> int:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return int(value)

    def text(self) -> str:
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode("utf-8", "replace")


def read_model_file(path: Path) -> ModelFile:
    """Read all variables; aliases are the same arrays. UserError if the file is damaged."""
    with reading(path):
        file = _Bytes(read_bounded(path, path.stat().st_size), path)
    version = file.number("I")
    if version not in _VERSIONS:
        raise UserError(
            f"{path}: this is not CTranslate2's format of version {_VERSIONS[0]} to {_VERSIONS[-1]}"
        )
    spec, _ = file.text(), file.number("I")
    variables: dict[str, NDArray[Any]] = {}
    for _ in range(_count(file)):
        name = file.text()
        variables[name] = _variable(file, version)
    for _ in range(_count(file)):
        alias, name = file.text(), file.text()
        if name not in variables:
            raise damaged(path, f"{short(alias)} stands for no variable")
        variables[alias] = variables[name]
        if f"{name}_scale" in variables:  # CTranslate2 implies it
            variables.setdefault(f"{alias}_scale", variables[f"{name}_scale"])
    return ModelFile(spec, variables)


def _count(file: _Bytes) -> int:
    count = file.number("I")
    if count > _MOST_VARIABLES:
        raise damaged(file.path, f"it says that it has {count:,} variables")
    return count


def _variable(file: _Bytes, version: int) -> NDArray[Any]:
    shape = [file.number("I") for _ in range(file.number("B"))]
    code = file.number("B")
    dtype = (_TYPES[code] if code < len(_TYPES) else None) if version >= 4 else _OLD_TYPES.get(code)
    if dtype is None:
        raise UserError(f"{file.path} has numbers of an unknown type ({code})")
    count = file.number("I")
    item = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    num_bytes = count if version >= 4 else count * code
    if math.prod(shape) * item != num_bytes:
        raise damaged(file.path, "a variable has another size than its shape")
    data = file.take(num_bytes)
    if dtype == "bfloat16":
        return as_float32(StoredTensor(dtype, tuple(shape), data))
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape)


class _Reader:
    """Turns the variables of a model into our `weights`."""

    def __init__(self, file: ModelFile, path: Path, config: dict[str, Any]) -> None:
        self.names, self.path, self.heads = Names(file.variables, path), path, _SPECS[file.spec]
        self.config = config or self._old_config()
        self.weights: dict[str, Array] = {}
        self.notes: list[str] = []
        kinds = {array.dtype.name for array in file.variables.values() if array.ndim >= 2}
        if kind := " and ".join(sorted(kinds & {"int8", "int16"})):
            self.notes.append(f"weights in {kind} were dequantized, so their rounding stays")
        elif "float16" in kinds:
            self.notes.append("weights in half precision were read as they are")
        self.starts_from_zero = bool(self.scalar("decoder/start_from_zero_embedding", 0))

    def _old_config(self) -> dict[str, Any]:
        """Take what versions before 6 store as variables, version 5 also the special tokens."""
        tokens = dict(_TOKENS)
        for name in tokens.keys() & self.names.tensors.keys():
            tokens[name] = self.names.tensors.pop(name).tobytes().decode("utf-8", "replace")
        start: str | None = tokens[
            "bos_token" if self.scalar("with_target_bos", 1) else "eos_token"
        ]
        if self.scalar("user_decoder_start_tokens", 0):
            start = None
        return {
            **tokens,
            "add_source_bos": bool(self.scalar("with_source_bos", 0)),
            "add_source_eos": bool(self.scalar("with_source_eos", 0)),
            "decoder_start_token": start,
        }

    def scalar(self, name: str, default: float) -> float:
        """Take a number; some are stored for each side, older ones for both."""
        value = self.names.tensors.pop(name, None)
        if value is None:
            return default
        if value.size != 1 or not np.isfinite(value).all():
            raise damaged(self.path, f"{name} is not a number")
        return float(value.item())

    def matrix(self, name: str, *shape: int | None) -> Array:
        """Take a matrix, dequantized: int8 and int16 are multiples of 1 / scale (of each row)."""
        scale = self.names.tensors.pop(f"{name}_scale", None)
        if f"{name}_zero" in self.names.tensors:
            raise refuse(self.path, "weights in int4 (AWQ)", "they are not read")
        weight = self.names.take(name, *shape)
        if scale is None:
            return weight
        scales = np.asarray(scale, np.float32).reshape(-1, 1)
        if len(scales) not in (1, len(weight)) or not (np.isfinite(scales) & (scales != 0)).all():
            raise damaged(self.path, f"{name}_scale does not fit {name}")
        return weight / scales

    def read(self) -> tuple[dict[str, Any], Positions]:
        """Read all weights; return the options of the model, and its positions."""
        options, factor = self._options()
        options |= self._embeddings()
        weights = self.weights
        d_model = options["d_model"] = weights["tgt_embedding.weight"].shape[1]
        positions = self._positions(d_model, options)
        for side in _SIDES:
            for layer in range(options["layers"][side]):
                self._layer(f"{side}/layer_{layer}", f"{side}.{layer}", d_model, options["heads"])
            if options["norm"] == "pre":
                self._norm(f"{side}/layer_norm", f"{side}_norm", d_model)
        options["d_ff"] = one_d_ff(weights, self.path)
        fold_activation(weights, factor)
        self._refuse_leftovers()
        attention = [n for n in weights if "_attention." in n and n.endswith(".weight")]
        biases = {name: f"{name.removesuffix('weight')}bias" for name in attention}
        options["attention_bias"] = not weights.keys().isdisjoint(biases.values())
        if options["attention_bias"]:
            for name, bias in biases.items():
                weights.setdefault(bias, np.zeros(len(weights[name]), np.float32))
        return options, positions

    def _options(self) -> tuple[dict[str, Any], float]:
        """Return the options that do not depend on the weights, and the factor of activations."""
        layers = {}
        for side in _SIDES:
            parts = {n.split("/")[1] for n in self.names.tensors if n.startswith(f"{side}/layer_")}
            layers[side] = sum(part.removeprefix("layer_").isdigit() for part in parts)
            if not 1 <= layers[side] <= MOST_LAYERS:
                raise incomplete(self.path, f"it lacks the layers of the {side}")
        found = {}
        for name, given in (("num_heads", self.heads), ("pre_norm", 1), ("activation", 0)):
            default = self.scalar(name, given)
            sides = {self.scalar(f"{side}/{name}", default) for side in _SIDES}
            if len(sides) > 1:
                raise refuse(self.path, f"different {name} in encoder and decoder", "a run has one")
            found[name] = int(sides.pop())
        activation, factor = known_activation(found["activation"], _ACTIVATIONS, self.path)
        epsilon = self.config.get("layer_norm_epsilon")
        options = {
            "heads": number(found["num_heads"], "num_heads", self.path),
            "layers": layers,
            "activation": activation,
            "norm": "pre" if found["pre_norm"] else "post",
            "norm_epsilon": epsilon if isinstance(epsilon, float) and 0 < epsilon < 1 else 1e-5,
        }
        return options, factor

    def _embeddings(self) -> dict[str, bool]:
        """Take embeddings and projection, and return how they are tied and scaled."""
        names = self.names.tensors
        if "encoder/embeddings_1/weight" in names:
            raise refuse(self.path, "source features", "their embeddings have no option here")
        is_numbered = "encoder/embeddings_0/weight" in names
        src_name = "encoder/embeddings_0" if is_numbered else "encoder/embeddings"
        tgt = self.matrix("decoder/embeddings/weight", None, None)
        size, d_model = tgt.shape
        src = self.matrix(f"{src_name}/weight", None, d_model)
        output = self.matrix("decoder/projection/weight", size, d_model)
        bias = self.names.take_or_zeros("decoder/projection/bias", size)
        src_scale = self._scale("encoder", src_name, d_model)
        tgt_scale = self._scale("decoder", "decoder/embeddings", d_model)
        is_scaled = src_scale == tgt_scale == math.sqrt(d_model)
        is_tied = np.array_equal(tgt, output)
        if not is_scaled and (src_scale, tgt_scale) != (1.0, 1.0):
            src, tgt = src * np.float32(src_scale), tgt * np.float32(tgt_scale)
            is_tied = False
        self.weights["tgt_embedding.weight"] = tgt
        if not np.array_equal(src, tgt):
            self.weights["src_embedding.weight"] = src
        if not is_tied:
            self.weights["projection.weight"] = output
        # Our exports have -10,000, which label smoothing would make a large part of the loss.
        self.weights["projection.bias"] = np.maximum(bias, IMPOSSIBLE)
        return {"embedding_scale": is_scaled, "tie_embeddings": is_tied}

    def _scale(self, side: str, embeddings: str, d_model: int) -> float:
        """Take the factor of embeddings: a flag for sqrt(D), by default true, or the number."""
        name = f"{side}/scale_embeddings"
        older = self.names.tensors.pop(f"{embeddings}/multiply_by_sqrt_depth", None)
        if older is not None:
            self.names.tensors.setdefault(name, older)
        is_flag = name not in self.names.tensors or self.names.tensors[name].dtype.kind in "iu"
        factor, root = self.scalar(name, 1.0), math.sqrt(d_model)
        if is_flag:
            return root if factor else 1.0
        return root if math.isclose(factor, root, rel_tol=1e-6) else factor

    def _positions(self, d_model: int, options: dict[str, Any]) -> Positions:
        """Take the tables of positions; without any, CTranslate2 computes OpenNMT-tf's."""
        names = (f"{side}/position_encodings/encodings" for side in _SIDES)
        tables = [self.names.take_optional(name, None, d_model) for name in names]
        if (base := self._rotary_base(d_model // options["heads"])) is not None:
            options["positions"] = "rotary"
            return Positions(has_halves=False, base=base, offset=0)
        computed = Positions(has_halves=True, base=marian_base(d_model), offset=1)
        return positions_of(tables, computed, self.path)

    def _rotary_base(self, head_size: int) -> float | None:
        """Take the options of rotary positions, which must be as this program exports them."""
        bases, is_ours = set(), True
        for name in [n for n in self.names.tensors if n.endswith("/rotary_dim")]:
            prefix = name.removesuffix("/rotary_dim")
            is_ours &= "/self_attention" in prefix and self.scalar(name, 0) in (0, head_size)
            is_ours &= bool(self.scalar(f"{prefix}/rotary_interleave", 1))
            bases.add(self.scalar(f"{prefix}/rotary_base", 10_000.0))
        if not is_ours or len(bases) > 1:
            raise refuse(self.path, "rotary positions of another layout", "runs rotate neighbors")
        return bases.pop() if bases else None

    def _layer(self, theirs: str, ours: str, d_model: int, heads: int) -> None:
        for their_part, part, linears in _ATTENTION:
            if part == "cross_attention" and theirs.startswith("encoder"):
                continue
            prefix = f"{theirs}/{their_part}"
            for index, fused in enumerate(linears):
                names = [f"{ours}.{part}.{n}" for n in fused]
                self._linear(f"{prefix}/linear_{index}", names, d_model, d_model)
            self._norm(f"{prefix}/layer_norm", f"{ours}.{part}_residual.norm", d_model)
            if scale := self.scalar(f"{prefix}/queries_scale", 0):  # in place of 1 / sqrt(K)
                factor = np.float32(scale * math.sqrt(d_model // heads))
                for name in (f"{ours}.{part}.query.weight", f"{ours}.{part}.query.bias"):
                    if name in self.weights:
                        self.weights[name] = self.weights[name] * factor
        expand, contract = f"{ours}.feed_forward.expand", f"{ours}.feed_forward.contract"
        self._linear(f"{theirs}/ffn/linear_0", [expand], None, d_model)
        d_ff = len(self.weights[f"{expand}.weight"])
        self._linear(f"{theirs}/ffn/linear_1", [contract], d_model, d_ff)
        for name, rows in ((expand, d_ff), (contract, d_model)):
            self.weights.setdefault(f"{name}.bias", np.zeros(rows, np.float32))
        self._norm(f"{theirs}/ffn/layer_norm", f"{ours}.feed_forward_residual.norm", d_model)

    def _linear(self, theirs: str, ours: list[str], rows: int | None, columns: int) -> None:
        """Take a layer, split into those that were fused; a missing bias stays missing."""
        all_rows = None if rows is None else rows * len(ours)
        weight = self.matrix(f"{theirs}/weight", all_rows, columns)
        bias = self.names.take_optional(f"{theirs}/bias", len(weight))
        for index, name in enumerate(ours):
            part = slice(index * len(weight) // len(ours), (index + 1) * len(weight) // len(ours))
            self.weights[f"{name}.weight"] = weight[part]
            if bias is not None:
                self.weights[f"{name}.bias"] = bias[part]

    def _norm(self, theirs: str, ours: str, size: int) -> None:
        self.weights[f"{ours}.weight"] = self.names.take(f"{theirs}/gamma", size)
        if f"{theirs}/beta" not in self.names.tensors:
            raise refuse(self.path, f"an RMSNorm ({theirs})", "runs have LayerNorm")
        self.weights[f"{ours}.bias"] = self.names.take(f"{theirs}/beta", size)

    def _refuse_leftovers(self) -> None:
        """Refuse variables that no part of a run's model has, unless they have no effect."""
        reasons = {
            "relative": "relative positions",
            "layernorm_embedding": "an embedding norm",
            "noact": "gated feed-forward layers",
        }
        for name, value in self.names.tensors.items():
            last = name.rpartition("/")[2]
            is_off = value.ndim == 0 and not value and last in _FLAGS
            if not (is_off or last in _IGNORED or name in _IGNORED_OF_MODEL):
                known = (text for part, text in reasons.items() if part in name)
                what = next(known, f"the weights {short(name)}")
                raise refuse(self.path, what, "no layer here has them")


def pieces_in(folder: Path, sizes: tuple[int, int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the vocabularies by id; the same object if the folder has one for both sides."""
    found = {}
    for side in ("shared", "source", "target"):
        for suffix in ("json", "txt"):
            path = folder / f"{side}_vocabulary.{suffix}"
            if path.is_file():
                found[side] = (path, _read_pieces(path))
                break
    src, tgt = (found.get(side, found.get("shared")) for side in ("source", "target"))
    if src is None or tgt is None:
        raise UserError(f"{folder} has no vocabulary: shared_vocabulary.json, or one for each side")
    for (path, pieces), size in ((src, sizes[0]), (tgt, sizes[1])):
        if len(pieces) != size:
            raise UserError(f"{path} has {len(pieces):,} entries, but the weights {size:,} rows")
    return src[1], tgt[1]


def _read_pieces(path: Path) -> tuple[str, ...]:
    if path.suffix == ".json":
        pieces = read_json(path)
    else:
        with reading(path):
            text = read_bounded(path, 64 * MEBIBYTE).decode("utf-8", "replace")
        pieces = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if not isinstance(pieces, list) or len(pieces) > MOST_ENTRIES:
        raise damaged(path, "it is not a list of entries")
    return tuple(str(piece) for piece in pieces)


def _vocabulary(
    pieces: tuple[str, ...], special: dict[str, str], start: str | None, path: Path
) -> Vocabulary:
    ids: dict[str, int] = {}
    for token, piece in enumerate(pieces):
        ids.setdefault(piece, token)
    unk, eos = special["unk_token"], special["eos_token"]
    needed = {"unk_token": unk, "eos_token": eos}
    if start is not None:
        needed["start token"] = start
    for name, entry in needed.items():
        if entry not in ids:
            raise UserError(f"{path}: the vocabulary lacks the {name} {short(entry)}")
    pad = ids.get("<pad>", ids.get("<blank>"))
    first = None if start is None else ids[start]
    return Vocabulary(pieces, ids[unk], ids[eos], first, pad)


def _sentencepiece(folder: Path) -> tuple[bytes, bytes]:
    lacking = {
        names: [name for name in names if not (folder / name).is_file()] for names in _SENTENCEPIECE
    }
    (src, tgt), missing = min(lacking.items(), key=lambda item: len(item[1]))
    if not missing:
        return read_sentencepiece(folder / src), read_sentencepiece(folder / tgt)
    if len(missing) == 1:
        raise incomplete(folder, f"it has no {missing[0]}")
    found = sorted(folder.glob("*.spm")) or sorted(folder.glob("*.model"))
    if len(found) == 1:
        return (model := read_sentencepiece(found[0])), model
    listed = ", ".join(" and ".join(dict.fromkeys(names)) for names in _SENTENCEPIECE)
    raise UserError(f"{folder} has no SentencePiece model: put one next to model.bin ({listed})")
