"""The decoder in C beside a plain one in PyTorch whose products are rounded in the same way."""

import copy

import pytest
import torch
from small_models import (
    MODES,
    build,
    logits_through_all_changes,
    random_sources,
    requests_of,
)
from torch import Tensor, nn

from seq2seq_cli.decoding import native
from seq2seq_cli.decoding.int8_decoder import Int8Decoder, _Weights
from seq2seq_cli.decoding.search import search
from seq2seq_cli.decoding.states import Ensemble, PlainDecoder
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.tokenizer import BOS_ID

pytestmark = pytest.mark.skipif(
    not native.available(), reason="not compiled, or a processor without AVX-512 VNNI"
)


class Rounded(nn.Module):
    """A linear layer of whole numbers: a scale for each output, and one for each row of inputs."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.scale = layer.weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self.weight = (layer.weight / self.scale[:, None]).round()
        self.bias = layer.bias

    def forward(self, x: Tensor) -> Tensor:
        top = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30)
        rounded = (x * (127 / top)).round()
        made = (rounded.double() @ self.weight.T.double()).float() * (self.scale * top / 127)
        return made if self.bias is None else made + self.bias


def rounded(model: Transformer) -> Transformer:
    model = copy.deepcopy(model)
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Linear) and layer is not model.projection:
                setattr(module, name, Rounded(layer))
    model.projection.forward = Rounded(model.projection).forward  # its weight is used elsewhere
    return model


ACTIVATIONS = [nn.Identity(), nn.ReLU(), nn.GELU()]  # by their numbers


def product(layer: nn.Linear, x: Tensor, residual: Tensor, activation: int = 0) -> Tensor:
    weights = _Weights()
    made = residual.clone()
    room = torch.empty(native.BLOCK * (layer.in_features + 3), dtype=torch.uint8)
    native.call("linear", weights.linear([layer]), activation, len(x), x, made, made, room)
    return made


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(128, 192), (64, 70), (10, 5), (30, 64), (1, 1), (320, 17)]
)
@pytest.mark.parametrize("rows", [1, 5, 6, 11, 12, 16, 33, 97, 200])
def test_products_are_those_of_whole_numbers(inputs, outputs, rows):
    """With few rows and with many, at the borders of what is done at once."""
    torch.manual_seed(rows)
    layer = nn.Linear(inputs, outputs)
    x, residual = torch.randn(rows, inputs), torch.randn(rows, outputs)
    x[rows // 2] = 0
    with torch.inference_mode():
        for number, activation in enumerate(ACTIVATIONS):
            expected = activation(Rounded(layer)(x)) + residual
            made = product(layer, x, residual, number)
            torch.testing.assert_close(made, expected, atol=2e-6, rtol=2e-6)


def test_a_row_gives_the_same_bits_whatever_is_beside_it():
    torch.manual_seed(0)
    layer, x, residual = nn.Linear(128, 100), torch.randn(150, 128), torch.randn(150, 100)
    rows = zip(x.split(1), residual.split(1), strict=True)
    alone = torch.cat([product(layer, *row) for row in rows])
    assert torch.equal(product(layer, x, residual), alone)
    torch.set_num_threads(2)
    try:
        made = product(layer, x.repeat(4, 1), residual.repeat(4, 1))
    finally:
        torch.set_num_threads(1)
    assert torch.equal(made, alone.repeat(4, 1))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "post", "attention_bias": False, "tie_embeddings": True},
        {"activation": "gelu", "d_model": 64, "d_ff": 128},
        {"d_model": 20, "d_ff": 30},
    ],
    ids=str,
)
def test_its_logits_are_those_of_the_rounded_model_through_all_changes(options):
    model = build(0, vocabulary=70, **options)
    both = logits_through_all_changes(PlainDecoder(rounded(model)), Int8Decoder(model))
    errors = [float((actual - expected).norm() / expected.norm()) for expected, actual in both]
    assert len(errors) == 90
    assert sorted(errors)[len(errors) // 2] < 1e-6
    assert max(errors) < 0.01  # a number between two whole ones may be rounded to the other


@pytest.mark.parametrize(
    "options", [{}, {"d_model": 64, "d_ff": 128, "activation": "gelu"}], ids=str
)
@pytest.mark.parametrize("name", MODES)
def test_a_batch_is_its_sentences_one_by_one_to_the_last_bit(name, options):
    """Whatever instructions and threads the batch takes."""
    for seed in range(2):
        decoder = Int8Decoder(build(seed, **options))
        requests = requests_of(random_sources(30))
        alone = [search(decoder, [request], MODES[name])[0] for request in requests]
        torch.set_num_threads(2)
        try:
            assert search(decoder, requests, MODES[name]) == alone
        finally:
            torch.set_num_threads(1)


def test_an_ensemble_of_one_model_and_itself_is_that_model():
    decoder = Int8Decoder(build(0))
    requests = requests_of(random_sources(5))
    twins = search(Ensemble([decoder, decoder]), requests, MODES["beam"])
    for both, one in zip(twins, search(decoder, requests, MODES["beam"]), strict=True):
        assert [found.ids for found in both] == [found.ids for found in one]


def test_sentences_that_have_left_get_no_room():
    decoder = Int8Decoder(build(0))
    states = decoder.start(torch.full((8, 3), 5))
    last = torch.full((8, 1), BOS_ID)
    for _ in range(5):
        states.logits(last)
    states.keep(torch.tensor([6]))
    for _ in range(40):
        states.logits(last[:1])
    assert [piece.size(2) for piece in states._past] == [8, 1]


@pytest.mark.parametrize("size", [1, 15, 64, 1_000])
def test_log_sum_exp_is_pytorchs(size):
    torch.manual_seed(size)
    logits = 10 * torch.randn(3, 2, size)
    logits[0, 0, size // 2 :] = -torch.inf
    logits[0, 0, 0] = 7
    expected = logits.logsumexp(dim=-1, keepdim=True)
    torch.testing.assert_close(native.log_sum_exp(logits), expected, atol=1e-5, rtol=1e-6)
