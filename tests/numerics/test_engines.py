"""Engines and exports reject models that they do not support; the plain engine runs all."""

import itertools
from typing import Any, get_args

import pytest
import torch
from small_models import build, stepwise_logits
from torch import nn
from variants import half_of_them_slow

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.config.types import Activation, AttentionScale, EngineName, NormPosition
from seq2seq_cli.decoding.engines.base import PlainDecoder
from seq2seq_cli.decoding.engines.choice import ENGINES, make_decoder
from seq2seq_cli.errors import UserError
from seq2seq_cli.model import layers
from seq2seq_cli.model.layers import FeedForward, Residual
from seq2seq_cli.native import library as native
from seq2seq_cli.tokenizers.tokenizer import PAD_ID

OPTIONS: dict[str, Any] = {
    "activation": get_args(Activation),
    "norm": get_args(NormPosition),
    "attention_bias": (True, False),
}
ALL = [dict(zip(OPTIONS, values, strict=True)) for values in itertools.product(*OPTIONS.values())]
SCALES = [
    {"attention_scale": scale, "activation": "relu", "norm": "pre", "attention_bias": bias}
    for scale in get_args(AttentionScale)
    for bias in (True, False)
]
ALL += [options for options in SCALES if options["attention_scale"] != "sqrt"]
ALL += [
    {"positions": "rotary", "activation": "relu", "norm": norm, "attention_bias": bias} | cross
    for norm in ("pre", "post")
    for bias in (True, False)
    for cross in ({}, {"rotary_cross_attention": True})
]
for options in ALL:
    options["embedding_scale"] = not options["attention_bias"]
    options["layers"] = {"encoder": 1, "decoder": 2}


class WithNewOption(ModelConfig):
    """A config with a new option that no engine supports."""

    distances: str = "relative"


class Swish(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.sigmoid()


@pytest.fixture
def swish(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model with a newly registered activation."""
    monkeypatch.setitem(layers.ACTIVATIONS, "swish", Swish)
    model = build(0, vocabulary=70, tie_embeddings=True)
    config = model.config.model_copy(update={"activation": "swish"})
    return type(model)(config, 12, 70, False, model.pad_id).eval()


def assert_same_logits(engine: EngineName, model: Any) -> None:
    decoder = make_decoder(model, "fp32", engine)
    for expected, actual in stepwise_logits(PlainDecoder(model), decoder):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options", half_of_them_slow(ALL), ids=lambda options: "-".join(map(str, options.values()))
)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_supports_or_rejects_every_model_option(engine, options):
    model = build(0, vocabulary=70, **options)
    if engine == "plain":  # which the others are compared with
        assert type(make_decoder(model, "fp32", engine)) is PlainDecoder
    elif ENGINES[engine].unsupported(model, "fp32") is None:
        assert_same_logits(engine, model)
    else:
        with pytest.raises(UserError, match=f"decoding.engine {engine}"):
            make_decoder(model, "fp32", engine)


def test_engine_tests_cover_every_model_option():
    assert set(OPTIONS["activation"]) == set(layers.ACTIVATIONS)
    for options in ALL:
        assert ENGINES["native"].unsupported(build(0, **options), "fp32") is None


def test_rotary_positions_are_known_to_every_engine():
    model = build(0, vocabulary=70, tie_embeddings=True, positions="rotary")
    for name in ENGINES:
        reason = ENGINES[name].unsupported(model, "fp32")
        assert reason is None or "not compiled" in reason
    model.decoder[0].self_attention.is_rotary = False
    assert ENGINES["native"].unsupported(model, "fp32") == "layers differ in positions"


def test_rotary_cross_attention_is_known_to_engines():
    options = {"tie_embeddings": True, "positions": "rotary", "rotary_cross_attention": True}
    model = build(0, vocabulary=70, layers=2, **options)
    model.decoder[1].cross_attention.is_rotary = False
    difference = "layers differ in rotary_cross_attention"
    assert ENGINES["native"].unsupported(model, "fp32") == difference


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "sinusoidal"},
        {"positions": "rotary"},
        {"positions": "rotary", "rotary_cross_attention": True},
    ],
    ids=["sinusoidal", "rotary", "rotary everywhere"],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_features_that_share_a_position_are_known_to_every_engine(engine, options):
    """The sources of `stepwise_logits` have features before the text, in its middle, or none."""
    options |= {"tie_embeddings": True, "feature_positions": False}
    model = build(0, vocabulary=70, num_features=3, **options)
    reason = ENGINES[engine].unsupported(model, "fp32")
    assert reason is None or "not compiled" in reason
    if reason is None and engine != "plain":  # which the others are compared with
        assert_same_logits(engine, model)


def test_new_activation_runs_on_supporting_engines_only(swish):
    assert ENGINES["native"].unsupported(swish, "fp32")
    with pytest.raises(UserError, match=r"decoding\.engine native"):
        make_decoder(swish, "fp32", "native")
    assert type(make_decoder(swish, "fp32", "auto")) is PlainDecoder


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_new_model_option_falls_back_to_the_plain_engine(precision, caplog):
    if precision not in native.precisions():
        pytest.skip("refused for the precision")
    model = build(0, vocabulary=70, tie_embeddings=True)
    kind = f"relative in {precision}"  # which has not been logged before
    model.config = WithNewOption(**dict(model.config), distances=kind)
    with pytest.raises(UserError, match=rf"model\.distances is {kind}"):
        make_decoder(model, precision, "native")
    with caplog.at_level("INFO"):
        assert type(make_decoder(model, precision)) is PlainDecoder
        make_decoder(model, precision)
    assert caplog.text.count("decoding with the model's own code") == 1
    assert make_decoder(model, "auto").precision == "fp32"


def test_edited_equations_are_decoded_by_the_model_itself(caplog):
    """As after an edit of the code of a module, which neither options nor types show."""
    caplog.set_level("WARNING")
    precisions = ["auto", "fp32", *({"bf16"} & native.precisions())]
    for kind, precision, bias in itertools.product(
        (FeedForward, Residual), precisions, (0.0, -torch.inf)
    ):
        model = build(0, vocabulary=70, output_bias=True)
        model.projection.bias.data[PAD_ID] = bias  # an impossible token hides no edit
        assert type(make_decoder(model, precision)) is not PlainDecoder
        for module in model.modules():
            if isinstance(module, kind):
                module.register_forward_hook(lambda module, inputs, output: output * 1.01)
        assert type(make_decoder(model, precision)) is PlainDecoder
        with pytest.raises(UserError, match=r"native \(its logits differ from the model's\)"):
            make_decoder(model, precision, "native")
    (message,) = {record.getMessage() for record in caplog.records}
    assert "native (its logits differ from the model's)" in message


def test_a_projection_of_another_kind_needs_the_plain_engine():
    model = build(0, vocabulary=70)
    model.projection = nn.Sequential(model.projection, nn.Identity())
    decoder = make_decoder(model, "auto")
    assert type(decoder) is PlainDecoder
    assert decoder.vocab_size == 70


def test_int8_without_a_supporting_engine_is_rejected(swish):
    swish.config = WithNewOption(**dict(swish.config) | {"activation": "relu"})
    with pytest.raises(UserError, match=r"plain \(it does not support int8\)") as error:
        make_decoder(swish, "int8")
    assert "native (model.distances is relative)" in str(error.value)


def test_unknown_positions_are_never_taken_for_sinusoidal():
    model = build(0, vocabulary=70)
    model.config = model.config.model_copy(update={"positions": "alibi"})
    assert ENGINES["native"].unsupported(model, "fp32") == "model.positions is alibi"
    with pytest.raises(AssertionError, match="alibi"):
        PlainDecoder(model).start(torch.tensor([[5, 6, 3]]))
