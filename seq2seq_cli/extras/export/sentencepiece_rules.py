"""Puts what this toolkit does to text before SentencePiece into the rules of the model itself.

Other programs give text to SentencePiece as it is. The rules of a model (`precompiled_charsmap`)
are a double array (Aoe 1989) of the texts to replace, and the replacements: the size of the array
in bytes, the array, and zero-terminated texts, in which the array has offsets.
"""

import struct
import sys
from collections.abc import Iterator, Mapping

import numpy as np

from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.text.quoting import QUOTE, SPACE, STAND_IN
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import model_with_rules, parsed

_BYTES = np.arange(1, 256)
_AT_ONCE = 1_024  # nodes
WHITE_SPACE = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace())
_QUOTING = {c: " " for c in WHITE_SPACE if c != " "} | {
    SPACE: STAND_IN,
    STAND_IN: QUOTE + STAND_IN,
    QUOTE: QUOTE + QUOTE,
}
_UNQUOTING = {STAND_IN: SPACE, QUOTE + STAND_IN: STAND_IN, QUOTE + QUOTE: QUOTE}


def with_quoting(model: bytes) -> bytes:
    """Return a SentencePiece model that normalizes spaces and quotes ▁, as `quoting.prepare` does.

    It gives the same ids for text as it is, and its decoded text needs no unquoting.
    """
    proto = parsed(model)
    rules = dict(rules_in(proto.normalizer_spec.precompiled_charsmap)) | _QUOTING
    proto.normalizer_spec.precompiled_charsmap = compiled_rules(rules)
    back = proto.denormalizer_spec
    back.precompiled_charsmap = compiled_rules(_UNQUOTING)
    back.add_dummy_prefix = back.remove_extra_whitespaces = back.escape_whitespaces = False
    return proto.SerializeToString()


def compiled_rules(rules: Mapping[str, str]) -> bytes:
    """Have SentencePiece compile rules, by training a model of one letter with them."""
    config = TokenizerConfig.model_validate({"kind": "char", "vocab_size": 8})
    return parsed(model_with_rules(rules, config)).normalizer_spec.precompiled_charsmap


def rules_in(charsmap: bytes) -> Iterator[tuple[str, str]]:
    """Yield the texts that a model replaces, and by what."""
    if not charsmap:
        return
    (size,) = struct.unpack_from("<I", charsmap)
    units = np.frombuffer(charsmap, "<u4", size // 4, 4)
    replacements = charsmap[4 + size :]
    waiting = [(0, b"")]
    while waiting:
        some, waiting = waiting[-_AT_ONCE:], waiting[:-_AT_ONCE]
        nodes = np.array([node for node, _ in some])
        values = units[nodes]
        nodes ^= values >> 10 << ((values & 0x200) >> 6)  # where their children begin
        for (_, before), node, value in zip(some, nodes, values, strict=True):
            if value & 0x100:  # a text ends here
                start = int(units[node]) & 0x7FFFFFFF
                after = replacements[start : replacements.index(b"\0", start)]
                yield before.decode(), after.decode()
        children = nodes[:, None] ^ _BYTES
        rows, columns = np.nonzero((units[children] & 0x800000FF) == _BYTES)
        waiting += [
            (int(children[row, column]), some[row][1] + bytes([column + 1]))
            for row, column in zip(rows, columns, strict=True)
        ]
