"""Sets of 64-bit hashes, by which duplicates and held-out sentences are found."""

import hashlib

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]


def hashes_of(texts: list[str]) -> Hashes:
    """Return hashes that are the same in every process and on every machine."""
    digests = [
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for text in texts
    ]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


class SeenHashes:
    """Hashes in sorted arrays, each at least twice as long as the next one.

    They take 8 bytes each, and 16 for a moment while two arrays are merged.
    """

    def __init__(self) -> None:
        self._runs: list[Hashes] = []

    def add(self, hashes: Hashes) -> Mask:
        """Add hashes; return which of them were here before, or are among the ones before them."""
        unique, first = np.unique(hashes, return_index=True)
        is_known = self.contain(unique)
        is_repeat = np.ones(len(hashes), np.bool_)
        is_repeat[first] = is_known
        self._runs.append(unique[~is_known])
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.concatenate(self._runs[-2:])]
            self._runs[-1].sort(kind="stable")  # which merges what is sorted
        return is_repeat

    def contain(self, hashes: Hashes) -> Mask:
        """Return which of these hashes are here."""
        found = np.zeros(len(hashes), np.bool_)
        for run in filter(len, self._runs):
            places = np.searchsorted(run, hashes)
            found |= run[np.minimum(places, len(run) - 1)] == hashes
        return found
