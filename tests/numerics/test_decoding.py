import functools
import itertools
import math
import shutil
import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType, MethodType

import numpy as np
import pytest
import torch
from small_models import GREEDY, MODES, build, make_requests, random_sources
from variants import half_of_them_slow

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.engines.base import Decoder, Ensemble, PlainDecoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.requests import NEVER_OUTPUT, Hypothesis, Phrase, Request, WordEnds
from seq2seq_cli.decoding.search.beam import length_penalty
from seq2seq_cli.decoding.search.lexical_constraints import missing_tokens
from seq2seq_cli.decoding.search.scoring import score_given
from seq2seq_cli.decoding.search.search import search
from seq2seq_cli.decoding.search.top_k import top_k
from seq2seq_cli.model.positions import sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import library as native
from seq2seq_cli.native.library import precisions
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID


def naive_greedy(model: Transformer, src: list[int], max_length: int) -> list[int]:
    """Greedy search of one sentence, recomputing the whole prefix at each step."""
    output: list[int] = []
    while len(output) < max_length:
        logits = model(torch.tensor([src]), torch.tensor([[BOS_ID, *output]]))[0, -1]
        logits[list(NEVER_OUTPUT)] = -torch.inf
        token = int(logits.argmax())
        if token == EOS_ID:
            break
        output.append(token)
    return output


def ids_of(hypotheses: list[Hypothesis]) -> list[list[int]]:
    return [hypothesis.ids for hypothesis in hypotheses]


def scores_of(hypotheses: list[Hypothesis]) -> list[float]:
    return [hypothesis.score for hypothesis in hypotheses]


def best(results: list[list[Hypothesis]]) -> list[list[int]]:
    return [hypotheses[0].ids for hypotheses in results]


def decoders(model: Transformer) -> list[Decoder]:
    native = [CpuDecoder(model, "fp32")] if precisions() else []
    return [PlainDecoder(model), *native]


def phrase(*ids: int, word_ends: WordEnds | None = None) -> Phrase:
    return Phrase(ids, ids, word_ends)


def log_prob(model: Transformer, src: list[int], ids: list[int]) -> float:
    return sum(score_given([model], [(src[:-1], ids)], 100)[0].log_probs)


@pytest.mark.parametrize("seed", half_of_them_slow(range(8)))
def test_greedy_search_matches_naive_search(seed):
    model = build(seed)
    requests = make_requests(random_sources(10))
    with torch.no_grad():
        naive = [naive_greedy(model, request.src, request.max_length) for request in requests]
    for decoder in decoders(model):
        assert best(search(decoder, requests, GREEDY)) == naive


def test_random_models_end_sentences_at_different_lengths():
    lengths = set()
    for seed in range(8):
        requests = make_requests(random_sources(10))
        lengths |= {len(ids) for ids in best(search(PlainDecoder(build(seed)), requests, GREEDY))}
    assert len(lengths) > 3


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in ("gnmt", "groups") else ())
        for name in MODES
    ],
)
def test_batch_matches_single_sentences(name):
    for seed in range(2):
        model = build(seed)
        requests = make_requests(random_sources(9))
        for decoder in decoders(model):
            together = search(decoder, requests, MODES[name])
            alone = [search(decoder, [request], MODES[name])[0] for request in requests]
            for batched, single in zip(together, alone, strict=True):
                assert ids_of(batched) == ids_of(single)
                assert scores_of(batched) == pytest.approx(scores_of(single), abs=1e-4)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("options", [{}, {"norm": "post"}, {"activation": "gelu"}], ids=str)
def test_native_decoder_matches_the_plain_decoder(name, options):
    model = build(3, **options)
    requests = make_requests(random_sources(12))
    plain, *fast = (search(decoder, requests, MODES[name]) for decoder in decoders(model))
    for found in fast:
        for actual, expected in zip(found, plain, strict=True):
            assert ids_of(actual) == ids_of(expected)


class StoppedCall(threading.Thread):
    """A call in its own thread that pauses at the n-th line of the function."""

    def __init__(self, function: MethodType, arguments: tuple[int, ...], line: int) -> None:
        super().__init__()
        self._function, self._arguments, self._lines_left = function, arguments, line
        self.has_stopped, self.may_go_on = threading.Event(), threading.Event()
        self.result = np.empty(0)
        self.start()
        self.has_stopped.wait()

    def run(self) -> None:
        sys.settrace(self._trace)
        try:
            self.result = self._function(*self._arguments)
        finally:
            self.has_stopped.set()

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable | None:
        if frame.f_code is not self._function.__code__:
            return None
        if event == "line":
            self._lines_left -= 1
            if self._lines_left == 0:
                self.has_stopped.set()
                self.may_go_on.wait()
        return self._trace


@pytest.mark.skipif(not precisions(), reason="not compiled")
def test_decoder_is_thread_safe():
    """One thread pauses at any line while another one looks up a position."""
    for lines in itertools.product(range(1, 7), repeat=2):
        positions = CpuDecoder(build(0), "fp32").native_model.positions
        calls = [
            StoppedCall(positions, (length,), line)
            for length, line in zip((41, 1_001), lines, strict=True)
        ]
        for stopped in calls:
            stopped.may_go_on.set()
            stopped.join()
        for stopped, length in zip(calls, (41, 1_001), strict=True):
            expected_TD = sinusoidal_positions(0, length, 16)
            found_TD = torch.from_numpy(stopped.result[:length])
            torch.testing.assert_close(found_TD, expected_TD, atol=1e-4, rtol=0)


def all_translations(model: Transformer, src: list[int], max_length: int) -> dict:
    """Log-probabilities of all possible translations, by brute force."""
    tokens = [t for t in range(model.projection.out_features) if t not in (*NEVER_OUTPUT, EOS_ID)]
    everything = (ids for n in range(max_length + 1) for ids in itertools.product(tokens, repeat=n))
    return {ids: log_prob(model, src, list(ids)) for ids in everything}


@functools.cache
def exhaustive_search(seed: int) -> tuple[Transformer, list[int], dict]:
    """Return a random model, a source and the log-probabilities of all its translations."""
    model = build(seed, vocabulary=6)
    src = random_sources(1)[0]
    return model, src, all_translations(model, src, 4)


@pytest.mark.parametrize("formula", ["power", "gnmt"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_wide_beam_matches_exhaustive_search(formula, alpha):
    config = DecodingConfig(
        beam_size=64, n_best=5, length_penalty=alpha, length_penalty_formula=formula
    )
    for seed in range(3):
        model, src, log_probs = exhaustive_search(seed)
        scores = {
            ids: total / length_penalty(formula, alpha, len(ids) + 1)
            for ids, total in log_probs.items()
        }
        expected = sorted(scores.items(), key=lambda item: -item[1])[:5]
        for decoder in decoders(model):
            hypotheses = search(decoder, [Request(src, max_length=4)], config)[0]
            assert [tuple(hypothesis.ids) for hypothesis in hypotheses] == [
                ids for ids, _ in expected
            ]
            assert scores_of(hypotheses) == pytest.approx(
                [score for _, score in expected], abs=1e-4
            )


@pytest.mark.parametrize("prefix", [(), (7, 4, 4)], ids=str)  # no rule changes it: 4 is repeated
@pytest.mark.parametrize("name", ["beam", "gnmt", "groups"])
def test_hypothesis_score_matches_teacher_forcing(name, prefix):
    config = MODES[name].model_copy(update={"no_repeat_ngram_size": len(prefix[:1])})
    formula, alpha = config.length_penalty_formula, config.alpha
    model = build(1)
    requests = make_requests(random_sources(8), prefix=prefix)
    for request, hypotheses in zip(
        requests, search(PlainDecoder(model), requests, config), strict=True
    ):
        assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == len(hypotheses)
        assert len(hypotheses) == config.n_best or name == "groups"
        assert scores_of(hypotheses) == sorted(scores_of(hypotheses), reverse=True)
        for hypothesis in hypotheses:
            penalty = length_penalty(formula, alpha, len(hypothesis.ids) + 1)
            given = log_prob(model, request.src, hypothesis.ids) / penalty
            assert hypothesis.score == pytest.approx(given, abs=1e-4)


def naive_beam(
    model: Transformer, src: list[int], max_length: int, config: DecodingConfig
) -> list[tuple[float, list[int]]]:
    """Beam search of one sentence without a cache, which never stops before `max_length`."""
    width = config.width
    growing: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(max_length + 1):
        candidates = []
        begun = torch.tensor([[BOS_ID, *ids] for _, ids in growing])
        logits = model(torch.tensor([src] * len(growing)), begun)[:, -1]
        for (total, ids), log_probs in zip(
            growing, logits.log_softmax(dim=-1).tolist(), strict=True
        ):
            tokens = {EOS_ID} if length == max_length else {*range(len(log_probs))}
            candidates += [
                (total + log_probs[t], ids, t) for t in sorted(tokens.difference(NEVER_OUTPUT))
            ]
        candidates = sorted(candidates, key=lambda candidate: -candidate[0])[: 2 * width]
        penalty = length_penalty(config.length_penalty_formula, config.alpha, length + 1)
        finished += [(total / penalty, ids) for total, ids, t in candidates[:width] if t == EOS_ID]
        growing = [(total, [*ids, t]) for total, ids, t in candidates if t != EOS_ID][:width]
    return sorted(finished, key=lambda item: -item[0])[: config.n_best]


@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.0])
def test_beam_search_stops_only_when_no_open_hypothesis_can_win(alpha):
    """A longer hypothesis may still have the better mean, so stopping must wait for it."""
    config = DecodingConfig(beam_size=3, n_best=2, length_penalty=alpha)
    for seed in range(6):
        model = build(seed)
        src = random_sources(1)[0]
        with torch.no_grad():
            expected = naive_beam(model, src, 12, config)
        (hypotheses,) = search(PlainDecoder(model), [Request(src, max_length=12)], config)
        assert ids_of(hypotheses) == [ids for _, ids in expected]
        assert scores_of(hypotheses) == pytest.approx([score for score, _ in expected], abs=1e-4)


def test_length_penalties_match_the_published_formulas():
    assert length_penalty("power", 0.0, 7) == length_penalty("gnmt", 0.0, 7) == 1
    assert length_penalty("power", 1.0, 7) == 7
    assert length_penalty("gnmt", 0.6, 7) == pytest.approx((12 / 6) ** 0.6)


def test_nbest_translations_have_different_texts():
    """Each hypothesis is the best with its text, and the list is as long as possible."""

    def text_of(ids: list[int]) -> str:  # tokens 4 and 5 are written alike, and 6 is not written
        return "".join("ab"[token > 5] for token in ids if token != 6)

    config = DecodingConfig(beam_size=64, n_best=6)
    grouped = DecodingConfig(beam_size=64, n_best=6, diversity_groups=4)
    for seed in range(4):
        model = build(seed, vocabulary=8)
        src = random_sources(1)[0]
        scores: dict[str, float] = {}
        for ids, total in all_translations(model, src, 3).items():
            score = total / length_penalty("power", 1, len(ids) + 1)
            scores[text_of(ids)] = max(score, scores.get(text_of(ids), -math.inf))
        expected = sorted(scores.items(), key=lambda item: -item[1])[:6]
        for decoder in decoders(model):
            (hypotheses,) = search(decoder, [Request(src, 3)], config, text_of=text_of)
            assert [text_of(hypothesis.ids) for hypothesis in hypotheses] == [
                text for text, _ in expected
            ]
            assert scores_of(hypotheses) == pytest.approx([s for _, s in expected], abs=1e-4)
            (hypotheses,) = search(decoder, [Request(src, 3)], grouped, text_of=text_of)
            assert len({text_of(hypothesis.ids) for hypothesis in hypotheses}) == 6


@pytest.mark.parametrize("seed", range(6))
def test_diverse_beam_groups_differ_more_than_one_beam(seed):
    model = build(seed)
    requests = make_requests(random_sources(10))
    kinds = []
    for groups in (1, 4):
        config = DecodingConfig(
            beam_size=4, n_best=4, diversity_groups=groups, diversity_penalty=20.0
        )
        results = search(PlainDecoder(model), requests, config)
        assert all(len(set(map(tuple, ids_of(result)))) == 4 for result in results)
        kinds.append(
            sum(
                len({tuple(hypothesis.ids[:1]) for hypothesis in hypotheses})
                for hypotheses in results
            )
        )
    assert kinds[1] > kinds[0]


def test_output_length_stays_within_its_limits():
    sources = random_sources(6)
    for config in MODES.values():
        requests = [Request(s, max_length=n + 2, min_length=n) for n, s in enumerate(sources)]
        for n, hypotheses in enumerate(search(PlainDecoder(build(0)), requests, config)):
            assert all(n <= len(hypothesis.ids) <= n + 2 for hypothesis in hypotheses)


def test_special_tokens_are_never_output():
    for seed, config in itertools.product(range(2), MODES.values()):
        results = search(PlainDecoder(build(seed)), make_requests(random_sources(10)), config)
        output = {
            token for hypotheses in results for hypothesis in hypotheses for token in hypothesis.ids
        }
        assert not output & {*NEVER_OUTPUT, EOS_ID}


def test_model_that_predicts_only_eos_gives_empty_translations():
    model = build(0)
    with torch.no_grad():
        model.decoder_norm.weight.zero_()
        model.decoder_norm.bias.copy_(model.projection.weight[EOS_ID] * 100)
    for config in MODES.values():
        results = search(PlainDecoder(model), make_requests(random_sources(4)), config)
        assert best(results) == [[]] * 4


@pytest.mark.parametrize("name", ["greedy", "beam", "groups", "sampling"])
def test_vocabulary_of_one_token(name):
    model = build(0, vocabulary=5)
    for hypotheses in search(PlainDecoder(model), make_requests(random_sources(4)), MODES[name]):
        assert {token for hypothesis in hypotheses for token in hypothesis.ids} <= {4}


@pytest.mark.parametrize("name", MODES)
def test_translation_begins_with_its_prefix(name):
    requests = make_requests(random_sources(5), prefix=(7, 4, 4, 4))
    for hypotheses in search(PlainDecoder(build(2)), requests, MODES[name]):
        assert all(hypothesis.ids[:4] == [7, 4, 4, 4] for hypothesis in hypotheses)


def test_no_ngram_is_repeated():
    config = DecodingConfig(beam_size=2, n_best=2, no_repeat_ngram_size=2)
    requests = [Request(src, 30, min_length=20) for src in random_sources(6)]
    for hypotheses in search(PlainDecoder(build(5)), requests, config):
        for hypothesis in hypotheses:
            grams = list(itertools.pairwise(hypothesis.ids))
            assert len(set(grams)) == len(grams)


def test_repetition_penalty_reduces_repetition():
    requests = [Request(src, 12, min_length=12) for src in random_sources(8)]
    kinds = []
    for penalty in (1.0, 5.0):
        outputs = best(
            search(PlainDecoder(build(5)), requests, DecodingConfig(repetition_penalty=penalty))
        )
        kinds.append(sum(len(set(ids)) for ids in outputs))
    assert kinds[1] > kinds[0]


def test_required_phrases_appear_in_the_translation():
    config = DecodingConfig(beam_size=5)
    required = (phrase(9, 5), phrase(11))
    for seed in range(4):
        requests = make_requests(random_sources(6), required=required)
        free = make_requests([request.src for request in requests])
        for decoder in decoders(build(seed)):
            for ids in best(search(decoder, requests, config)):
                text = ",".join(map(str, ids))
                assert "9,5" in text and "11" in text
        mixed = search(PlainDecoder(build(seed)), [requests[0], *free[1:]], config)
        alone = search(PlainDecoder(build(seed)), free, config)
        assert best(mixed)[1:] == best(alone)[1:]  # others do not notice


def test_missing_tokens_of_required_phrases():
    phrases = [phrase(1, 2, 3), phrase(4)]
    assert missing_tokens([], phrases) == (4, [1, 4])
    assert missing_tokens([9, 1], phrases) == (3, [2])
    assert missing_tokens([9, 1, 2, 3], phrases) == (1, [4])
    assert missing_tokens([4, 1, 2, 3], phrases) == (0, [])
    assert missing_tokens([1, 2, 9], phrases) == (4, [1, 4])
    whole = [phrase(1, 2, word_ends=WordEnds([3, 7]))]
    assert missing_tokens([1, 2], whole) == (0, [])  # the translation may end here
    assert missing_tokens([1, 2, 7], whole) == (0, [])
    assert missing_tokens([1, 2, 8], whole) == (2, [1])  # the word has gone on
    assert missing_tokens([1, 2, 8, 1, 2, 3], whole) == (0, [])
    spaceless = [Phrase(first=(5, 6), inner=(6,))]
    assert missing_tokens([], spaceless) == (2, [5])
    assert missing_tokens([9], spaceless) == (1, [6])
    assert missing_tokens([5], spaceless) == (1, [6])
    assert missing_tokens([9, 6], spaceless) == missing_tokens([5, 6], spaceless) == (0, [])


def test_required_words_are_not_extended():
    """The model prefers to continue the word, but the search also tries to end it."""
    ends = WordEnds([EOS_ID, 8, 9, 10, 11])
    config = DecodingConfig(beam_size=4)
    for seed in range(8):
        requests = make_requests(random_sources(6), required=(phrase(6, 5, word_ends=ends),))
        for decoder in decoders(build(seed)):
            for ids in best(search(decoder, requests, config)):
                triples = zip(ids, ids[1:], [*ids[2:], EOS_ID], strict=False)
                assert any((a, b) == (6, 5) and c in ends.tokens for a, b, c in triples), ids


@pytest.mark.parametrize("name", MODES)
def test_word_ends_after_the_prefix_if_requested(name):
    ends = WordEnds([EOS_ID, 9, 10])
    requests = make_requests(random_sources(5), prefix=(7, 4), after_prefix=ends)
    for hypotheses in search(PlainDecoder(build(2)), requests, MODES[name]):
        for hypothesis in hypotheses:
            assert hypothesis.ids[:2] == [7, 4]
            assert {*hypothesis.ids[2:3]} <= ends.tokens


def sampling_distribution(logits: torch.Tensor, options: dict[str, float]) -> dict[int, float]:
    """The most probable tokens until top_k or top_p is reached, renormalized."""
    scaled = logits / options.get("temperature", 1.0)
    kept: dict[int, float] = {}
    for token in scaled.argsort(descending=True).tolist():
        if len(kept) < options.get("top_k", 99) and sum(kept.values()) < options.get("top_p", 1):
            kept[token] = float(scaled.softmax(dim=-1)[token])
    return {token: probability / sum(kept.values()) for token, probability in kept.items()}


@pytest.mark.parametrize(
    "options",
    [{}, {"top_k": 3}, {"top_p": 0.7}, {"temperature": 3.0}, {"temperature": 0.5}],
    ids=str,
)
def test_sampling_follows_the_model_and_its_options(options):
    model = build(0)
    source = random_sources(1)[0]
    many = [Request(source, max_length=1, number=number) for number in range(4_000)]
    config = DecodingConfig(sampling=True, **options)
    samples = [ids[0] if ids else EOS_ID for ids in best(search(PlainDecoder(model), many, config))]
    logits = model(torch.tensor([source]), torch.tensor([[BOS_ID]]))[0, 0].detach()
    logits[list(NEVER_OUTPUT)] = -torch.inf
    expected = sampling_distribution(logits, options)
    assert {*samples} <= {token for token, probability in expected.items() if probability > 0}
    for token, probability in expected.items():
        assert samples.count(token) / len(many) == pytest.approx(probability, abs=0.03)


def test_sampling_depends_on_seed_and_line_number():
    model = build(0)
    source = random_sources(1)[0]
    requests = [Request(source, max_length=9, min_length=5, number=n) for n in range(50)]

    def sample(seed: int = 1, **changed: int) -> list[list[int]]:
        config = DecodingConfig(sampling=True, seed=seed)
        given = [replace(request, **changed) for request in requests]
        return best(search(PlainDecoder(model), given, config))

    first = sample()
    assert first == sample() != sample(seed=2)
    assert len({tuple(ids) for ids in first}) > 40  # the lines are equal, their numbers are not
    assert len({tuple(ids) for ids in sample(number=7)}) == 1
    assert first != sample(segment=1)


def test_sampling_ends_where_the_rules_leave_no_token():
    config = DecodingConfig(sampling=True, no_repeat_ngram_size=1)
    request = Request(random_sources(1)[0], max_length=60, min_length=50, number=0)
    (ids,) = best(search(PlainDecoder(build(0)), [request], config))
    assert len(ids) == len({*ids}) < 50
    assert PAD_ID not in ids


def test_sampling_only_the_most_probable_token_is_greedy_search():
    requests = make_requests(random_sources(10))
    decoder = PlainDecoder(build(0))
    greedy = best(search(decoder, requests, GREEDY))
    for options in ({"top_k": 1}, {"top_p": 1e-46}, {"temperature": 1e-4}):
        assert best(search(decoder, requests, DecodingConfig(sampling=True, **options))) == greedy


def test_ensemble_averages_probabilities():
    first, second = build(0), build(1)
    src = torch.tensor([[5, 6, EOS_ID]])
    last = torch.tensor([[BOS_ID]])
    with torch.inference_mode():
        both = Ensemble([PlainDecoder(first), decoders(second)[-1]]).start(src).logits(last)
        each = [
            PlainDecoder(model).start(src).logits(last).softmax(-1) for model in (first, second)
        ]
    expected = (each[0] + each[1]) / 2
    torch.testing.assert_close(both.softmax(-1)[..., :12], expected, atol=1e-5, rtol=1e-4)
    requests = make_requests(random_sources(5))
    twins = search(Ensemble([PlainDecoder(first)] * 2), requests, MODES["beam"])
    assert best(twins) == best(search(PlainDecoder(first), requests, MODES["beam"]))


def test_an_ensemble_in_an_ensemble_counts_as_its_members():
    first, second, third = (PlainDecoder(build(seed)) for seed in (0, 1, 2))
    assert Ensemble([Ensemble([first, second]), third]).decoders == [first, second, third]


def test_ensemble_scores_its_own_translations():
    """The order of the models does not matter."""
    first, second = models = build(0), build(1)
    requests = make_requests(random_sources(8))
    config = DecodingConfig(beam_size=3, n_best=2, length_penalty=0.0)
    results = search(Ensemble([PlainDecoder(model) for model in models]), requests, config)
    pairs = [(r.src[:-1], h.ids) for r, nbest in zip(requests, results, strict=True) for h in nbest]
    forward, backward = (
        score_given(members, pairs, 100, with_attention=True)
        for members in (models, (second, first))
    )
    scores = [hypothesis.score for nbest in results for hypothesis in nbest]
    assert [sum(given.log_probs) for given in forward] == pytest.approx(scores, abs=1e-4)
    for given, reverse in zip(forward, backward, strict=True):
        assert given.log_probs == pytest.approx(reverse.log_probs, abs=1e-5)
        np.testing.assert_allclose(given.attention_TS, reverse.attention_TS, rtol=1e-5)
    alone = score_given([first], pairs, 100)
    assert [given.log_probs for given in forward] != [given.log_probs for given in alone]


@pytest.mark.parametrize("size", [5, 64, 640, 8_000])
@pytest.mark.parametrize("k", [1, 2, 10])
def test_two_stage_top_k_matches_topk(size, k):
    torch.manual_seed(size + k)
    logits = torch.randn(3, 2, size)
    logits[0, 0, : size // 2] = -torch.inf
    actual, tokens = top_k(logits, k)
    expected = logits.topk(min(k, size))
    assert torch.equal(actual, expected.values)
    assert torch.equal(logits.gather(-1, tokens), expected.values)


def test_cpu_decoder_is_compiled_where_supported():
    """Otherwise its tests would be skipped unnoticed."""
    info = Path("/proc/cpuinfo")
    compiler = shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0])
    if compiler and info.exists() and "avx512_vnni" in info.read_text():
        assert {"fp32", "int8"} <= native.precisions()


def test_plain_decoder_in_bf16_is_close_to_fp32():
    model = build(0)
    src, last = torch.tensor([[5, 6, EOS_ID]]), torch.tensor([[BOS_ID]])
    with torch.inference_mode():
        exact, close = (
            PlainDecoder(model, "bf16" if use_bf16 else "fp32").start(src).logits(last)
            for use_bf16 in (False, True)
        )
    assert 0 < (close - exact).norm() < 0.05 * exact.norm()


def test_given_translations_get_the_log_probs_of_the_model():
    model = build(0)
    pairs = [([5, 6], [7, 8, 9]), ([4], []), ([9, 9, 9], [10])]
    for (src, tgt), given in zip(
        pairs, score_given([model], pairs, 8, with_attention=True), strict=True
    ):
        logits = model(torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]]))[0]
        expected = logits.log_softmax(-1)[range(len(tgt) + 1), [*tgt, EOS_ID]]
        assert given.log_probs == pytest.approx(expected.tolist(), abs=1e-5)
        assert given.attention_TS.shape == (len(tgt), len(src))
        np.testing.assert_allclose(given.attention_TS.sum(-1), np.ones(len(tgt)), rtol=1e-5)


def test_alignment_is_the_mean_attention_of_the_last_layer_but_one():
    model = build(0, layers={"encoder": 1, "decoder": 3})
    src, tgt = [5, 6, 7], [8, 9]
    (given,) = score_given([model], [(src, tgt)], 100, with_attention=True)
    src_BS, tgt_in_BT = torch.tensor([[*src, EOS_ID]]), torch.tensor([[BOS_ID, *tgt]])
    weights_BHTS = model.attention_weights(src_BS, tgt_in_BT).cross[1]
    weights_TS = weights_BHTS.mean(dim=1)[0, :2, :3]  # without EOS
    expected_TS = weights_TS / weights_TS.sum(-1, keepdim=True)
    np.testing.assert_allclose(given.attention_TS, expected_TS.detach(), rtol=1e-5)
