"""Resolves `training.tokens_per_batch: auto`: as many tokens as memory holds.

The longest sentences are tried. On a GPU, batches grow until one runs out of memory. On a CPU,
where Linux would kill the process, another one measures two small batches, for extrapolation.
"""

import itertools
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from seq2seq_cli.config.schema import FEWEST_BATCHES, MOST_TOKENS, Config, TrainingConfig
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.data.token_store import TokenStore
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import peak_memory, retain_freed_pages
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.processes import ProcessDiedError, call_in_new_process
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID
from seq2seq_cli.training.checkpoints.averaging import Ema
from seq2seq_cli.training.losses.consistency import build_loss
from seq2seq_cli.training.oom import free_memory
from seq2seq_cli.training.optimizers.muon import MuonWithAdamW
from seq2seq_cli.training.optimizers.optimizer import build_optimizer
from seq2seq_cli.training.step import accumulate_gradients

logger = logging.getLogger(__name__)

_USED = 0.9  # share of the largest batch that fits
_USED_ON_CPU = 0.75  # share of free memory; the rest is for fragmentation and validation
_MEASURED_TOKENS = 1_024  # in the smaller batch that is measured on a CPU
_TIMES_LARGER = 4  # how many times as many the larger one has
_LARGER_IF_SAMPLED = 1.25  # size of the largest batch with subword sampling, whose lengths vary


def find_tokens_per_batch(
    config: Config,
    build_model: Callable[[], Transformer],
    store: TokenStore,
    drawn: Sequence[int],
    num_processes: int,
    available_memory: Callable[[], int],
) -> Config:
    """Return the config with a number in place of `training.tokens_per_batch: auto`.

    `drawn`: pairs that an epoch draws from each corpus. `build_model` can be pickled. Raises
    UserError if not even one pair for each process fits into memory.
    """
    if config.training.tokens_per_batch != "auto":
        return config
    logger.info("looking for the largest tokens_per_batch that fits into memory")
    device = choose_device(config.training.device)
    longest = max(store.facts.src.longest, store.facts.tgt.longest)
    positions = 0.0  # of the longer sides of the pairs of an epoch
    ends = np.cumsum([0, *store.sizes]).tolist()
    for (start, end), count in zip(itertools.pairwise(ends), drawn, strict=True):
        src, tgt, counts = store.length_counts(start, end)
        positions += int(np.dot(np.maximum(src, tgt), counts)) * count / max(1, end - start)
    most = max(longest, min(MOST_TOKENS, round(positions) // FEWEST_BATCHES))
    model = TrialModel(build_model, config.training, longest)
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
    tokens, why = most, ""
    if sentences < wanted:
        tokens = max(longest, int(used * sentences * longest * num_processes))
        why = ", as memory allows"
    logger.info(f"training.tokens_per_batch {tokens:,}{why}")
    return config.updated(training={"tokens_per_batch": tokens})


class TrialModel(NamedTuple):
    """The properties of model and text that the memory of an update depends on."""

    build: Callable[[], Transformer]
    training: TrainingConfig
    longest: int  # tokens of both sides


def make_trial(trial: TrialModel, device: torch.device) -> Callable[[int], bool]:
    """Return a function that makes an update with so many longest sentences; False: no memory."""
    training, model = trial.training, trial.build().to(device)
    batch_loss = build_loss(model, training, device)
    optimizer = build_optimizer(model, training)
    if isinstance(optimizer, MuonWithAdamW):
        optimizer.is_alone = True  # the other processes wait until the size is known
    ema = None if training.ema_decay is None else Ema(model, training.ema_decay)

    def fits(sentences: int) -> bool:
        assert ema is None or ema.weights, "it stays in memory"
        ids_BT = torch.full((sentences, trial.longest), EOS_ID)
        num_tokens = ids_BT.numel()
        batch = Batch(ids_BT, torch.full_like(ids_BT, BOS_ID), ids_BT, num_tokens, num_tokens)
        optimizer.zero_grad(set_to_none=True)
        _, failed = accumulate_gradients(batch_loss, [batch], num_tokens)
        if failed is None:
            optimizer.step()
        else:
            optimizer.zero_grad(set_to_none=True)
            free_memory()
        return failed is None

    return fits


def sentences_on_gpu(model: TrialModel, device: torch.device, wanted: int) -> int:
    """Return how many of the longest sentences a batch can have, up to `wanted`, by trying."""
    try:
        fits = make_trial(model, device)
        fits(1)  # allocates the optimizer's state, which must fit together with the batches
    except torch.OutOfMemoryError:
        return 0
    return largest_that_fits(fits, wanted)


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
    """Call `sentences_on_cpu` in a new process, which has a peak memory of its own."""
    try:
        return call_in_new_process(partial(sentences_on_cpu, model, wanted, available))
    except ProcessDiedError:  # out of memory: Linux killed it
        return 0


def sentences_on_cpu(model: TrialModel, wanted: int, available: int) -> int:
    """Return how many of the longest sentences fit into the available bytes, up to `wanted`."""
    retain_freed_pages()
    before = peak_memory()
    fits = make_trial(model, torch.device("cpu"))
    few = min(wanted, max(1, _MEASURED_TOKENS // model.longest))
    for _ in range(2):  # the first update allocates the state of the optimizer
        fits(few)
    bytes_of_few = peak_memory() - before
    if bytes_of_few > available:
        return 0
    more = min(_TIMES_LARGER * few, wanted, few * available // bytes_of_few)
    if more <= few:
        return more
    fits(more)
    bytes_each = max(1.0, (peak_memory() - before - bytes_of_few) / (more - few))
    return min(wanted, few + int((available - bytes_of_few) / bytes_each))
