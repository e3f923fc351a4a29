"""A cache of the latest translations of sentences, limited in bytes."""

from collections import OrderedDict

from seq2seq_cli.extras.serve.scheduler import Outputs, SentenceToTranslate

_MAX_SHARE = 1 / 64  # of the cache, for one sentence
# Estimated sizes of Python's objects, in bytes.
_ENTRY, _TEXT, _NUMBERS, _TOKEN = 600, 80, 100, 90


class TranslationCache:
    """Evicts the least recently used sentence; attention is too large to be cached."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[SentenceToTranslate, tuple[Outputs, int]] = OrderedDict()
        self.num_bytes = 0

    def get(self, sentence: SentenceToTranslate) -> Outputs | None:
        """Return the translations of a sentence; None if they are not cached."""
        if sentence not in self._entries:
            return None
        self._entries.move_to_end(sentence)
        return self._entries[sentence][0]

    def put(self, sentence: SentenceToTranslate, outputs: Outputs) -> None:
        """Cache the translations of a sentence, unless they are very large."""
        size = _ENTRY + 4 * len(sentence.sentence.text)
        for output in outputs:
            numbers = len(output.alignment) + len(output.log_probs)
            size += _TEXT + 4 * len(output.text) + _NUMBERS * numbers + _TOKEN * len(output.tokens)
        is_small = size <= self._max_bytes * _MAX_SHARE
        if sentence in self._entries or sentence.options.attention or not is_small:
            return
        self._entries[sentence] = outputs, size
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            _, (_, freed) = self._entries.popitem(last=False)
            self.num_bytes -= freed
