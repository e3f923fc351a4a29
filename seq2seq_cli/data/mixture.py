"""How often an epoch draws from each of several corpora, and which of their pairs."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int32]


def pairs_per_epoch(
    sizes: Sequence[int], weights: Sequence[float], temperature: float | None
) -> list[int]:
    """Return how many pairs an epoch draws from each corpus of so many pairs, at least one.

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
    takes its next `drawn` pairs: of a corpus drawn by halves, two epochs take every pair once.
    The pairs depend on the arguments alone.
    """
    if list(drawn) == list(sizes):
        return None
    parts: list[Indices] = []
    start = 0
    for number, (size, count) in enumerate(zip(sizes, drawn, strict=True)):
        first, a_pass = (epoch - 1) * count, max(1, size)
        for turn in range(first // a_pass, -(-(first + count) // a_pass)):
            order = np.random.default_rng([seed, number, turn]).permutation(size)
            begin, end = first - turn * size, first + count - turn * size
            parts.append((start + order[max(0, begin) : end]).astype(np.int32))
        start += size
    return np.sort(np.concatenate(parts))
