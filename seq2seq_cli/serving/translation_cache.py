"""The latest translations of sentences, up to a number of bytes."""

from collections import OrderedDict
from collections.abc import Hashable

from seq2seq_cli.serving.scheduler import Outputs

_BYTES_OF_AN_ENTRY = 400  # of Python's objects, beside characters


class TranslationCache:
    """Forgets what has not been asked for the longest."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Hashable, tuple[Outputs, int]] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: Hashable) -> Outputs | None:
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Hashable, outputs: Outputs) -> None:
        if key in self._entries:
            return
        size = _BYTES_OF_AN_ENTRY + 4 * len(repr(key)) + sum(map(_size, outputs))
        self._entries[key] = outputs, size
        self.num_bytes += size
        while self.num_bytes > self._most_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.num_bytes -= freed

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0


def _size(output: object) -> int:
    """Estimate the bytes of a translation, not too few."""
    return _BYTES_OF_AN_ENTRY + 8 * len(repr(output))
