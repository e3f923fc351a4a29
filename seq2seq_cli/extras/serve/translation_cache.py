"""The latest translations of sentences, up to a number of bytes."""

from collections import OrderedDict

from seq2seq_cli.extras.serve.messages import SentenceOutput
from seq2seq_cli.extras.serve.scheduler import Outputs, SentenceToTranslate

_LARGEST_SHARE = 1 / 64  # of the cache, that one sentence may take
# Estimates of Python's objects, in bytes.
_ENTRY, _TEXT, _NUMBERS, _TOKEN = 600, 80, 100, 90


class TranslationCache:
    """Forgets what has not been asked for the longest; attention is too large to be kept."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[SentenceToTranslate, tuple[Outputs, int]] = OrderedDict()
        self.num_bytes = 0

    def get(self, sentence: SentenceToTranslate) -> Outputs | None:
        """Return the translations of a sentence; None if they are not there."""
        if sentence not in self._entries:
            return None
        self._entries.move_to_end(sentence)
        return self._entries[sentence][0]

    def put(self, sentence: SentenceToTranslate, outputs: Outputs) -> None:
        """Keep the translations of a sentence, unless they are very large."""
        size = _ENTRY + 4 * len(sentence.sentence.text) + sum(map(_size, outputs))
        is_small = size <= self._most_bytes * _LARGEST_SHARE
        if sentence in self._entries or sentence.options.attention or not is_small:
            return
        self._entries[sentence] = outputs, size
        self.num_bytes += size
        while self.num_bytes > self._most_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.num_bytes -= freed

    def clear(self) -> None:
        self._entries.clear()
        self.num_bytes = 0


def _size(output: SentenceOutput) -> int:
    """Estimate the bytes of a translation."""
    numbers = len(output.alignment) + len(output.log_probs)
    return _TEXT + 4 * len(output.text) + _NUMBERS * numbers + _TOKEN * len(output.tokens)
