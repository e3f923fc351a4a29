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
    fit_positions,
    fold_activation,
    incomplete,
    number,
    one_for_both,
    own_tokenizers,
    own_vocabulary,
    read_object,
    read_sentencepiece,
    refuse,
    tags_of,
)
from seq2seq_cli.extras.convert.spm_vocab_tokenizer import SPECIAL_PIECES
from seq2seq_cli.extras.export.marian import marian_base
from seq2seq_cli.files import MEBIBYTE, read_bounded, read_json, reading
from seq2seq_cli.weight_file import StoredTensor, as_float32

_VERSIONS = range(3, 7)
_TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_OLD_TYPES = {4: "float32", 2: "int16", 1: "int8"}  # by the size of an item, before version 4
_MOST_VARIABLES = 1 << 20
# By CTranslate2's numbers; the third is tanh's approximation of gelu.
_ACTIVATIONS = {0: ("relu", 1.0), 2: ("silu", 1.0), 3: ("gelu", 1.0), 4: ("silu", 1.702)}
# Spec names of models for translation; older ones say the number of heads.
_SPECS = {"TransformerSpec": None, "TransformerBase": 8, "TransformerBig": 16}
# Features that a model may lack: variables that are 0 then.
_FLAGS = (
    "multi_query_attention",
    "alibi",
    "alibi_use_positive_positions",
    "scale_alibi",
    "scale_outputs",
    "rms_norm",
)
# Variables that do not affect translations: of any part, and of the whole model.
_IGNORED = (
    *("alignment_heads", "alignment_layer", "embeddings_merge", "num_heads_kv"),
    "layer_norm_use_residual",
)
_IGNORED_OF_MODEL = ("spec_revision", "with_relative_position")
_SENTENCEPIECE = (
    ("source.spm", "target.spm"),
    ("source.model", "target.model"),
    ("spm.model", "spm.model"),
    ("sentencepiece.model", "sentencepiece.model"),
    ("sentencepiece.bpe.model", "sentencepiece.bpe.model"),
)


# The linear layers of an attention by their number, and ours that are fused in each.
_Linears = tuple[tuple[int, tuple[str, ...]], ...]
_SELF: _Linears = ((0, ("query", "key", "value")), (1, ("output",)))
_CROSS: _Linears = ((0, ("query",)), (1, ("key", "value")), (2, ("output",)))


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
    path = folder / "model.bin"
    file = read_model_file(path)
    if file.spec not in _SPECS:
        raise refuse(
            path, f"the type {short(file.spec)}", "only Transformers for translation are read"
        )
    given = folder / "config.json"
    reader = _Reader(file, path, read_object(given) if given.is_file() else None)
    config = reader.config
    weights, model, positions = reader.read()
    tgt_weight = weights["tgt_embedding.weight"]
    sizes = len(weights.get("src_embedding.weight", tgt_weight)), len(tgt_weight)
    src_pieces, tgt_pieces = pieces_in(folder, sizes)
    is_zero = reader.starts_from_zero
    special = {name: str(config.get(name) or default) for name, default in _TOKENS.items()}
    start = None if is_zero else _start_token(config)
    tgt = _vocabulary(tgt_pieces, special, start, path)
    src = tgt if src_pieces is tgt_pieces else _vocabulary(src_pieces, special, None, path)
    found = ForeignModel(
        weights=weights,
        model={**model, "position_base": positions.base, "position_offset": positions.offset},
        src=src,
        tgt=tgt,
        dialect="CTranslate2",
        has_halves=positions.has_halves,
        decoding={"beam_size": 2, "max_len_factor": 0.0, "max_len_extra": 255},  # its defaults
        notes=reader.notes,
    )
    tokenizers = own_tokenizers(folder) if sentencepiece is None else None
    ours = None if tokenizers is None else tuple(tuple(side.pieces()) for side in tokenizers)
    if tokenizers is not None and ours == (src.pieces, tgt.pieces):
        found.tokenizers = tokenizers
        found.src = own_vocabulary(tokenizers.src, sizes[0], path)
        found.tgt = (
            found.src if tokenizers.is_shared else own_vocabulary(tokenizers.tgt, sizes[1], path)
        )
    else:
        found.sentencepiece = sentencepiece or _sentencepiece(folder)
    _add_source_tokens(found, config, path)
    # Marian's models see EOS, which CTranslate2's converter from transformers leaves to the caller.
    # Argos Translate gives none, and neither do models that this program wrote, whose BOS is EOS.
    is_ours = config.get("bos_token") == special["eos_token"]
    if is_zero and not (found.model["source_eos"] or is_ours or sentencepiece):
        found.model["source_eos"] = found.is_eos_given = True
        found.notes.append("CTranslate2 leaves EOS after a source to its caller, but a run adds it")
    return found


_TOKENS = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def _start_token(config: dict[str, Any]) -> str:
    """Return the decoder's start token; null means that the caller gives it."""
    start = config.get("decoder_start_token", config.get("bos_token", "<s>"))
    return start if isinstance(start, str) else str(config.get("bos_token") or "<s>")


def _add_source_tokens(model: ForeignModel, config: dict[str, Any], path: Path) -> None:
    """Add what CTranslate2 puts around every source: a tag before it, EOS after it."""
    if config.get("add_source_bos") is True:
        tag = config.get("bos_token")
        if not isinstance(tag, str) or tag not in model.src.pieces or tag in SPECIAL_PIECES:
            raise refuse(path, "a start token before every source", "a run has only tags there")
        model.decoding["tag"] = tag
        model.tags = tuple(dict.fromkeys([*model.tags, tag]))
    model.tags = tuple(dict.fromkeys([*tags_of(model.src), *model.tags]))
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
    for _ in range(_bounded(file, _MOST_VARIABLES)):
        name = file.text()
        variables[name] = _variable(file, version)
    for _ in range(_bounded(file, _MOST_VARIABLES)):
        alias, name = file.text(), file.text()
        if name not in variables:
            raise damaged(path, f"{short(alias)} stands for no variable")
        variables[alias] = variables[name]
        if f"{name}_scale" in variables:  # CTranslate2 implies it
            variables.setdefault(f"{alias}_scale", variables[f"{name}_scale"])
    return ModelFile(spec, variables)


def _bounded(file: _Bytes, most: int) -> int:
    count = file.number("I")
    if count > most:
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
    """Turns the variables of a model into our weights."""

    def __init__(self, file: ModelFile, path: Path, config: dict[str, Any] | None) -> None:
        self.names = Names(file.variables, path)
        self.path, self.spec = path, file.spec
        self.config = self._old_config() if config is None else config
        self.notes: list[str] = []
        kinds = {array.dtype.name for array in file.variables.values() if array.ndim >= 2}
        if kinds & {"int8", "int16"}:
            kind = " and ".join(sorted(kinds & {"int8", "int16"}))
            self.notes.append(f"weights in {kind} were dequantized, so their rounding stays")
        elif "float16" in kinds:
            self.notes.append("weights in half precision were read as they are")
        self.starts_from_zero = bool(self.scalar("decoder/start_from_zero_embedding", 0))

    def _old_config(self) -> dict[str, Any]:
        """Take what versions before 6 store as variables."""
        has_start = self.scalar("with_target_bos", 1)
        return {
            "add_source_bos": bool(self.scalar("with_source_bos", 0)),
            "add_source_eos": bool(self.scalar("with_source_eos", 0)),
            "decoder_start_token": "<s>" if has_start else "</s>",
        }

    def scalar(self, name: str, default: float) -> float:
        """Take a number; some are stored for each side, older ones for both."""
        value = self.names.tensors.pop(name, None)
        if value is None:
            return default
        if value.size != 1 or not np.isfinite(value).all():
            raise damaged(self.path, f"{name} is not a number")
        return float(value.reshape(-1)[0])

    def matrix(self, name: str, *shape: int | None) -> Array:
        """Take a matrix, dequantized: int8 and int16 are multiples of 1 / scale (of each row)."""
        scale = self.names.tensors.pop(f"{name}_scale", None)
        if f"{name}_zero" in self.names.tensors:
            raise refuse(self.path, "weights in int4 (AWQ)", "they are not read")
        weight = self.names.take(name, *shape)
        if scale is None:
            return weight
        scales = np.asarray(scale, np.float32).reshape(-1)
        if scales.size not in (1, len(weight)) or not (np.isfinite(scales) & (scales != 0)).all():
            raise damaged(self.path, f"{name}_scale does not fit {name}")
        return weight / scales[:, None] if scales.size > 1 else weight / scales[0]

    def read(self) -> tuple[dict[str, Array], dict[str, Any], Positions]:
        """Return the weights, the options of the model, and its positions."""
        options = self._shape()
        weights = self._embeddings(options)
        d_model, heads = options["d_model"], options["heads"]
        positions = self._positions(options, d_model)
        for side in ("encoder", "decoder"):
            for layer in range(options["layers"][side]):
                self._layer(weights, side, layer, d_model, heads)
            if options["norm"] == "pre":
                self._norm(weights, f"{side}/layer_norm", f"{side}_norm", d_model)
        inner = {len(w) for n, w in weights.items() if n.endswith(".feed_forward.expand.weight")}
        if len(inner) != 1:
            raise refuse(self.path, "feed-forward networks of different sizes", "a run has one")
        options["d_ff"] = inner.pop()
        fold_activation(weights, options.pop("factor"))
        self._refuse_leftovers()
        has_biases = any(n.endswith("attention.query.bias") for n in weights)
        options["attention_bias"] = has_biases
        if has_biases:
            for name in [n for n in weights if "_attention." in n and n.endswith(".weight")]:
                bias = name.removesuffix("weight") + "bias"
                weights.setdefault(bias, np.zeros(len(weights[name]), np.float32))
        return weights, options, positions

    def _shape(self) -> dict[str, Any]:
        """Return the options that do not depend on the weights."""
        names = self.names.tensors
        layers = {}
        for side in ("encoder", "decoder"):
            numbers = {n.split("/")[1] for n in names if n.startswith(f"{side}/layer_")}
            count = sum(1 for n in numbers if n.removeprefix("layer_").isdigit())
            if not 1 <= count <= MOST_LAYERS:
                raise incomplete(self.path, f"it lacks the layers of the {side}")
            layers[side] = count
        found, heads = {}, _SPECS[self.spec] or 8
        for name, given in (("num_heads", heads), ("pre_norm", 1), ("activation", 0)):
            default = self.scalar(name, given)
            sides = {self.scalar(f"{side}/{name}", default) for side in ("encoder", "decoder")}
            if len(sides) > 1:
                raise refuse(self.path, f"different {name} in encoder and decoder", "a run has one")
            found[name] = int(sides.pop())
        if found["activation"] not in _ACTIVATIONS:
            known = "relu, gelu and swish"
            raise refuse(self.path, f"the activation {found['activation']}", f"runs have {known}")
        activation, factor = _ACTIVATIONS[found["activation"]]
        epsilon = self.config.get("layer_norm_epsilon")
        return {
            "heads": number(found["num_heads"], "num_heads", self.path),
            "layers": layers,
            "activation": activation,
            "factor": factor,
            "norm": "pre" if found["pre_norm"] else "post",
            "norm_epsilon": epsilon if isinstance(epsilon, float) and 0 < epsilon < 1 else 1e-5,
        }

    def _embeddings(self, options: dict[str, Any]) -> dict[str, Array]:
        """Take embeddings and projection, and find out what is tied and scaled."""
        from seq2seq_cli.extras.convert.missing_rows import IMPOSSIBLE

        names = self.names.tensors
        is_numbered = "encoder/embeddings_0/weight" in names
        src_name = "encoder/embeddings_0" if is_numbered else "encoder/embeddings"
        if "encoder/embeddings_1/weight" in names:
            raise refuse(self.path, "source features", "their embeddings have no option here")
        is_one = names.get(f"{src_name}/weight") is names.get("decoder/embeddings/weight")
        tgt = self.matrix("decoder/embeddings/weight", None, None)
        d_model = options["d_model"] = tgt.shape[1]
        src = self.matrix(f"{src_name}/weight", None, d_model)
        output = self.matrix("decoder/projection/weight", len(tgt), d_model)
        bias = self.names.take_optional("decoder/projection/bias", len(tgt))
        scales = [self._scale("encoder", src_name, d_model)]
        scales.append(self._scale("decoder", "decoder/embeddings", d_model))
        is_tied = np.array_equal(tgt, output)
        is_shared = is_one or np.array_equal(src, tgt)
        root = math.sqrt(d_model)
        options["embedding_scale"] = scales == [root, root]
        if not options["embedding_scale"] and scales != [1.0, 1.0]:
            src, tgt = src * np.float32(scales[0]), tgt * np.float32(scales[1])
            is_tied, is_shared = False, is_shared and scales[0] == scales[1]
        weights = {"tgt_embedding.weight": tgt}
        if not is_shared:
            weights["src_embedding.weight"] = src
        if not is_tied:
            weights["projection.weight"] = output
        # Our exports have -10,000, which label smoothing would make a large part of the loss.
        bias = np.zeros(len(tgt), np.float32) if bias is None else np.maximum(bias, IMPOSSIBLE)
        weights["projection.bias"] = bias
        options["tie_embeddings"] = is_tied
        return weights

    def _scale(self, side: str, embeddings: str, d_model: int) -> float:
        """Take the factor of embeddings: a flag for sqrt(D), by default true, or the number."""
        value = self.names.tensors.pop(f"{side}/scale_embeddings", None)
        older = self.names.tensors.pop(f"{embeddings}/multiply_by_sqrt_depth", None)
        value = older if value is None else value
        if value is None:
            return math.sqrt(d_model)
        factor = float(value.reshape(-1)[0]) if value.size == 1 else math.nan
        if value.dtype.kind in "iu":
            return math.sqrt(d_model) if factor else 1.0
        if not math.isfinite(factor):
            raise damaged(self.path, f"{side}/scale_embeddings is not a number")
        root = math.sqrt(d_model)
        return root if math.isclose(factor, root, rel_tol=1e-6) else factor

    def _positions(self, options: dict[str, Any], d_model: int) -> Positions:
        """Take the tables of positions; without any, CTranslate2 computes OpenNMT-tf's."""
        found: set[Positions] = set()
        tables = [
            self.names.tensors.pop(f"{side}/position_encodings/encodings", None)
            for side in ("encoder", "decoder")
        ]
        if (rotary := self._rotary(d_model // options["heads"])) is not None:
            options["positions"] = "rotary"
            return Positions(has_halves=False, base=rotary, offset=0)
        for table in tables:
            if table is None:
                found.add(Positions(has_halves=True, base=marian_base(d_model), offset=1))
            elif table.ndim != 2 or table.shape[1] != d_model:
                raise damaged(self.path, "its table of positions does not fit")
            else:
                found.add(fit_positions(table, self.path))
        return one_for_both(found, self.path)

    def _rotary(self, head_size: int) -> float | None:
        """Take the options of rotary positions, which must be as this program exports them."""
        sizes = [n for n in self.names.tensors if n.endswith("/rotary_dim")]
        if not sizes:
            return None
        bases, is_ours = set(), True
        for name in sizes:
            prefix = name.removesuffix("/rotary_dim")
            is_ours &= "/self_attention" in prefix and self.scalar(name, 0) in (0, head_size)
            is_ours &= bool(self.scalar(f"{prefix}/rotary_interleave", 1))
            bases.add(self.scalar(f"{prefix}/rotary_base", 10_000.0))
        if not is_ours or len(bases) != 1:
            raise refuse(self.path, "rotary positions of another layout", "runs rotate neighbors")
        return bases.pop()

    def _layer(
        self, weights: dict[str, Array], side: str, layer: int, d_model: int, heads: int
    ) -> None:
        theirs, ours = f"{side}/layer_{layer}", f"{side}.{layer}"
        parts = (
            ("self_attention", "self_attention", _SELF),
            ("attention", "cross_attention", _CROSS),
        )
        for their_part, part, linears in parts[: 1 if side == "encoder" else 2]:
            prefix = f"{theirs}/{their_part}"
            for index, fused in linears:
                names = [f"{ours}.{part}.{n}" for n in fused]
                self._linear(weights, f"{prefix}/linear_{index}", names, d_model, d_model)
            norm = f"{ours}.{part}_residual.norm"
            self._norm(weights, f"{prefix}/layer_norm", norm, d_model)
            scale = self.scalar(f"{prefix}/queries_scale", 0)
            if scale:  # in place of 1 / sqrt(K)
                factor = np.float32(scale * math.sqrt(d_model // heads))
                for name in (f"{ours}.{part}.query.weight", f"{ours}.{part}.query.bias"):
                    if name in weights:
                        weights[name] = weights[name] * factor
        expand, contract = f"{ours}.feed_forward.expand", f"{ours}.feed_forward.contract"
        self._linear(weights, f"{theirs}/ffn/linear_0", [expand], None, d_model)
        d_ff = len(weights[f"{expand}.weight"])
        self._linear(weights, f"{theirs}/ffn/linear_1", [contract], d_model, d_ff)
        for name, rows in ((expand, d_ff), (contract, d_model)):
            weights.setdefault(f"{name}.bias", np.zeros(rows, np.float32))
        norm = f"{ours}.feed_forward_residual.norm"
        self._norm(weights, f"{theirs}/ffn/layer_norm", norm, d_model)

    def _linear(
        self,
        weights: dict[str, Array],
        theirs: str,
        ours: list[str],
        rows: int | None,
        columns: int,
    ) -> None:
        """Take a layer, split into those that were fused; a missing bias stays missing."""
        all_rows = None if rows is None else rows * len(ours)
        weight = self.matrix(f"{theirs}/weight", all_rows, columns)
        bias = self.names.take_optional(f"{theirs}/bias", len(weight))
        for index, name in enumerate(ours):
            part = slice(index * len(weight) // len(ours), (index + 1) * len(weight) // len(ours))
            weights[f"{name}.weight"] = weight[part]
            if bias is not None:
                weights[f"{name}.bias"] = bias[part]

    def _norm(self, weights: dict[str, Array], theirs: str, ours: str, size: int) -> None:
        weights[f"{ours}.weight"] = self.names.take(f"{theirs}/gamma", size)
        if f"{theirs}/beta" not in self.names.tensors:
            raise refuse(self.path, f"an RMSNorm ({theirs})", "runs have LayerNorm")
        weights[f"{ours}.bias"] = self.names.take(f"{theirs}/beta", size)

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
    for name in ("unk_token", "eos_token"):
        if special[name] not in ids:
            raise UserError(f"{path}: the vocabulary lacks the {name} {short(special[name])}")
    if start is not None and start not in ids:
        raise UserError(f"{path}: the vocabulary lacks the start token {short(start)}")
    pad = next((ids[name] for name in ("<pad>", "<blank>") if name in ids), None)
    first = None if start is None else ids[start]
    unk, eos = ids[special["unk_token"]], ids[special["eos_token"]]
    return Vocabulary(pieces, unk, eos, first, None if pad in (first, unk, eos) else pad)


def _sentencepiece(folder: Path) -> tuple[bytes, bytes]:
    for names in _SENTENCEPIECE:
        if all((folder / name).is_file() for name in names):
            src, tgt = (read_sentencepiece(folder / name) for name in names)
            return src, tgt
    for names in _SENTENCEPIECE:
        missing = [name for name in names if not (folder / name).is_file()]
        if len(missing) < len(names):
            raise incomplete(folder, f"it has no {missing[0]}")
    found = sorted(folder.glob("*.spm")) or sorted(folder.glob("*.model"))
    if len(found) == 1:
        return (model := read_sentencepiece(found[0])), model
    listed = ", ".join(" and ".join(dict.fromkeys(names)) for names in _SENTENCEPIECE)
    raise UserError(f"{folder} has no SentencePiece model: put one next to model.bin ({listed})")
