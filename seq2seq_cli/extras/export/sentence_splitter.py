"""The rules of `text/sentences.py` as an ONNX model for MiniSBD, which Argos Translate splits with.

MiniSBD reads the class of every character of a paragraph, and whether a word of a lexicon ends
there; this model answers whether a sentence ends there. It has learned nothing: it is logic. So a
package needs no model of anybody else, and no network. Unlike the rules, it knows abbreviations in
any case (`mr.`), and follows no more than three closing quotes.
"""

import itertools
import json
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from seq2seq_cli.errors import UserError, pip_arguments
from seq2seq_cli.files import write_atomic
from seq2seq_cli.text.sentences import (
    ANYWHERE,
    BEFORE_NUMBERS,
    BEFORE_SPACE,
    CLOSING,
    CLOSING_ANYWHERE,
    MARKS,
    OPENING,
    SAME_MARK,
    SHORTENED,
    TITLES,
)

_OPSET, _IR_VERSION = 13, 8  # that ONNX Runtime reads since 2021
_DEEPEST = 3  # of nested quotes after a mark, of segments as in z.B., of brackets before a word
_DIGITS, _ROMAN = "0123456789", "IVX"
_LOWER = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if c.islower())
_HIRAGANA = "".join(map(chr, range(0x3041, 0x30A0)))
_NO_SPLIT = (
    0.5  # the score of "nothing ends here", against 1 of the end of a sentence, if it is one
)
_KINDS = 5  # that MiniSBD knows: nothing, token, sentence, and two of words that are several
_SENTENCE = 2


def write_sentence_splitter(path: Path, inner_marks: str = "") -> None:
    """Write the model; after `inner_marks` no sentence ends.

    Raises UserError if the package onnx is not installed.
    """
    write_atomic(path, _model(inner_marks).SerializeToString())


def _lexicon() -> list[str]:
    """Return the abbreviations with their full stop, and those of numbers with a digit too."""
    words = [f"{word.lower()}." for word in f"{TITLES}|{SHORTENED}".split("|")]
    numbers = itertools.product(BEFORE_NUMBERS.split("|"), _DIGITS)
    return [*words, *(f"{word}. {digit}" for word, digit in numbers)]


class _Circuit:
    """Boolean signals, one for each character of each paragraph, as nodes of an ONNX graph."""

    def __init__(self, classes: dict[str, int]) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._classes = classes

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, dtype: Any) -> str:
        from onnx import numpy_helper

        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def is_in(self, characters: Iterable[str]) -> str:
        """Return where a character is one of these, all of which have classes of their own."""
        table = np.zeros(max(self._classes.values()) + 1, np.bool_)
        table[[self._classes[character] for character in characters]] = True
        return self.op("Gather", self.constant(table, np.bool_), "units")

    def at(self, signal: str, offset: int, beyond: bool = False) -> str:
        """Return what a signal is so many characters further on; `beyond` outside the paragraph."""
        if not offset:
            return signal
        before, after = max(-offset, 0), max(offset, 0)
        pads = self.constant([0, before, 0, after], np.int64)
        padded = self.op("Pad", signal, pads, self.constant(beyond, np.bool_))
        start, end = (offset, sys.maxsize) if offset > 0 else (0, offset)
        limits = (self.constant([limit], np.int64) for limit in (start, end, 1))
        return self.op("Slice", padded, *limits)

    def all(self, *signals: str) -> str:
        return self._joined("And", signals)

    def any(self, *signals: str) -> str:
        return self._joined("Or", signals)

    def no(self, signal: str) -> str:
        return self.op("Not", signal)

    def _joined(self, kind: str, signals: Collection[str]) -> str:
        first, *others = signals
        for other in others:
            first = self.op(kind, first, other)
        return first

    def grown(self, signal: str, grow: Callable[[str], str]) -> str:
        """Return a signal or what follows from it, as often as quotes and the like are nested."""
        for _ in range(_DEEPEST):
            signal = self.any(signal, grow(signal))
        return signal

    def feature(self, number: int) -> str:
        """Return one of MiniSBD's features."""
        column = self.constant(number, np.int64)
        return self.op("Greater", self.op("Gather", "features", column, axis=2), self._half())

    def _half(self) -> str:
        return self.constant(0.5, np.float32)


def _model(inner_marks: str) -> Any:
    """Return the graph with what MiniSBD reads from its metadata."""
    try:
        from onnx import TensorProto, helper
    except ImportError:
        raise UserError(
            f"--format argos needs the package onnx: pip install {pip_arguments('export')}"
        ) from None
    lexicon, classes = _lexicon(), _character_classes()
    circuit = _Circuit(classes)
    window = max(map(len, lexicon)) - 1
    is_end = circuit.any(*_ends(circuit, lexicon, inner_marks))
    axis = circuit.constant([2], np.int64)
    column = circuit.op("Unsqueeze", circuit.op("Cast", is_end, to=TensorProto.FLOAT), axis)
    kinds = np.eye(_KINDS)[_SENTENCE]
    scores = circuit.op("Mul", column, circuit.constant(kinds, np.float32))
    scores = circuit.op("Add", scores, circuit.constant(_NO_SPLIT * np.eye(_KINDS)[0], np.float32))
    float32, int64, shape = TensorProto.FLOAT, TensorProto.INT64, ["paragraphs", "characters"]
    graph = helper.make_graph(
        circuit.nodes,
        "ends_of_sentences",
        [
            helper.make_tensor_value_info("units", int64, shape),
            helper.make_tensor_value_info("features", float32, [*shape, 1 + 2 * window]),
        ],
        [helper.make_tensor_value_info(scores, float32, [*shape, _KINDS])],
        circuit.constants,
    )
    opset = helper.make_opsetid("", _OPSET)
    model = helper.make_model(graph, opset_imports=[opset], producer_name="seq2seq-cli")
    model.ir_version = _IR_VERSION
    options = {"feat_funcs": ["capitalized"], "use_dictionary": True, "num_dict_feat": window}
    units = {"<PAD>": 0, "<UNK>": 1, **classes}
    described = {
        "lang_code": "seq2seq-cli",
        "config": {**options, "max_seqlen": 1_000_000},
        "vocab": {"_unit2id": units, "_id2unit": list(units)},
        "lexicon": lexicon,
    }
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in described.items()}
    helper.set_model_props(model, texts)
    return model


def _character_classes() -> dict[str, int]:
    """Return the class of each character that matters; those of other characters are unknown."""
    classes: dict[str, int] = {}
    signs = MARKS + CLOSING + CLOSING_ANYWHERE + OPENING + _ROMAN + " "
    for alike in (*dict.fromkeys(signs), _LOWER, _DIGITS, _HIRAGANA):
        number = 2 + len(set(classes.values()))
        classes |= dict.fromkeys(alike, number)
    return classes


def _ends(circuit: _Circuit, lexicon: Collection[str], inner_marks: str) -> tuple[str, str]:
    """Return where sentences end before a space, and where they end in full-width marks."""
    c = circuit
    space, opening = c.is_in(" "), c.is_in(OPENING)
    lower, digit = c.is_in(_LOWER[0]), c.is_in("0")
    capital = c.feature(0)
    letter = c.any(lower, capital)
    has_capitals = _in_any_position(c, capital)

    def following(signal: str) -> str:
        """Return where a character, or the first one behind opening quotes, is of a kind."""
        return c.grown(signal, lambda known: c.all(opening, c.at(known, 1)))

    starts_word = c.grown(
        c.at(space, -1, beyond=True),
        lambda known: c.all(c.at(opening, -1), c.at(known, -1)),
    )
    is_abbreviation = _abbreviations(c, lexicon, starts_word, letter, digit)
    full_stop = c.is_in(".")
    ellipsis = c.all(full_stop, c.at(full_stop, -1))
    others = [x for x in BEFORE_SPACE if x != "." and x.translate(SAME_MARK) not in inner_marks]
    allowed = [c.is_in(others)]
    if "." not in inner_marks:
        single = c.all(full_stop, c.no(ellipsis))
        allowed.append(c.all(single, c.no(is_abbreviation)))
    if "…" not in inner_marks:
        allowed.append(ellipsis)
    mark = c.is_in(BEFORE_SPACE)
    last = c.all(c.any(*allowed), c.no(c.at(mark, 1)), _follows_others(c, mark, space))
    closed = c.grown(last, lambda known: c.all(c.is_in(CLOSING), c.at(known, -1)))
    goes_on = c.all(has_capitals, c.at(following(lower), 2))
    before_space = c.all(closed, c.at(space, 1), c.no(goes_on))

    others = [x for x in ANYWHERE if x.translate(SAME_MARK) not in inner_marks]
    mark, closing = c.is_in(ANYWHERE), c.is_in(CLOSING_ANYWHERE)
    last = c.all(c.is_in(others), c.no(c.at(mark, 1)), _follows_others(c, mark, space))
    closed = c.grown(last, lambda known: c.all(closing, c.at(known, -1)))
    hiragana = following(c.is_in(_HIRAGANA[0]))
    after = c.any(c.at(hiragana, 1), c.all(c.at(space, 1), c.at(hiragana, 2)))
    goes_on = c.any(c.at(closing, 1), c.all(c.is_in("」』"), after))
    return before_space, c.all(closed, c.no(goes_on))


def _abbreviations(
    circuit: _Circuit, lexicon: Collection[str], starts_word: str, letter: str, digit: str
) -> str:
    """Return where a full stop belongs to the word before it."""
    c = circuit
    window = max(map(len, lexicon)) - 1
    found = []
    for length in range(1, window + 1):  # characters before the last one of an entry
        matches = c.all(c.feature(window + length), c.at(starts_word, -length))
        found.append(c.all(c.is_in("."), matches))
        found.append(c.at(c.all(digit, matches), 2))  # "nr. 5": the full stop is before the space

    def after(kind: str, longest: int, start: str) -> list[str]:
        """Return where a full stop follows so many characters of a kind after a start."""
        ends = []
        for length in range(1, longest + 1):
            characters = (c.at(kind, -offset) for offset in range(1, length + 1))
            ends.append(c.all(c.is_in("."), *characters, c.at(start, -length)))
        return ends

    segment = c.any(*after(letter, 3, starts_word))  # the first of z.B.
    for _ in range(_DEEPEST):
        further = c.any(*after(letter, 3, c.at(segment, -1)))
        found.append(further)
        segment = c.any(segment, further)
    initials, numbers = after(letter, 1, starts_word), after(digit, 2, starts_word)
    return c.any(*found, *initials, *numbers, *after(c.is_in(_ROMAN), 6, starts_word))


def _in_any_position(circuit: _Circuit, signal: str) -> str:
    from onnx import TensorProto

    number = circuit.op("Cast", signal, to=TensorProto.FLOAT)
    most = circuit.op("ReduceMax", number, axes=[1], keepdims=1)
    return circuit.op("Greater", most, circuit.constant(0.5, np.float32))


def _follows_others(circuit: _Circuit, mark: str, space: str) -> str:
    """Return where something else than marks has been seen: no line begins with its end.

    A space at the start, which MiniSBD leaves there, is nothing.
    """
    from onnx import TensorProto

    at_start = circuit.at(circuit.is_in(""), -1, beyond=True)
    others = circuit.no(circuit.any(mark, circuit.all(space, at_start)))
    number = circuit.op("Cast", others, to=TensorProto.FLOAT)
    count = circuit.op("CumSum", number, circuit.constant(1, np.int64))
    return circuit.op("Greater", count, circuit.constant(0.5, np.float32))
