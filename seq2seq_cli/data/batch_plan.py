"""The pairs of an epoch, in batches of similar lengths and at most `tokens_per_batch` tokens."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seq2seq_cli.data.tokenization import Ids

Indices = npt.NDArray[np.int32]
Plan = list[Indices]  # for every batch the indices of its pairs


def pairs_per_epoch(
    sizes: Sequence[int], weights: Sequence[float], temperature: float | None
) -> list[int]:
    """Return how many pairs an epoch draws from each corpus, given their sizes; at least one.

    That is weight · n for a corpus of n pairs. With a temperature T it is a share of all pairs, in
    proportion to n^(1/T) (Arivazhagan et al. 2019, section 4.2); T = 1 draws every pair once.
    """
    if temperature is None:
        wanted = [weight * size for weight, size in zip(weights, sizes, strict=True)]
    else:
        powers = [size ** (1 / temperature) for size in sizes]
        wanted = [power / sum(powers) * sum(sizes) for power in powers]
    return [max(1, round(count)) if size else 0 for count, size in zip(wanted, sizes, strict=True)]


def pairs_of_epoch(
    sizes: Sequence[int], drawn: Sequence[int], seed: int, epoch: int
) -> Indices | None:
    """Return the pairs of an epoch, which counts from 1, with repetitions; None for all pairs once.

    A corpus is gone through in passes of its own, each in another random order, and every epoch
    takes its next `drawn` pairs. The pairs depend on the arguments alone.
    """
    if list(drawn) == list(sizes):
        return None
    parts: list[Indices] = []
    start = 0
    for number, (size, count) in enumerate(zip(sizes, drawn, strict=True)):
        first, length = (epoch - 1) * count, max(1, size)
        for turn in range(first // length, -(-(first + count) // length)):
            order = np.random.default_rng([seed, number, turn]).permutation(size)
            begin, end = first - turn * size, first + count - turn * size
            parts.append((start + order[max(0, begin) : end]).astype(np.int32))
        start += size
    return np.sort(np.concatenate(parts))


def plan_epoch(
    src_lengths: Ids,
    tgt_lengths: Ids,
    tokens_per_batch: int,
    seed: int,
    epoch: int,
    pairs: Indices | None = None,
    pairs_per_batch: int | None = None,
) -> Plan:
    """Return batches of pairs of similar length in random order, purely from the arguments.

    Pairs whose longer sides are equally long are shuffled regardless of their other sides: meeting
    different pairs in every epoch is worth more than less padding. The longer side of a batch of
    several has at most `tokens_per_batch` tokens with padding. Each pair appears once.
    """
    generator = np.random.default_rng([seed, epoch])
    if pairs is None:
        pairs = np.arange(len(src_lengths), dtype=np.int32)
    longer_sides = np.maximum(src_lengths, tgt_lengths)
    shuffled = generator.permutation(pairs)
    order = shuffled[np.argsort(longer_sides[shuffled], kind="stable")]
    batches = split_into_batches(order, longer_sides[order], tokens_per_batch, pairs_per_batch)
    return [batches[i] for i in generator.permutation(len(batches))]


def bucket_by_length(
    src_lengths: Sequence[int] | Ids, tgt_lengths: Sequence[int] | Ids, tokens_per_batch: int
) -> Plan:
    """Return batches of pairs of similar length, longest first, without randomness."""
    src, tgt = (np.asarray(lengths, np.int32) for lengths in (src_lengths, tgt_lengths))
    order = by_length(src, tgt)[::-1]
    return split_into_batches(order, np.maximum(src, tgt)[order], tokens_per_batch)


def by_length(src_lengths: Ids, tgt_lengths: Ids) -> Indices:
    """Return all pairs ordered by their longer sides, so that neighbors are similar in both sides.

    Among pairs whose longer sides are equally long, the other one grows and then shrinks: from a
    short source to a short target, and the other way round for the next length.
    """
    longer_sides = np.maximum(src_lengths, tgt_lengths)
    differences = np.subtract(src_lengths, tgt_lengths, dtype=np.int32)
    order = np.lexsort((np.where(longer_sides % 2, differences, -differences), longer_sides))
    return order.astype(np.int32)


def split_into_batches(
    order: Indices, lengths: Ids, tokens_per_batch: int, pairs_per_batch: int | None = None
) -> Plan:
    """Split ordered pairs into batches; `lengths`: of their longer sides."""
    batches = []
    start = 0
    while start < len(order):
        most = max(1, tokens_per_batch // int(lengths[start]))
        ahead = lengths[start : start + min(most, pairs_per_batch or most)]
        sizes = np.maximum.accumulate(ahead, dtype=np.int64) * np.arange(1, len(ahead) + 1)
        end = start + max(1, int(np.searchsorted(sizes, tokens_per_batch, side="right")))
        batches.append(order[start:end])
        start = end
    return batches


def pad_rows(rows: Sequence[Sequence[int] | Ids], padding: int) -> npt.NDArray[np.int64]:
    """Return rows of ids as one array, padded at their ends."""
    padded = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for filled, row in zip(padded, rows, strict=True):
        filled[: len(row)] = row
    return padded
