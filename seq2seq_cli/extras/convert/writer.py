"""Writes a run folder for a model of another program: its rows in our order, and its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.decoding.engines.native_model import parameter_shapes
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.convert.foreign import Array, ForeignModel, Vocabulary
from seq2seq_cli.extras.convert.missing_rows import IMPOSSIBLE
from seq2seq_cli.extras.convert.spm_vocab_tokenizer import SPECIAL_PIECES, SpmVocabTokenizer
from seq2seq_cli.extras.export.weights import permuted
from seq2seq_cli.files import write_atomic, write_json
from seq2seq_cli.model.weights import Weights, save_tensors
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, Tokenizers, save_tokenizers
from seq2seq_cli.training.checkpoints.manifest import read_manifest, write_manifest


class Order(NamedTuple):
    """The id that the other program has for each of our ids; None: the model has no such row."""

    ids: tuple[int | None, ...]
    is_start_copied: bool = False  # BOS has the embedding of another entry


class Orders(NamedTuple):
    """The order of each side; the same object if the vocabulary is shared."""

    src: Order
    tgt: Order


def orders_of(model: ForeignModel) -> Orders:
    """Return how the rows of both sides are ordered: PAD, UNK, BOS, EOS and then the others."""
    tgt = _order(model.tgt, model)
    return Orders(tgt if model.src is model.tgt else _order(model.src, model), tgt)


def _order(vocabulary: Vocabulary, model: ForeignModel) -> Order:
    if model.tokenizers is not None:
        return Order(tuple(range(len(vocabulary.pieces))))
    special = (None, vocabulary.unk, vocabulary.start, vocabulary.eos)
    apart = {*special, vocabulary.pad}
    others = [token for token in range(len(vocabulary.pieces)) if token not in apart]
    is_copied = vocabulary.start in (vocabulary.unk, vocabulary.eos)
    return Order((*special, *others), is_copied)


def write(model: ForeignModel, folder: Path, record: Mapping[str, Any]) -> None:
    """Write a run folder. `record` becomes part of manifest.json.

    Raises UserError if the options do not fit one another or the weights.
    """
    if model.model["d_model"] % 2:
        raise UserError(f"d_model is {model.model['d_model']}, but sines and cosines need pairs")
    for name, weight in model.weights.items():
        if not np.isfinite(weight).all():
            raise UserError(f"the weights of {name} contain NaN or infinity")
    orders, run = orders_of(model), RunFolder(folder)
    tokenizers = model.tokenizers or _tokenizers(model, orders)
    weights = _ordered(model, orders)
    is_tied = bool(model.model["tie_embeddings"])
    is_shared = tokenizers.is_shared and not (is_tied and "src_embedding.weight" in weights)
    if tokenizers.is_shared and not is_shared:  # the same entries, with other embeddings
        tokenizers = tokenizers._replace(src=SpmVocabTokenizer(tokenizers.src.model))
    if "src_embedding.weight" not in weights and not (is_shared and is_tied):
        weights["src_embedding.weight"] = weights["tgt_embedding.weight"]
    tree = _tree(model, tokenizers, orders, is_shared=is_shared)
    tree["model"]["output_bias"] = "projection.bias" in weights
    write_json(run.config, tree)  # JSON is YAML
    config = load_config(run.config)
    sizes = len(tokenizers.src), len(tokenizers.tgt)
    expected = parameter_shapes(config.model, *sizes, is_shared=is_shared)
    found = {name: weight.shape for name, weight in weights.items()}
    if expected != found:
        name = min(n for n in {*expected, *found} if expected.get(n) != found.get(n))
        raise UserError(f"the weights do not fit the model's options: {name} is missing or differs")
    tensors = {
        name: torch.from_numpy(np.require(weight, requirements=("C", "W")))
        for name, weight in weights.items()
    }
    write_run(run, config, tokenizers, tensors, {"imported": record})


def write_run(
    run: RunFolder,
    config: Config,
    tokenizers: Tokenizers,
    weights: Weights,
    record: Mapping[str, Any],
) -> None:
    """Write a run that was not trained here; `record` becomes part of manifest.json."""
    save_tokenizers(run, tokenizers)
    save_tensors(weights, run.model)
    write_manifest(run, config, torch.device("cpu"), None, hashes={})
    write_json(run.manifest, {**read_manifest(run), **record})
    write_atomic(run.config, config_yaml(config).encode())


def _tokenizers(model: ForeignModel, orders: Orders) -> Tokenizers:
    assert model.sentencepiece is not None, "every reader gives it, or tokenizers of a run"
    src_spm, tgt_spm = model.sentencepiece
    is_shared = model.src is model.tgt
    src = SpmVocabTokenizer.build(src_spm, _names(model.src, orders.src), model.tags)
    if is_shared and src_spm == tgt_spm:
        return Tokenizers(src, src)
    tags = model.tags if is_shared else ()
    tgt = SpmVocabTokenizer.build(tgt_spm, _names(model.tgt, orders.tgt), tags)
    return Tokenizers(src, SpmVocabTokenizer(tgt.model, src) if is_shared else tgt)


def _names(vocabulary: Vocabulary, order: Order) -> list[str]:
    """Return the entries in our order; rows that text cannot name get unique names."""
    names, seen = list(SPECIAL_PIECES), set(SPECIAL_PIECES)
    for token in order.ids[EOS_ID + 1 :]:
        assert token is not None
        name = vocabulary.pieces[token]
        if name is None or name in seen or any("\ud800" <= c <= "\udfff" for c in name):
            name = f"<unused {token}>"
        seen.add(name)
        names.append(name)
    return names


def _ordered(model: ForeignModel, orders: Orders) -> dict[str, Array]:
    """Return all weights with our rows of vocabularies, and sines alternating with cosines."""
    weights = dict(model.weights)
    bias = weights.pop("projection.bias")
    for name in ("src_embedding.weight", "tgt_embedding.weight", "projection.weight"):
        if name in weights:
            order = orders.src if name.startswith("src") else orders.tgt
            weights[name] = _rows(weights[name], order)
    ordered = _rows(bias, orders.tgt)
    ordered[[number for number, token in enumerate(orders.tgt.ids) if token is None]] = IMPOSSIBLE
    if orders.tgt.is_start_copied:
        ordered[BOS_ID] = IMPOSSIBLE
    if model.tokenizers is None or ordered.any():
        weights["projection.bias"] = ordered
    if model.positions.has_halves:
        size = weights["tgt_embedding.weight"].shape[1]
        weights = permuted(weights, np.arange(size).reshape(2, -1).T.reshape(-1))  # 0, D/2, 1, ...
    return weights


def _rows(array: Array, order: Order) -> Array:
    """Return the rows in our order, zeros for those that the model lacks."""
    ordered: Array = array[[token or 0 for token in order.ids]]
    ordered[[token is None for token in order.ids]] = 0
    return ordered


def _tree(
    model: ForeignModel, tokenizers: Tokenizers, orders: Orders, *, is_shared: bool
) -> dict[str, Any]:
    """Return the config as plain data."""
    sides = tokenizers._asdict()
    decoding = dict(model.decoding)
    if words := banned_words(model, tokenizers, orders.tgt):
        decoding["banned_words"] = words
    languages = None if model.languages is None else model.languages._asdict()
    positions = {"position_base": model.positions.base, "position_offset": model.positions.offset}
    return {
        "preset": "none",
        "data": {"train": [], "languages": languages, "max_length": model.max_length},
        "tokenizer": {
            "kind": {side: tokenizer.kind for side, tokenizer in sides.items()},
            "vocab_size": {side: len(tokenizer) for side, tokenizer in sides.items()},
            "shared": is_shared,
        },
        "model": {**model.model, **positions},
        "decoding": decoding,
    }


def banned_words(model: ForeignModel, tokenizers: Tokenizers, order: Order) -> list[str]:
    """Return the model's bad words as text; the model notes those that are no whole words."""
    ours = {theirs: number for number, theirs in enumerate(order.ids) if theirs is not None}
    words: list[str] = []
    for ids in model.bad_words:
        tokens = [ours.get(token, 0) for token in ids]
        word = tokenizers.tgt.to_text(tokens)
        if word and " " not in word and tokenizers.tgt.to_ids(word) == tokens:
            words.append(word)
        else:
            note = f"the tokens {ids} of bad_words_ids are no word, so they are allowed"
            model.notes.append(note)
    return words
