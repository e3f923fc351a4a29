"""Each export says what it can represent, and refuses options and modules that it does not know."""

import subprocess
import sys

import pytest
from small_models import build
from torch import nn

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.tokenizer import Kinds, TokenizerConfig
from seq2seq_cli.extras.export.limits import FORMATS, exports, format_named
from seq2seq_cli.extras.export.marian import marian_base
from seq2seq_cli.model import layers
from seq2seq_cli.tokenizers.tokenizer import Tokenizer, Tokenizers


class WithNewOption(ModelConfig):
    distances: str = "relative"


class NewNorm(nn.LayerNorm):
    """A norm with weight and bias that computes something else."""


def config_of(**options: object) -> Config:
    return Config.model_validate(
        {
            "model": options,
            "data": {"train": {"src": "a", "tgt": "b"}},
            "tokenizer": {"shared": True},
        }
    )


def imported(**options: object) -> Config:
    """The config of an imported model with Marian's positions, which every format knows."""
    defaults = {"position_base": marian_base(ModelConfig().d_model), "norm": "post"}
    config = config_of(**(defaults | options))
    kinds = Kinds(src="spm_vocab", tgt="spm_vocab")
    tokenizer = config.tokenizer.model_copy(update={"kind": kinds})
    return config.model_copy(update={"tokenizer": tokenizer})


@pytest.mark.parametrize("name", FORMATS)
def test_an_unknown_option_or_value_is_refused(name):
    target, config = format_named(name), imported()
    assert target.limits(config) is None
    new = config.model_copy(update={"model": WithNewOption(**dict(config.model))})
    assert target.limits(new) == "model.distances is relative"
    scaled = config.model.model_copy(update={"attention_scale": "new"})
    scaled = config.model_copy(update={"model": scaled})
    assert target.limits(scaled) == "model.attention_scale is new"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("place", "module", "reason"),
    [
        ("decoder_norm", NewNorm(16), "decoder_norm is NewNorm"),
        ("encoder.0.feed_forward_residual.norm", nn.RMSNorm(16), "norm is RMSNorm"),
        ("decoder.1.feed_forward.activation", nn.ELU(), "activation is ELU"),
        ("encoder.1.feed_forward.activation", nn.SiLU(), "layers differ in activation"),
        ("decoder_norm", nn.LayerNorm(16, bias=False), "decoder_norm has no weight or no bias"),
    ],
)
def test_an_unknown_module_is_refused(name, place, module, reason):
    model = build(0, vocabulary=70, tie_embeddings=True)
    limits_of = format_named(name).limits_of_model
    assert limits_of(model) is None
    model.set_submodule(place, module)
    assert reason in str(limits_of(model))
    assert reason in str(exports(imported(), edited=model)[name])


@pytest.mark.parametrize(
    ("name", "reason"),
    [(name, "approximated by tanh") for name in FORMATS if name != "marian"]
    + [("marian", "activation is GELU")],  # its own is x · sigmoid(1.702 x)
)
def test_another_gelu_is_refused(name, reason):
    model = build(0, vocabulary=70, tie_embeddings=True)
    for layer in [*model.encoder, *model.decoder]:
        layer.feed_forward.activation = nn.GELU("tanh")
    assert reason in str(format_named(name).limits_of_model(model))


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"activation": "silu", "output_bias": True, "norm_epsilon": 1e-9}, {}),
        ({"tie_embeddings": False}, {}),
        ({"norm": "pre"}, {}),
        ({"norm": "pre", "tie_embeddings": False}, {"huggingface": "model.tie_embeddings"}),
        ({"source_eos": False}, {"huggingface": "source_eos", "marian": "source_eos"}),
        ({"norm_epsilon": 1e-4}, {"huggingface": "norm_epsilon", "marian": "norm_epsilon"}),
        ({"activation": "gelu"}, {"marian": "model.activation is gelu"}),
        ({"embedding_scale": False}, {"marian": "model.embedding_scale is false"}),
        ({"position_offset": 1}, {"marian": "model.position_offset is 1"}),
        ({"ngrams": 2}, dict.fromkeys(FORMATS, "model.ngrams is 2")),
    ],
)
def test_formats_of_imported_models_say_what_they_cannot_represent(options, refused):
    found = exports(imported(**options))
    assert found.keys() == {*FORMATS}
    for name, reason in found.items():
        assert (reason is None) == (name not in refused), (name, reason)
        assert refused.get(name, "") in (reason or "")


def test_marian_takes_imported_vocabularies_and_its_own_positions_only():
    assert "marian" not in exports(config_of())
    assert format_named("marian").limits(config_of()) == "its vocabulary was not imported"
    model = imported().model.model_copy(update={"position_base": 10_000.0})
    reason = exports(imported().model_copy(update={"model": model}))["marian"]
    assert reason == "model.position_base is 10000, and Marian's is 10752.2"


def test_layers_that_rotate_differently_are_refused():
    options = {"tie_embeddings": True, "positions": "rotary", "rotary_cross_attention": True}
    model = build(0, vocabulary=70, **options)
    limits_of = format_named("ctranslate2").limits_of_model
    model.decoder[1].cross_attention.is_rotary = False
    assert limits_of(model) == "layers differ in rotary_cross_attention"
    model.decoder[0].self_attention.is_rotary = False
    assert limits_of(model) == "layers differ in positions"


@pytest.mark.parametrize("cross", [False, True])
def test_rotary_positions_are_known_to_ctranslate2(cross):
    config = config_of(tie_embeddings=True, positions="rotary", rotary_cross_attention=cross)
    ct2 = "model.rotary_cross_attention is true" if cross else None
    huggingface = "it needs model.positions: sinusoidal"
    assert exports(config) == {"ctranslate2": ct2, "huggingface": huggingface, "argos": ct2}


def test_a_new_activation_is_refused(monkeypatch):
    monkeypatch.setitem(layers.ACTIVATIONS, "swish", nn.SiLU)
    config = config_of(tie_embeddings=True)
    swish = config.model.model_copy(update={"activation": "swish"})
    found = exports(config.model_copy(update={"model": swish}))
    assert found == dict.fromkeys(FORMATS[:3], "model.activation is swish")


def test_argos_cannot_write_bytes_that_only_the_target_has():
    kinds = {"kind": {"src": "char", "tgt": "bpe"}, "vocab_size": {"src": 20, "tgt": 300}}
    data = {"train": {"src": "a", "tgt": "b"}}
    config = Config.model_validate({"data": data, "tokenizer": kinds})
    assert "only the target's vocabulary has bytes" in str(format_named("argos").limits(config))


@pytest.mark.parametrize("name", FORMATS)
def test_search_options_that_a_format_lacks_are_named(name):
    decoding = DecodingConfig(min_len_extra=5, max_len_extra=9, length_penalty_formula="gnmt")
    tokenizer = Tokenizer.fit(["a b"], TokenizerConfig(kind="word", vocab_size=20), "src")
    config = imported().model_copy(update={"decoding": decoding})
    notes = format_named(name).notes(config, Tokenizers(tokenizer, tokenizer))
    assert "`decoding.length_penalty_formula`" in notes
    assert ("`decoding.min_len_extra`" in notes) == (name in ("marian", "argos"))


def test_limits_are_known_without_torch():
    """So that `init` answers fast."""
    code = (
        "import sys\nfrom seq2seq_cli.extras.export.limits import FORMATS, format_named\n"
        "[format_named(name) for name in FORMATS]\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_features_that_share_a_position_are_refused():
    text = {"pairs": "a.tsv", "fields": [1, 3], "features": 2}
    config = Config.model_validate(
        {"model": {"feature_positions": False}, "data": {"train": text}, "tokenizer": {}}
    )
    found = exports(config)
    assert found["ctranslate2"] == found["huggingface"] == "model.feature_positions is false"
