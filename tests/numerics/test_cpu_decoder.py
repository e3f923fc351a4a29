"""The decoder in C, compared with PyTorch models that round in the same way."""

import itertools
import os
import subprocess
import sys
from ctypes import addressof
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rounded_models import LINEAR, rounded
from small_models import MODES, build, make_requests, random_sources, stepwise_logits
from torch import Tensor, nn
from variants import half_of_them_slow

from seq2seq_cli.decoding.engines.base import Ensemble, PlainDecoder, Precision
from seq2seq_cli.decoding.engines.choice import make_decoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.engines.native_model import packed_linear
from seq2seq_cli.decoding.requests import Phrase
from seq2seq_cli.decoding.search.search import search
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import library as native
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID

pytestmark = pytest.mark.skipif(
    not native.precisions(), reason="not compiled, or a processor without AVX-512"
)

PRECISIONS = sorted(native.precisions())


ACTIVATIONS = [nn.Identity(), nn.ReLU(), nn.GELU(), nn.SiLU()]  # by their numbers


def product(
    layer: nn.Linear, x: Tensor, residual: Tensor, precision: Precision, activation: int = 0
) -> Tensor:
    arrays = (layer.weight.detach().numpy(), layer.bias.detach().numpy())
    parts = packed_linear([arrays], precision)
    structure = native.Linear(
        inputs=layer.in_features,
        outputs=layer.out_features,
        precision=native.PRECISIONS.index(precision),
        **{name: array.ctypes.data for name, array in parts.items()},
    )
    made = residual.clone()
    words = torch.empty(96 * (4 * layer.in_features + 256), dtype=torch.uint8)
    arguments = (x.data_ptr(), made.data_ptr(), made.data_ptr(), words.data_ptr())
    threads = torch.get_num_threads()
    native.library().linear(addressof(structure), activation, len(x), *arguments, threads)
    return made


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(128, 192), (64, 70), (10, 5), (30, 64), (1, 1), (320, 17)]
)
@pytest.mark.parametrize("rows", [1, 5, 6, 11, 12, 16, 17, 33, 97, 200])
def test_matrix_products_match_rounded_inputs(precision, inputs, outputs, rows):
    """The numbers of rows are around the block sizes of the kernels."""
    torch.manual_seed(rows)
    layer = nn.Linear(inputs, outputs)
    x, residual = torch.randn(rows, inputs), torch.randn(rows, outputs)
    x[rows // 2] = 0
    with torch.inference_mode():
        for number, activation in enumerate(ACTIVATIONS):
            expected = activation(LINEAR[precision](layer)(x)) + residual
            made = product(layer, x, residual, precision, number)
            torch.testing.assert_close(made, expected, atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_matrix_product_of_a_row_does_not_depend_on_the_batch(precision):
    torch.manual_seed(0)
    layer, x, residual = nn.Linear(128, 100), torch.randn(150, 128), torch.randn(150, 100)
    rows = zip(x.split(1), residual.split(1), strict=True)
    alone = torch.cat([product(layer, *row, precision) for row in rows])
    for count in (2, 7, 12, 20, 33, 100, 150):
        made = product(layer, x[:count], residual[:count], precision)
        assert torch.equal(made, alone[:count])
    torch.set_num_threads(2)
    try:
        made = product(layer, x.repeat(4, 1), residual.repeat(4, 1), precision)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(made, alone.repeat(4, 1))


# Of the logits' norm, at the worst step: a number that lies between two of bf16, or between two
# whole ones, may be rounded to the other.
WORST = {"fp32": 1e-6, "bf16": 0.005, "int8": 0.01}
# Steps of 90 in which none is: later ones read the keys and values that were.
SAME = {"fp32": 90, "bf16": 1, "int8": 10}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "options",
    half_of_them_slow(
        [
            {},
            {"norm": "post", "attention_bias": False, "tie_embeddings": True},
            {"activation": "gelu", "d_model": 64, "d_ff": 128},
            {"d_model": 20, "d_ff": 30},
            {"positions": "rotary"},
            {"positions": "rotary", "rotary_cross_attention": True},
            {"positions": "rotary", "d_model": 20, "norm": "post"},
        ]
    ),
    ids=str,
)
def test_cpu_decoder_logits_match_the_rounded_model(options, precision):
    model = build(2, vocabulary=70, **options)
    twin = model if precision == "fp32" else rounded(model, precision)
    both = stepwise_logits(PlainDecoder(twin), CpuDecoder(model, precision))
    errors = [float((actual - expected).norm() / expected.norm()) for expected, actual in both]
    assert len(errors) == 90
    if precision != "bf16" or not {"activation", "rotary_cross_attention"} & options.keys():
        # of many numbers one always is
        assert sum(error < 1e-6 for error in errors) >= SAME[precision]
    assert max(errors) < WORST[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"d_model": 64, "d_ff": 128, "activation": "gelu"},
        {"positions": "rotary", "rotary_cross_attention": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", MODES)
def test_cpu_decoder_batch_matches_single_sentences_bit_for_bit(name, options, precision):
    """The result depends neither on the instructions nor on the number of threads."""
    decoder = CpuDecoder(build(1, **options), precision)
    requests = make_requests(random_sources(13))  # more rows than are multiplied at once
    alone = [search(decoder, [request], MODES[name])[0] for request in requests]
    torch.set_num_threads(2)
    try:
        assert search(decoder, requests, MODES[name]) == alone
    finally:
        torch.set_num_threads(1)


def test_cpu_decoder_in_fp32_finds_the_translations_of_the_model():
    for seed, mode in itertools.product(range(3), MODES):
        model, requests = build(seed), make_requests(random_sources(20))
        expected = search(PlainDecoder(model), requests, MODES[mode])
        found = search(CpuDecoder(model, "fp32"), requests, MODES[mode])
        for one, other in zip(found, expected, strict=True):
            assert [hypothesis.ids for hypothesis in one] == [h.ids for h in other]


@pytest.mark.parametrize("make", [partial(make_decoder, precision="fp32"), PlainDecoder])
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_defaults_of_the_caller_change_no_translation(mode, make):
    """As in the program of somebody who loads a large model in bf16 on a GPU."""
    model = build(0)
    requests = [
        replace(request, required=(Phrase((5, 7), (5, 7)),) if mode is MODES["beam"] else ())
        for request in make_requests(random_sources(8))
    ]
    expected = search(make(model), requests, mode)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        found = search(make(model), requests, mode)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert found == expected


@pytest.mark.parametrize(
    "constraints",
    [{}, {"min_length": 4}, {"min_length": 30}, {"prefix": (7, 5)}, {"max_length": 3}],
    ids=str,
)
def test_cpu_decoder_argmax_matches_its_logits(constraints):
    """An ensemble of one model uses the logits and the rules of the search instead."""
    requests = [
        replace(request, **constraints) if number % 2 else request
        for number, request in enumerate(make_requests(random_sources(20)))
    ]
    for some in (requests, requests[1::2]):
        decoder = CpuDecoder(build(3), "fp32")
        expected = search(Ensemble([decoder]), some, MODES["greedy"])
        assert search(decoder, some, MODES["greedy"]) == expected


def test_ensemble_of_a_cpu_decoder_with_itself_matches_it():
    decoder = CpuDecoder(build(0), "int8")
    requests = make_requests(random_sources(5))
    twins = search(Ensemble([decoder, decoder]), requests, MODES["beam"])
    for both, one in zip(twins, search(decoder, requests, MODES["beam"]), strict=True):
        assert [found.ids for found in both] == [found.ids for found in one]


def test_finished_sentences_get_no_cache_slots():
    decoder = CpuDecoder(build(0), "fp32")
    states = decoder.start(torch.full((8, 3), 5))
    last = torch.full((8, 1), BOS_ID)
    for _ in range(5):
        states.logits(last)
    states.keep(torch.tensor([6]))
    for _ in range(40):
        states.logits(last[:1])
    assert [block.size(2) for block in states.blocks] == [8, 1]


LARGE = {"d_model": 256, "d_ff": 512, "heads": 4}
COUNT_THREADS = """
import os, torch
from small_models import build
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder

def threads_after(decoder, sentences, width):
    src, last = torch.full((sentences, 20), 5), torch.full((sentences, width), 2)
    for threads in (1, 2):  # first PyTorch makes its tables
        torch.set_num_threads(threads)
        states = decoder.start(src)
        states.logits(last[:, :1])
        states.reorder(torch.zeros(sentences, width, dtype=torch.int64))
        states.logits(last)
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(1)
small, large = (CpuDecoder(build(0, **options), "fp32") for options in (
    {"d_model": 128, "d_ff": 256, "vocabulary": 2000}, %r))
print(*(threads_after(*given) for given in ((small, 1, 1), (small, 1, 4), (large, 99, 4))))
"""


@pytest.mark.parametrize("precision", PRECISIONS)
def test_number_of_threads_changes_no_bits(precision):
    decoder = CpuDecoder(build(0, **LARGE), precision)
    src = torch.randint(4, 12, (300, 9))
    last, origin = torch.full((300, 1), BOS_ID), torch.zeros(300, 2, dtype=torch.int64)

    def logits(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        states = decoder.start(src)
        first = states.logits(last)
        states.reorder(origin)
        return [first, states.logits(last.expand(-1, 2))]

    try:
        alone, *others = map(logits, (1, 2, 3))
    finally:
        torch.set_num_threads(1)
    for other in others:
        assert all(map(torch.equal, other, alone))


@pytest.mark.slow
def test_cpu_decoder_uses_more_threads_for_large_batches_only():
    """A second thread costs more than it saves on small batches."""
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc")
    done = subprocess.run(
        [sys.executable, "-c", COUNT_THREADS % LARGE],
        capture_output=True, text=True, check=True,
        env=os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    alone, with_a_beam, many = map(int, done.stdout.split())
    assert with_a_beam == alone
    assert many == alone + 1


def test_number_of_threads_may_change_while_decoding():
    decoder, last = CpuDecoder(build(0, **LARGE), "fp32"), torch.full((99, 1), BOS_ID)
    alone, other = (decoder.start(torch.full((99, 4), 5)) for _ in range(2))
    expected = [alone.logits(last) for _ in range(2)]
    found = [other.logits(last)]
    torch.set_num_threads(7)
    try:
        found.append(other.logits(last))
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, expected, found))


def test_token_ids_out_of_range_read_no_foreign_memory():
    """A search over NaN logits may produce such ids."""
    states = CpuDecoder(build(0), "fp32").start(torch.tensor([[5, EOS_ID]]))
    for token in (-1, 12, 63, 2**62, -(2**62)):
        assert states.logits(torch.tensor([[token]])).shape == (1, 1, 64)


@pytest.mark.parametrize("size", [1, 15, 64, 1_000])
def test_log_sum_exp_matches_pytorch(size):
    torch.manual_seed(size)
    logits = 10 * torch.randn(3, 2, size)
    logits[0, 0, size // 2 :] = -torch.inf
    logits[0, 0, 0] = 7
    expected = logits.logsumexp(dim=-1, keepdim=True)
    found = torch.empty(3, 2, 1)
    native.library().log_sum_exp(6, size, logits.data_ptr(), found.data_ptr(), 1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-6)


class Gated(nn.Module):
    """An activation that no engine supports."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.sigmoid() + 1


def with_part(kind: str) -> Transformer:
    """A model with a part that the decoder in C does not support."""
    model = build(0, vocabulary=70)
    for layer in (*model.encoder, *model.decoder):
        if kind == "activation":
            layer.feed_forward.activation = Gated()
        if kind == "approximate gelu":
            layer.feed_forward.activation = nn.GELU("tanh")
        if kind == "norm":
            layer.feed_forward_residual.norm = nn.RMSNorm(16)
        if kind == "norm without bias":
            layer.feed_forward_residual.norm = nn.LayerNorm(16, bias=False)
    if kind == "last norm":
        model.decoder_norm = nn.Tanh()
    if kind == "one layer's activation":
        model.decoder[1].feed_forward.activation = nn.GELU()
    if kind == "one layer's heads":
        model.decoder[1].cross_attention.heads = 4
    if kind == "one layer's norms":
        model.encoder[1].feed_forward_residual.norm_first = False
    return model


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "kind",
    half_of_them_slow(
        [
            "activation",
            "approximate gelu",
            "norm",
            "norm without bias",
            "last norm",
            "one layer's activation",
            "one layer's heads",
            "one layer's norms",
        ]
    ),
)
def test_unknown_model_part_never_runs_on_the_cpu_engines(kind, precision):
    model = with_part(kind)
    assert CpuDecoder.unsupported(model, precision)
    if precision == "int8":
        with pytest.raises(UserError, match=r"plain \(it does not support int8\)"):
            make_decoder(model, precision)
    else:
        decoder = make_decoder(model, precision)
        assert type(decoder) is PlainDecoder
    if precision == "fp32":
        for expected, actual in stepwise_logits(PlainDecoder(model), decoder):
            torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_supported_model_runs_on_the_cpu_decoder(precision):
    for options in ({}, {"norm": "post", "activation": "gelu", "attention_bias": False}):
        assert type(make_decoder(build(0, **options), precision)) is CpuDecoder
