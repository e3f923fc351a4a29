"""The search in C, compared with the general search on the same weights."""

import itertools
import threading
from random import Random

import numpy as np
import pytest
import torch
from random_searches import Stepwise, assert_same, random_config, random_requests
from small_models import GREEDY, build, make_requests, random_sources

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.engines.base import Ensemble, PlainDecoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.requests import Ids, NotFiniteError, Phrase, Request, WordEnds
from seq2seq_cli.decoding.search import native_search
from seq2seq_cli.decoding.search.native_search import can_search
from seq2seq_cli.decoding.search.scoring import score_given
from seq2seq_cli.decoding.search.search import search
from seq2seq_cli.native import library as native
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, PAD_ID

pytestmark = pytest.mark.skipif(not native.precisions(), reason="not compiled")

PRECISIONS = sorted(native.precisions())


def random_decoder(random: Random, precision: str, vocabulary: int | None = None) -> CpuDecoder:
    options = random.choice(
        [
            {},
            {"norm": "post", "tie_embeddings": True},
            {"d_model": 20, "d_ff": 30, "activation": "gelu"},
            {"positions": "rotary", "rotary_cross_attention": True},
            {"layers": {"encoder": 1, "decoder": 3}, "attention_bias": False},
        ]
    )
    vocabulary = vocabulary or random.choice((4, 5, 6, 12, 12, 70, 300))
    if vocabulary < 12:
        options.pop("tie_embeddings", None)
    return CpuDecoder(build(random.randrange(10**6), vocabulary, **options), precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("part", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_search_in_c_finds_what_the_general_search_finds(precision, part):
    for seed in range(25 * part, 25 * (part + 1)):
        random = Random(f"{precision}/{seed}")
        decoder = random_decoder(random, precision)
        config, text_of = random_config(random)
        requests = random_requests(random)
        assert can_search(requests, config)
        expected = search(Stepwise(decoder), requests, config, text_of=text_of)
        threads = random.randint(1, 3)
        found = native_search.search([decoder.native_model], requests, config, text_of, threads)
        assert_same(found, expected)
        assert_same(search(decoder, requests, config, text_of=text_of), expected)


def test_padding_within_a_source_is_skipped():
    """No tokenizer writes it; C must not read beyond the rows that it counted."""
    model = build(0)
    requests = make_requests([[5, 6, EOS_ID], [5, PAD_ID, 6, 7, EOS_ID]])
    found, expected = (
        search(decoder, requests, GREEDY) for decoder in (CpuDecoder(model), PlainDecoder(model))
    )
    assert [each[0].ids for each in found] == [each[0].ids for each in expected]
    models = [CpuDecoder(model).native_model]
    with pytest.raises(ValueError, match="padding within a target"):
        native_search.score(models, [([5, 6], [7, PAD_ID, 8])], 100)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_ensembles_in_c_find_what_the_general_search_finds(precision):
    """With members of different shapes."""
    for seed in range(10):
        random = Random(f"ensemble/{precision}/{seed}")
        vocabulary = random.choice((4, 12, 70, 300))
        count = random.choice((2, 2, 3, 5))
        decoders = [random_decoder(random, precision, vocabulary) for _ in range(count)]
        config, text_of = random_config(random)
        requests = random_requests(random)
        expected = search(Ensemble(decoders), requests, config, text_of=text_of)
        models, threads = [decoder.native_model for decoder in decoders], random.randint(1, 3)
        assert_same(native_search.search(models, requests, config, text_of, threads), expected)


def test_unlikely_tokens_of_an_ensemble_have_finite_scores():
    """Their probabilities are less than the smallest float."""
    models = [build(seed) for seed in (0, 1)]
    with torch.no_grad():
        for model in models:
            model.projection.weight.mul_(60)
    native_models = [CpuDecoder(model, "fp32").native_model for model in models]
    requests = [Request(src, 2, 2) for src in random_sources(20)]
    config = DecodingConfig(beam_size=9, n_best=9, length_penalty=0)
    found = native_search.search(native_models, requests, config)
    pairs = [
        (r.src[:-1], each.ids) for r, line in zip(requests, found, strict=True) for each in line
    ]
    expected = [sum(given.log_probs) for given in score_given(models, pairs, 4096)]
    scores = [each.score for of_line in found for each in of_line]
    assert scores == pytest.approx(expected, rel=1e-4)
    assert -torch.inf < min(scores) < -200


def test_translations_of_long_sentences_fill_several_blocks_of_the_cache():
    decoder = CpuDecoder(build(5), "fp32")
    requests = [Request(src, 120, min_length=100) for src in random_sources(3)]
    for config in (GREEDY, DecodingConfig(beam_size=4, n_best=2)):
        expected = search(Stepwise(decoder), requests, config)
        assert {len(found[0].ids) >= 100 for found in expected} == {True}
        assert_same(search(decoder, requests, config), expected)


def test_number_of_threads_and_batches_changes_no_bits():
    decoder = CpuDecoder(build(0), PRECISIONS[-1]).native_model
    requests = make_requests(random_sources(40))
    for beam_size in (1, 4):
        whole = DecodingConfig(beam_size=beam_size, n_best=beam_size)
        parts = whole.model_copy(update={"tokens_per_batch": 40})
        expected = native_search.search([decoder], requests, whole)
        for config, threads in itertools.product((whole, parts), (1, 2, 5)):
            assert native_search.search([decoder], requests, config, threads=threads) == expected


def test_a_beam_may_need_several_blocks_of_the_cache_for_one_step():
    decoder = CpuDecoder(build(2, 6), "fp32")
    requests = [Request(src, 8) for src in random_sources(3)]
    config = DecodingConfig(beam_size=70, n_best=5)
    assert_same(search(decoder, requests, config), search(Stepwise(decoder), requests, config))


def test_no_requests_have_no_translations():
    assert search(CpuDecoder(build(0), "fp32"), [], GREEDY) == []


def test_search_in_c_refuses_what_it_does_not_know():
    (plain,) = make_requests([[5, EOS_ID]])
    assert can_search([plain], GREEDY)
    for other in (
        {"sampling": True},
        {"repetition_penalty": 1.1},
        {"beam_size": 4, "diversity_groups": 2},
    ):
        assert not can_search([plain], DecodingConfig(**other))
    for constraint in (
        {"prefix": (7,)},
        {"after_prefix": WordEnds([EOS_ID])},
        {"required": (Phrase((7,), (7,)),)},
    ):
        assert not can_search([plain, *make_requests([[5, EOS_ID]], **constraint)], GREEDY)


def test_an_error_of_the_text_ends_the_search():
    """As Ctrl-C does, while C calls back."""

    def interrupt(ids: Ids) -> object:
        raise KeyboardInterrupt

    decoder, requests = CpuDecoder(build(0), "fp32"), make_requests(random_sources(40))
    for tokens_per_batch in (40, 4096):
        config = DecodingConfig(beam_size=4, n_best=2, tokens_per_batch=tokens_per_batch)
        with pytest.raises(KeyboardInterrupt):
            native_search.search([decoder.native_model], requests, config, interrupt, 2)


def test_an_error_in_one_batch_starts_no_other():
    requests = make_requests(random_sources(40))
    seen: set[int] = set()

    def fail(ids: Ids) -> object:
        seen.add(threading.get_ident())
        raise RuntimeError("a batch")

    config = DecodingConfig(beam_size=2, n_best=2, tokens_per_batch=20)
    with pytest.raises(RuntimeError, match="a batch"):
        native_search.search([CpuDecoder(build(0), "fp32").native_model], requests, config, fail, 2)
    assert threading.get_ident() not in seen


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("members", [1, 3])
def test_the_error_of_nan_names_the_sentence(beam_size, members):
    model = build(0)
    models = [CpuDecoder(build(1), "fp32").native_model for _ in range(members)]
    with torch.no_grad():
        model.src_embedding.weight[11] = 3e38
    models[members // 2] = CpuDecoder(model, "fp32").native_model
    requests = make_requests([[5, 6, 3], [5, 7, 3], [5, 11, 3], [6, 5, 3]])
    with pytest.raises(NotFiniteError, match="for line 3: "):
        native_search.search(models, requests, DecodingConfig(beam_size=beam_size))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": 1, "norm": "post"},
        {"layers": 3, "activation": "gelu", "d_model": 20},
        {"positions": "rotary", "rotary_cross_attention": True},
        {"attention_scale": "temperature", "num_features": 4},
    ],
    ids=str,
)
def test_scores_in_c_are_the_model_s(options):
    model = build(4, **options)
    decoder = CpuDecoder(model, "fp32").native_model
    targets = [[], *(ids[:-1] for ids in random_sources(20)), [7, 5] * 60]
    sources = [*(ids[:-1] for ids in random_sources(21)), []]
    pairs = list(zip(sources, targets, strict=True))
    expected = score_given([model], pairs, 4096, with_attention=True)
    for tokens_per_batch, threads in ((4096, 1), (4096, 3), (30, 2)):
        found = native_search.score(
            [decoder], pairs, tokens_per_batch, with_attention=True, threads=threads
        )
        for (log_probs, attention_TS), given in zip(found, expected, strict=True):
            assert log_probs == pytest.approx(given.log_probs, abs=1e-5)
            np.testing.assert_allclose(attention_TS, given.attention_TS, rtol=1e-4, atol=1e-6)
        without = native_search.score([decoder], pairs, tokens_per_batch, threads=threads)
        assert without == [(log_probs, None) for log_probs, _ in found]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_score_of_a_translation_is_what_the_search_reports(precision):
    decoder, requests = CpuDecoder(build(7), precision), make_requests(random_sources(10))
    config = DecodingConfig(beam_size=3, n_best=3, length_penalty=0)
    pairs, scores = [], []
    for request, hypotheses in zip(requests, search(decoder, requests, config), strict=True):
        pairs += [(request.src[:-1], hypothesis.ids) for hypothesis in hypotheses]
        scores += [hypothesis.score for hypothesis in hypotheses]
    given = native_search.score([decoder.native_model], pairs, 4096)
    assert [sum(log_probs) for log_probs, _ in given] == pytest.approx(scores, rel=1e-5)


def test_scores_of_an_ensemble_are_the_models():
    models = [build(4), build(5, d_model=20), build(6, layers=1)]
    pairs = [(src[:-1], tgt[:-1]) for src, tgt in itertools.pairwise(random_sources(20))]
    expected = score_given(models, pairs, 4096, with_attention=True)
    native_models = [CpuDecoder(model, "fp32").native_model for model in models]
    found = native_search.score(native_models, pairs, 100, with_attention=True)
    for given, other in zip(found, expected, strict=True):
        assert given.log_probs == pytest.approx(other.log_probs, abs=1e-5)
        np.testing.assert_allclose(given.attention_TS, other.attention_TS, rtol=1e-4, atol=1e-6)


def test_scores_of_nan_are_an_error():
    model = build(0)
    with torch.no_grad():
        model.decoder_norm.weight.fill_(3e38)
    with pytest.raises(NotFiniteError, match="computes NaN or infinity: "):
        native_search.score([CpuDecoder(model, "fp32").native_model], [([5], [6])], 100)
