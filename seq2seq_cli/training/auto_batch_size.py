"""Resolves `training.tokens_per_batch: auto`: as many tokens as memory holds.

The longest sentences are tried. On a GPU, batches grow until one runs out of memory. On a CPU,
Linux would kill the process instead; so two small batches are measured in a process of their own,
and the memory of larger ones is extrapolated linearly.
"""

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from seq2seq_cli.config.schema import FEWEST_BATCHES, MOST_TOKENS, Config
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.data.token_store import TokenStore
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import peak_memory, retain_freed_pages
from seq2seq_cli.model.device import choose_bf16, choose_device
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.processes import ProcessDiedError, call_in_new_process
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizers
from seq2seq_cli.training.checkpoints.averaging import Ema
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.oom import free_memory
from seq2seq_cli.training.optimizers.optimizer import build_optimizer
from seq2seq_cli.training.parallel.distributed import Ranks
from seq2seq_cli.training.step import accumulate_gradients

logger = logging.getLogger(__name__)

_USED = 0.9  # share of the largest batch that fits
_USED_ON_CPU = 0.75  # share of free memory; the rest is for fragmentation and validation
_MEASURED_TOKENS = 1_024  # in the smaller batch that is measured on a CPU
_LARGER_IF_SAMPLED = 1.25  # largest batch with subword sampling, whose lengths vary
_LARGER = 4  # the larger batch has this many times as many


def find_tokens_per_batch(
    config: Config,
    tokenizers: Tokenizers,
    store: TokenStore,
    drawn: Sequence[int],
    num_processes: int,
    available_memory: Callable[[], int],
) -> Config:
    """Return the config with a number in place of `training.tokens_per_batch: auto`.

    `drawn` is how many pairs an epoch draws from each corpus. The model that is tried is discarded.
    Raises UserError if not even one pair for each process fits into memory.
    """
    if config.training.tokens_per_batch != "auto":
        return config
    logger.info("looking for the largest tokens_per_batch that fits into memory")
    device = choose_device(config.training.device)
    longest = max(store.facts.src.longest, store.facts.tgt.longest)
    most = max(longest, min(MOST_TOKENS, _positions(store, drawn) // FEWEST_BATCHES))
    model = TrialModel(
        config, len(tokenizers.src), len(tokenizers.tgt), tokenizers.is_shared, longest
    )
    used = _USED / (_LARGER_IF_SAMPLED if config.training.subword_sampling.is_on else 1)
    wanted = math.ceil(most / used / (longest * num_processes))  # sentences of each process
    if device.type == "cuda":
        sentences = sentences_on_gpu(model, device, wanted)
        free_memory()
    else:
        available = int(_USED_ON_CPU * available_memory() / num_processes)
        sentences = in_own_process(model, wanted, available)
    if sentences == 0:
        raise UserError(
            f"training.tokens_per_batch: auto: not even one pair of {longest:,} tokens fits into "
            "memory; lower data.max_length, or make the model smaller (model.layers, d_model, d_ff)"
        )
    limited = sentences < wanted
    tokens = max(longest, int(used * sentences * longest * num_processes)) if limited else most
    logger.info(f"training.tokens_per_batch {tokens:,}" + (", as memory allows" if limited else ""))
    training = config.training.model_copy(update={"tokens_per_batch": tokens})
    return config.model_copy(update={"training": training})


def _positions(store: TokenStore, drawn: Sequence[int]) -> int:
    """Return the number of positions of the longer sides of the pairs of an epoch."""
    ends = np.cumsum([0, *store.sizes]).tolist()
    lengths = [store.length_counts(start, end) for start, end in itertools.pairwise(ends)]
    sums = [int(np.dot(np.maximum(corpus.src, corpus.tgt), corpus.counts)) for corpus in lengths]
    return round(sum(n * d / max(1, s) for n, d, s in zip(sums, drawn, store.sizes, strict=True)))


@dataclass(frozen=True)
class TrialModel:
    """The properties of model and text that the memory of an update depends on."""

    config: Config
    src_vocab: int
    tgt_vocab: int
    is_shared: bool
    longest: int  # tokens of both sides


class Trial:
    """Updates of a model of the same shape as the one to train, with the longest sentences."""

    def __init__(self, model: TrialModel, device: torch.device) -> None:
        training, sides = model.config.training, (model.src_vocab, model.tgt_vocab)
        transformer = Transformer(model.config.model, *sides, model.is_shared, PAD_ID).to(device)
        use_bf16 = choose_bf16(training.precision, device)
        self._loss = BatchLoss(
            transformer,
            training.label_smoothing,
            use_bf16,
            training.compile,
            training.consistency,
        )
        self._optimizer = build_optimizer(transformer, training)
        if training.ema_decay is not None:
            self._ema = Ema(transformer, training.ema_decay)  # only for its memory
        self._longest = model.longest

    def fits(self, sentences: int) -> bool:
        """Return True if an update of this many sentences fits into memory."""
        ids_BT = torch.full((sentences, self._longest), EOS_ID)
        num_tokens = ids_BT.numel()
        batch = Batch(ids_BT, torch.full_like(ids_BT, BOS_ID), ids_BT, num_tokens, num_tokens)
        self._optimizer.zero_grad(set_to_none=True)
        _, failed = accumulate_gradients(self._loss, [batch], num_tokens, Ranks())
        if failed is None:
            self._optimizer.step()
            return True
        self._optimizer.zero_grad(set_to_none=True)
        free_memory()
        return False


def sentences_on_gpu(model: TrialModel, device: torch.device, wanted: int) -> int:
    """Return how many of the longest sentences a batch can have, up to `wanted`, by trying."""
    try:
        trial = Trial(model, device)
        trial.fits(1)  # allocates the optimizer's state, beside which the batches must fit
    except torch.OutOfMemoryError:
        return 0
    return largest_that_fits(trial.fits, wanted)


def largest_that_fits(fits: Callable[[int], bool], wanted: int) -> int:
    """Return the largest number that fits, within 5 %, by doubling and bisection, or 0."""
    low, high = 0, 1
    while fits(high):
        if high == wanted:
            return wanted
        low, high = high, min(2 * high, wanted)
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def in_own_process(model: TrialModel, wanted: int, available: int) -> int:
    """Call `sentences_on_cpu` in a new process, whose peak memory is not that of this one."""
    try:
        return call_in_new_process(partial(sentences_on_cpu, model, wanted, available))
    except ProcessDiedError:  # out of memory: Linux killed it
        return 0


def sentences_on_cpu(model: TrialModel, wanted: int, available: int) -> int:
    """Return how many of the longest sentences fit into the available bytes, up to `wanted`."""
    retain_freed_pages()
    before = peak_memory()
    trial = Trial(model, torch.device("cpu"))

    def needed(sentences: int) -> int:
        trial.fits(sentences)
        return peak_memory() - before

    few = min(wanted, max(1, _MEASURED_TOKENS // model.longest))
    trial.fits(few)  # allocates the optimizer's state, which is then there from the start
    bytes_of_few = needed(few)
    if bytes_of_few > available:
        return 0
    more = min(_LARGER * few, wanted, few * available // bytes_of_few)
    if more <= few:
        return more
    bytes_each = max(1.0, (needed(more) - bytes_of_few) / (more - few))
    return min(wanted, few + int((available - bytes_of_few) / bytes_each))
