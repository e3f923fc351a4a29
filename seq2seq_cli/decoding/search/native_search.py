"""Greedy and beam search in C, for all that most people ask of a search; PyTorch is not needed.

M models, B sentences, S source positions, N translations of each, T target positions, P of all.
"""

import contextlib
import ctypes
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import addressof, byref
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.data.batch_plan import bucket_by_length, pad_rows
from seq2seq_cli.decoding.engines.native_model import NativeModel
from seq2seq_cli.decoding.given_score import GivenScore, normalized_rows
from seq2seq_cli.decoding.requests import (
    IMPOSSIBLE,
    NEVER_OUTPUT,
    Hypothesis,
    Ids,
    Request,
    not_finite,
)
from seq2seq_cli.native import library as native
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer

_MOST_TOKENS = 1_024  # in a batch: keys and values of more do not stay in the processor's cache

Array = NDArray[Any]
Item = TypeVar("Item")
Result = TypeVar("Result")
Models = Sequence[NativeModel]  # one model, or the members of an ensemble


def can_search(requests: Iterable[Request], config: DecodingConfig) -> bool:
    """Whether the search in C knows everything that is asked for."""
    if config.sampling or config.diversity_groups > 1 or config.repetition_penalty != 1:
        return False
    if config.banned_words:
        return False
    return not any(r.prefix or r.after_prefix or r.required for r in requests)


def key_of_text(config: DecodingConfig, tokenizer: Tokenizer) -> Callable[[Ids], object]:
    """Return the function by which the translations of a beam differ: their text."""
    return tokenizer.to_text if config.n_best > 1 else tuple


def search(
    models: Models,
    requests: Sequence[Request],
    config: DecodingConfig,
    text_of: Callable[[Ids], object] = tuple,
    threads: int = 1,
) -> list[list[Hypothesis]]:
    """As search/search.py: search, for requests that `can_search` accepts.

    Several models, which read sources in the same way, search with the mean of their probabilities.
    """
    lengths = [len(request.src) for request in requests]
    most = min(config.tokens_per_batch, _MOST_TOKENS)
    batches = bucket_by_length(lengths, lengths, most // config.width)
    work = functools.partial(_search_batch, models, config, text_of)
    return _in_order(requests, batches, work, threads)


def _in_order(
    items: Sequence[Item],
    batches: Sequence[Array],
    work: Callable[[Sequence[Item], int], Sequence[Result]],
    threads: int,
) -> list[Result]:
    """Return the results for all items, batches of whose numbers `threads` work on.

    Each thread has batches of its own, but a single batch has all threads; so has every batch when
    no thread can start, as at the end of the program.
    """
    count = min(threads, len(batches))
    batched = [[items[i] for i in numbers.tolist()] for numbers in batches]
    found: Iterable[Sequence[Result]] = (work(batch, threads) for batch in batched)
    if count > 1:
        with ThreadPoolExecutor(count) as pool:  # which starts no other batch after an error
            with contextlib.suppress(RuntimeError):  # no thread can start
                found = pool.map(work, batched, itertools.repeat(1))
            found = list(found)
    numbers, results = itertools.chain(*batches), itertools.chain(*found)
    by_number = dict(zip(numbers, results, strict=True))
    return [by_number[number] for number in range(len(by_number))]


def _search_batch(
    models: Models,
    config: DecodingConfig,
    text_of: Callable[[Ids], object],
    requests: Sequence[Request],
    threads: int,
) -> list[list[Hypothesis]]:
    min_lengths_B = np.array([request.min_length for request in requests], dtype=np.int64)
    max_lengths_B = np.array([request.max_length for request in requests], dtype=np.int64)
    sources = _Sources(models[0], [request.src for request in requests])
    sources.structure.min_lengths = min_lengths_B.ctypes.data
    sources.structure.max_lengths = max_lengths_B.ctypes.data
    texts = _Texts(text_of)
    never = NEVER_OUTPUT[:-1] if config.replace_unk else NEVER_OUTPUT
    forbidden_N = np.array(never, dtype=np.int64)
    options = native.SearchOptions(
        *(PAD_ID, BOS_ID, EOS_ID),
        beam=config.width,
        n_best=config.n_best,
        is_gnmt=config.length_penalty_formula == "gnmt",
        alpha=config.alpha,
        ngram=config.no_repeat_ngram_size,
        num_forbidden=len(forbidden_N),
        forbidden=forbidden_N.ctypes.data,
    )
    if config.n_best > 1:
        options.text_of = native.TextOf(texts.number_of)
    longest, shape_BN = int(max_lengths_B.max()), (len(requests), config.n_best)
    counts_B, lengths_BN = np.zeros(len(requests), np.int32), np.empty(shape_BN, np.int32)
    ids_BNT, scores_BN = np.empty((*shape_BN, longest), np.int32), np.empty(shape_BN, np.float64)
    arrays = (counts_B, lengths_BN, ids_BNT, scores_BN)
    found = native.Found(longest, *(array.ctypes.data for array in arrays))
    positions = [model.positions(max(sources.structure.longest, longest + 1)) for model in models]
    structures = (native.Model * len(models))(
        *(
            native.Model(addressof(model.encoder), addressof(model.decoder), table.ctypes.data)
            for model, table in zip(models, positions, strict=True)
        )
    )
    status = native.library().search(
        structures,
        len(models),
        byref(options),
        byref(sources.structure),
        byref(found),
        threads,
    )
    if texts.error is not None:
        raise texts.error
    _check(status, requests[found.failed].number)
    return [
        [Hypothesis(ids_NT[n, : lengths_N[n]].tolist(), float(scores_N[n])) for n in range(count)]
        or [Hypothesis([], IMPOSSIBLE)]
        for count, lengths_N, ids_NT, scores_N in zip(*arrays, strict=True)
    ]


def score(
    models: Models,
    pairs: Sequence[tuple[Ids, Ids]],
    tokens_per_batch: int,
    *,
    with_attention: bool = False,
    threads: int = 1,
) -> list[GivenScore]:
    """As search/scoring.py: score_given, in the precision of the models."""
    src_lengths, tgt_lengths = ([len(pair[side]) + 1 for pair in pairs] for side in (0, 1))
    batches = bucket_by_length(src_lengths, tgt_lengths, tokens_per_batch)
    work = functools.partial(_score_batch, models, with_attention)
    return _in_order(pairs, batches, work, threads)


def _score_batch(
    models: Models, with_attention: bool, pairs: Sequence[tuple[Ids, Ids]], threads: int
) -> list[GivenScore]:
    sources = _Sources(models[0], [[*src, EOS_ID] for src, _ in pairs])
    longest = sources.structure.longest
    ids_BT = pad_rows([[*tgt, EOS_ID] for _, tgt in pairs], PAD_ID)
    lengths = [len(tgt) + 1 for _, tgt in pairs]
    rows = sum(lengths)
    if np.count_nonzero(ids_BT != PAD_ID) != rows:
        raise ValueError("padding within a target")
    log_probs_MP = np.empty((len(models), rows), np.float32)
    attention_MPS = np.zeros((len(models), rows, longest if with_attention else 0), np.float32)
    for number, model in enumerate(models):
        targets = native.Targets(
            *(PAD_ID, BOS_ID),
            longest=ids_BT.shape[1],
            rows=rows,
            ids=ids_BT.ctypes.data,
            log_probs=log_probs_MP[number].ctypes.data,
            attention=attention_MPS[number].ctypes.data if with_attention else None,
        )
        positions = model.positions(max(longest, ids_BT.shape[1]))
        status = native.library().score(
            byref(model.encoder),
            byref(model.decoder),
            positions.ctypes.data,
            byref(sources.structure),
            byref(targets),
            threads,
        )
        _check(status)
    if not np.isfinite(log_probs_MP).all():
        raise not_finite()
    log_probs_P = np.logaddexp.reduce(log_probs_MP) - math.log(len(models))
    mean_PS = np.mean(attention_MPS, axis=0)
    scores: list[GivenScore] = []
    ends = np.cumsum(lengths)
    for (src, _), start, end in zip(pairs, ends - lengths, ends, strict=True):
        attention_TS = mean_PS[start : end - 1, : len(src)]  # without EOS of source and target
        given = normalized_rows(attention_TS) if with_attention else None
        scores.append(GivenScore(log_probs_P[start:end].tolist(), given))
    return scores


class _Sources:
    """The structure of some sources, and the arrays that it points to."""

    def __init__(self, model: NativeModel, sources: Sequence[Ids]) -> None:
        if not model.source_eos:  # as model/layers.py: without_eos
            sources = [ids[:-1] or ids for ids in sources]  # one of EOS alone keeps it
        self._ids_BS = pad_rows(sources, PAD_ID)
        self._places_BS = model.places(self._ids_BS)
        self.structure = native.Sources(
            count=len(sources),
            longest=self._ids_BS.shape[1],
            rows=np.count_nonzero(self._ids_BS != PAD_ID),
            ids=self._ids_BS.ctypes.data,
            places=None if self._places_BS is None else self._places_BS.ctypes.data,
        )


class _Texts:
    """Gives every text a number."""

    def __init__(self, text_of: Callable[[Ids], object]) -> None:
        self._text_of = text_of
        self._numbers: dict[object, int] = {}
        self.error: BaseException | None = None

    def number_of(self, ids: "ctypes._Pointer[ctypes.c_int32]", length: int) -> int:
        try:
            return self._numbers.setdefault(self._text_of(ids[:length]), len(self._numbers))
        except BaseException as error:  # C cannot raise it
            self.error = error
            return -1


def _check(status: int, number: int | None = None) -> None:
    """Raise what a function in C reports; `number`: of the sentence it concerns."""
    if status == native.NO_MEMORY:
        raise MemoryError
    if status == native.NOT_FINITE:
        raise not_finite(number)
