"""The ONNX model of our rules for ends of sentences splits, in MiniSBD, as the rules do."""

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seq2seq_cli.extras.export.sentence_splitter import write_sentence_splitter
from seq2seq_cli.text.sentences import MARKS, split_sentences

minisbd = pytest.importorskip("minisbd")

LINES = [
    "Hello there. How are you? Fine!",
    "Dr. Müller sagt z.B. nichts. Am 3. Oktober kam er. Nr. 5 lebt.",
    "“Go!” he said. “Now.” Then (Mr. Smith) left... And J. R. R. Tolkien.",
    "你好。你在哪儿？我在家！ 再见。",
    "「はい。」と言った。「いいえ。」彼は。",
    "no capitals here. at all. none",
    "... Hello. World",
    "。 Hello. World",
    "He said no. 5 is odd. No. I see",
    "Ludwig XIV. von Frankreich. (Hr. Meier) ging um 5 Uhr. Er ging.",
    "Wow!!! Really?! Yes. ¿Qué? ¡Sí!",
    "他笑了。“你好。”她说。（好。）",
    "See www.example.org/bar. Then go. Mail a.b@c.de now. Ok.",
    "a",
    " a  b. \t C ",
    "Привет. Как дела? मैं ठीक हूँ। धन्यवाद।",
]
WORDS = [
    "Hello",
    "world",
    "Dr",
    "z.B",
    "Uhr",
    "Mr",
    "No. 7",
    "nr. 5",
    "No. I",
    "XIV",
    "J",
    "3",
    "42",
    "é",
    "Ä",
]
WORDS += ["Привет", "你好", "はい", "(Mr", "“Go", "„ja", "- X", "..."]
ENDS = [
    ". ",
    "? ",
    "! ",
    "... ",
    "?! ",
    "। ",
    ".” ",
    '!" ',
    "?» ",
    ".) ",
    "。",
    "！",
    "。」",
    "！” ",
]
ENDS += [" ", "  ", "\t", ", ", " (", " “", ": "]


@pytest.fixture(scope="module")
def splitter(tmp_path_factory):
    path = tmp_path_factory.mktemp("splitter") / "rules.onnx"
    write_sentence_splitter(path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    return minisbd.SBDetect(str(path), use_gpu=False)


def split_by(splitter, text: str) -> list[str]:
    return [sentence.strip() for sentence in splitter.sentences(text)]


@pytest.mark.parametrize("line", LINES)
def test_the_model_splits_as_the_rules_do(splitter, line):
    assert split_by(splitter, line) == split_sentences(line)


made_up = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(ENDS)), max_size=9)


@given(text=made_up.map(lambda parts: "".join(word + end for word, end in parts)))
def test_the_model_splits_made_up_text_as_the_rules_do(splitter, text):
    assert split_by(splitter, text) == split_sentences(text)


@pytest.mark.parametrize("marks", [".", "!", "…", "。", MARKS])
def test_no_sentence_ends_after_inner_marks(marks, tmp_path):
    write_sentence_splitter(tmp_path / "rules.onnx", marks)
    splitter = minisbd.SBDetect(str(tmp_path / "rules.onnx"), use_gpu=False)
    for line in LINES:
        assert split_by(splitter, line) == split_sentences(line, marks)
