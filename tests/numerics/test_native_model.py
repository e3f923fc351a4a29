"""Models for the native library are made without PyTorch, of the files that it has written."""

import pickle
import shutil
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
import torch
from random_searches import Stepwise, assert_same
from small_models import MODES, build, make_requests, random_sources
from variants import half_of_them_slow

from seq2seq_cli.config.types import Activation, AttentionScale, NormPosition, Positions
from seq2seq_cli.decoding.engines.base import PlainDecoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.engines.native_model import (
    OPTIONS,
    NativeModel,
    packed,
    parameter_shapes,
    unsupported,
)
from seq2seq_cli.decoding.search import native_search
from seq2seq_cli.decoding.search.scoring import score_given
from seq2seq_cli.decoding.search.search import search
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.parameters import unique_parameters
from seq2seq_cli.model.positions import rotations
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import save_tensors
from seq2seq_cli.native import library as native
from seq2seq_cli.native.model_code import MODEL_CODE, PACKAGE, model_code_hash
from seq2seq_cli.weight_file import read_arrays

needs_library = pytest.mark.skipif(not native.precisions(), reason="not compiled")

PRECISIONS = sorted(native.precisions())
CHOICES: dict[str, tuple[Any, ...]] = {
    "activation": get_args(Activation),
    "norm": get_args(NormPosition),
    "attention_scale": get_args(AttentionScale),
    "positions": get_args(Positions),
    "attention_bias": (True, False),
    "embedding_scale": (True, False),
    "tie_embeddings": (True, False),
    "output_bias": (False, True),
    "source_eos": (True, False),
    "norm_epsilon": (1e-5, 1e-9, 0.1),
    "position_base": (10_000.0, 500.0),
    "feature_positions": (True, False),
    "layers": (1, {"encoder": 1, "decoder": 3}),
    "d_model": (16, 20),
    "ngrams": (1, 2, 5),
    "ngram_buckets": (2, 40),
}


def random_model(seed: int) -> Transformer:
    random = Random(seed)
    options = {name: random.choice(values) for name, values in CHOICES.items()}
    is_rotary = options["positions"] == "rotary"
    options["rotary_cross_attention"] = is_rotary and seed % 2 == 0
    options["position_offset"] = 0 if is_rotary else seed % 3
    return build(seed, random.choice((12, 70)), num_features=random.choice((0, 3)), **options)


def shapes_of(model: Transformer) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def saved(model: Transformer, path: Path) -> Path:
    save_tensors(unique_parameters(model), path)
    return path


def read(model: Transformer, path: Path, precision: native.Precision) -> NativeModel:
    """Make the model of its file, as without PyTorch."""
    weights, _ = read_arrays(path, shapes_of(model))
    parts = packed(weights, model.config, precision)
    return NativeModel(parts, model.config, precision, len(model.feature_ids or ()))


def test_code_of_the_model_is_the_one_that_c_repeats():
    """After an edit of the model's code, edit transformer.c too if equations have changed.

    If the tests of engines and of the search in C pass, MODEL_CODE gets the new hash.
    """
    assert model_code_hash() == MODEL_CODE


def test_every_option_of_the_model_is_known_or_rejected():
    config = build(0).config
    assert set(dict(config)) == set(OPTIONS)
    assert set(CHOICES) <= set(OPTIONS)
    for option, values in OPTIONS.items():
        assert values is None or set(values) == set(CHOICES[option])
    if native.precisions():
        changed = config.model_copy(update={"positions": "alibi"})
        assert unsupported(changed, "fp32") == "model.positions is alibi"


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_shapes_follow_from_the_config(seed, is_shared):
    config = random_model(seed).config
    model = Transformer(config, 12, 12 if is_shared else 70, is_shared, pad_id=0)
    tgt_vocab = model.projection.out_features
    assert parameter_shapes(config, 12, tgt_vocab, is_shared=is_shared) == shapes_of(model)


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("seed", half_of_them_slow(range(12)))
def test_it_translates_as_the_model_in_pytorch_does(seed, precision, tmp_path):
    """In fp32 as the model itself, in all precisions as the engine that PyTorch's search uses."""
    model = random_model(seed)
    made = read(model, saved(model, tmp_path / "x.safetensors"), precision)
    requests = make_requests(random_sources(12))
    for name in ("greedy", "beam", "gnmt"):
        found = native_search.search([made], requests, MODES[name])
        decoder = PlainDecoder(model) if precision == "fp32" else CpuDecoder(model, precision)
        assert_same(found, search(decoder, requests, MODES[name]))
        assert_same(found, search(Stepwise(CpuDecoder(made)), requests, MODES[name]))


@needs_library
@pytest.mark.parametrize("seed", range(12))
def test_it_scores_as_the_model_in_pytorch_does(seed, tmp_path):
    model = random_model(seed)
    made = read(model, saved(model, tmp_path / "x.safetensors"), "fp32")
    sides = random_sources(8), random_sources(8)
    pairs = [(src[:-1], tgt[:-1]) for src, tgt in zip(*sides, strict=True)]
    expected = score_given([model], pairs, 50, with_attention=True)
    found = native_search.score([made], pairs, 50, with_attention=True)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
        np.testing.assert_allclose(one.attention_TS, other.attention_TS, atol=1e-4)


@needs_library
@pytest.mark.parametrize("positions", get_args(Positions))
def test_positions_are_those_of_the_model_but_for_rounding(positions):
    """Angles of 1,000 differ by what rounding their rates does."""
    model = build(0, positions=positions)
    expected = model.position_vectors(0, 1_000)
    if expected is None:
        expected = rotations(0, 1_000, model.config.d_model // model.config.heads, model.device)
    found = CpuDecoder(model, "fp32").native_model.positions(1_000)[:1_000]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(found[:60], expected[:60], atol=6e-6)


@needs_library
def test_features_share_the_position_that_the_model_gives_them():
    model = build(0, num_features=3, feature_positions=False)
    made = CpuDecoder(model, "fp32").native_model
    src_BS = torch.tensor([[4, 6, 9, 3, 0], [9, 4, 7, 3, 0], [8, 9, 3, 0, 0]])
    assert made.places(src_BS.numpy()).tolist() == model.source_positions(src_BS).tolist()


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_copy_from_another_process_gives_the_same_translations(precision):
    made = CpuDecoder(build(0), precision).native_model
    requests = make_requests(random_sources(10))
    copied = pickle.loads(pickle.dumps(made))
    both = (native_search.search([each], requests, MODES["beam"]) for each in (made, copied))
    assert next(both) == next(both)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_types_are_read_as_in_pytorch(dtype, tmp_path):
    model, path = build(0), tmp_path / "x.safetensors"
    expected = {n: weight.to(dtype) for n, weight in unique_parameters(model).items()}
    save_tensors(expected, path)
    found, _ = read_arrays(path, shapes_of(model))
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name].float().numpy())


def flipped(content: bytes) -> bytes:
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


def test_damaged_weights_are_refused(tmp_path):
    model = build(0)
    whole = saved(model, tmp_path / "x.safetensors").read_bytes()
    nan = unique_parameters(model) | {"projection.weight": torch.full((12, 16), torch.nan)}
    save_tensors(nan, tmp_path / "nan")
    save_tensors(unique_parameters(build(0, d_ff=40)), tmp_path / "other")
    save_tensors({n: p.int() for n, p in unique_parameters(model).items()}, tmp_path / "whole")
    damaged = {"empty": b"", "cut": whole[:-5], "flipped": flipped(whole), "header": b"\xff" * 99}
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
    reasons = dict.fromkeys(damaged, "is damaged") | {"nan": "NaN", "missing": "is missing"}
    for name, reason in (reasons | dict.fromkeys(("other", "whole"), "not fit")).items():
        with pytest.raises(UserError, match=reason):
            read_arrays(tmp_path / name, shapes_of(model))


def test_an_edit_of_any_file_of_the_model_changes_the_hash(tmp_path):
    assert model_code_hash(tmp_path) is None  # a distribution that only translates
    for folder in ("model", "native"):
        shutil.copytree(PACKAGE / folder, tmp_path / folder)
    assert model_code_hash(tmp_path) == MODEL_CODE
    hashes = set()
    parts = ("attention", "layers", "transformer", "packing")
    names = [*(f"model/{part}.py" for part in parts), "native/fused.py"]
    for path in (tmp_path / name for name in names):
        content = path.read_bytes()
        path.write_bytes(content.replace(b"1", b"2", 1))
        hashes.add(model_code_hash(tmp_path))
        path.write_bytes(content)
    layers, added = tmp_path / "model/layers.py", tmp_path / "model/an_added_part.py"
    added.write_bytes(b"1")
    hashes.add(model_code_hash(tmp_path))
    added.unlink()
    layers.unlink()
    hashes.add(model_code_hash(tmp_path))
    assert MODEL_CODE not in hashes
    assert len(hashes) == len(names) + 2


def test_all_options_occur_in_the_random_models():
    models = [random_model(seed).config for seed in range(12)]
    for option, values in CHOICES.items():
        if option != "layers":
            assert {getattr(config, option) for config in models} == set(values), option
