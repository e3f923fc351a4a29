"""A model that computes NaN or infinity is an error in every engine and mode, not empty text."""

import copy

import pytest
import torch
from small_models import MODES, build, make_requests, random_sources

from seq2seq_cli.decoding.engines.base import Decoder, Ensemble
from seq2seq_cli.decoding.engines.choice import ENGINES, make_decoder
from seq2seq_cli.decoding.requests import NotFiniteError, Phrase
from seq2seq_cli.decoding.search.scoring import score_given
from seq2seq_cli.decoding.search.search import search
from seq2seq_cli.model.transformer import Transformer

HEALTHY = build(0)
PRECISIONS = ("fp32", "bf16", "int8")
DECODERS = [
    (name, precision)
    for name, engine in ENGINES.items()
    for precision in PRECISIONS
    if engine.unsupported(HEALTHY, precision) is None
]


def overflowing(name: str, value: float) -> Transformer:
    model = copy.deepcopy(HEALTHY)
    with torch.no_grad():
        model.get_parameter(name).fill_(value)
    return model


def decoders(model: Transformer) -> list[Decoder]:
    made = [make_decoder(model, precision, name) for name, precision in DECODERS]
    return [*made, Ensemble(made[:1] * 2)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["src_embedding.weight", "decoder.1.feed_forward.contract.weight"])
def test_infinity_is_an_error_in_every_search(name, mode):
    requests = make_requests(random_sources(3))
    for decoder in decoders(overflowing(name, 3e38)):
        with pytest.raises(NotFiniteError, match=r"NaN or infinity for line [123]: "):
            search(decoder, requests, MODES[mode])


@pytest.mark.parametrize(
    "name",
    [
        "encoder.0.self_attention.key.weight",
        "decoder.1.self_attention.value.weight",
        "decoder.0.cross_attention_residual.norm.weight",
        "decoder.0.feed_forward.expand.weight",
        "encoder_norm.weight",
        "decoder_norm.bias",
    ],
)
def test_one_nan_is_an_error_whatever_computes_with_it(name):
    model = copy.deepcopy(HEALTHY)
    with torch.no_grad():
        model.get_parameter(name).view(-1)[-3] = torch.nan
    requests = make_requests(random_sources(3))
    for decoder in decoders(model):
        for mode in ("greedy", "beam"):
            with pytest.raises(NotFiniteError):
                search(decoder, requests, MODES[mode])


def test_infinity_is_an_error_with_required_words():
    requests = make_requests(random_sources(3), required=(Phrase((7, 8), (7, 8)),))
    for decoder in decoders(overflowing("decoder_norm.weight", 3e38)):
        with pytest.raises(NotFiniteError):
            search(decoder, requests, MODES["beam"])


def test_the_error_names_the_first_line_whose_logits_are_not_finite():
    model = copy.deepcopy(HEALTHY)
    with torch.no_grad():
        model.src_embedding.weight[11] = 3e38
    sources = [[5, 6, 3], [5, 7, 3], [5, 11, 3], [6, 5, 3]]
    for decoder in decoders(model):
        if decoder.precision != "int8":  # PyTorch's int8 has one scale for all rows
            with pytest.raises(NotFiniteError, match="for line 3: "):
                search(decoder, make_requests(sources), MODES["greedy"])


def test_infinity_is_an_error_in_scores():
    model = overflowing("decoder_norm.weight", 3e38)
    with pytest.raises(NotFiniteError, match="computes NaN or infinity: "):
        score_given([model], [([5, 6], [7])], 100)
