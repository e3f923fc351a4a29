"""Splitting and joining sentences, and the words of spans."""

import itertools
import random

import numpy as np
import pytest
from faults.hostile_lines import ATOMS
from hypothesis import given
from hypothesis import strategies as st

from seq2seq_cli.text.sentences import find_inner_marks, separator, split_sentences
from seq2seq_cli.text.words import continues_word, split_words, words_of_spans

# Sentences are divided by |.
LINES = [
    "He came.|She left!|Did he?|Yes…|No... |Well.",
    "他笑了。|“你好。”|‘是的。’|他说。",
    "“Why?” she said.|“Because.”|He went.",
    "Mr. Smith and Dr. Weber met J. R. R. Tolkien.|They talked.",
    "Das ist z. B. gut, d. h. nicht schlecht.|Es war am 3. Oktober 1990.|Danach kam z.B. Anna.",
    "Ludwig XIV. von Frankreich war da.|Er blieb bzw. schlief.",
    "It costs 3.5 euros.|See Fig. 3 and No. 5, p. 117.|He said no.|Then he left.",
    "I saw J. Smith in the U.S. in May.|He wrote to www.example.com.|Nobody answered.",
    "She has a Ph.D. in physics.|(He has none.)|[Really!]|OK",
    "„Nein!“|‚Doch.‘|«Oui ?»|Bien.",
    "Il demanda : « Tu viens ? »|« Oui ! » dit-il.|« Je viens.\u202f»|Fin.|« Bien. »",
    "« Viens ! », dit-il.|Il a écrit « Pourquoi ? ».|Elle rit (« Ah ! »).|Oui.",
    "Er ging.|» Komm mit.|»Ja.«|»Nein.«|› Nein.",
    "i want a beer.|he wants tea.|what for?",  # no capitals: case tells nothing
    "there 's no rush .|we have time .",
    "¿Qué?|¡Nada!|Bueno.",
    "他来了。|她问：“为什么？”|没有人知道！|好。",
    "「はい。」と言った。|「いいえ。」|彼は行く。",
    "वह आता है।|यह घर है।|ठीक?",
    "هل جاء؟|نعم.",
    "هل جاء؟\u200f|نعم.\u202c|ذهب.\u2069|لا.\u200b|نعم.",  # marks of direction, zero-width space
    "ሰላም።|እሺ።|ሰላም፧|እሺ።",
    "សួស្តី\u17d4|អរគុណ\u17d5|ទៅ\u17d4",
    "བོད།|ཡིན༎|བོད།",
    "Τι κάνεις;|Καλά, το α; όχι.|Ποιος\u037e|Εγώ.",
    "I see; You see 10 μ; Yes.|What‼|No⁉|Yes⁈|OK",
    "１．値は３．５である．|「はい．」と言った．|まず、１．はじめに．",
    "NATO აქ არის.|ბავშვი წავიდა.",
    "네.|알겠습니다.|그러면 안 돼.|우리는 집에 가.|나도 갈게.|괜찮아요.",
    "가. 개요와 목적.|네.",
    "Chào ạ.|Tôi khỏe.|Anh ở đâu ạ.|Tôi ở nhà.",
    "Он живёт в г. Москва.|Das sind Töpfe u. ä. Dinge.|Да.",
    "Nothing here ends, not even 3.5 or a.b.c or e.g. this",
    "... und dann kam er.",
    ".",
]


@pytest.mark.parametrize("line", LINES)
def test_split_sentences(line):
    sentences = [sentence.strip() for sentence in line.split("|")]
    is_chinese = "。" in line or "．" in line
    assert split_sentences(("" if is_chinese else " ").join(sentences)) == sentences
    assert split_sentences("  \t" + "\u3000 ".join(sentences) + "\n") == sentences


def test_words_of_sentences_are_those_of_the_line():
    """Also where unseen characters follow a mark: alignments number the words of a line."""
    draw = random.Random(1)
    letters = (
        "你好。！．｡ab. \u3000「」”)\u2060\u200e\u200f\u200b\u00ad\ufe01\u3099ไ\u0e34\u17d4;?“"
    )
    for _ in range(20_000):
        line = "".join(draw.choices(letters, k=draw.randrange(1, 12)))
        assert [w for s in split_sentences(line) for w in split_words(s)] == split_words(line), line


def test_short_number_with_a_period_is_an_ordinal():
    assert split_sentences("On p. 7. He left.") == ["On p. 7. He left."]


def test_marks_inside_training_lines_end_no_sentence():
    greetings = ["Good morning, Mrs. Weber! Did you sleep?", "Good evening! Do you see the house?"]
    others = ["We see the house.", "Did you sleep?", "Is he there?", "He sleeps."]
    assert find_inner_marks(greetings + others) == "!"
    assert split_sentences("Good morning! Did you sleep? No.", "!") == [
        "Good morning! Did you sleep?",
        "No.",
    ]
    assert find_inner_marks([*greetings, "Stop!", "Look!"]) == ""  # as often at the ends
    assert find_inner_marks(["a . b . c", "d . e"]) == "."
    assert find_inner_marks(["他说。她说", "他说。她说"]) == "。"
    assert find_inner_marks(["Τι\u037e Εγώ", *["Τι; Εγώ"] * 2, "Τι;", *["Εγώ."] * 3]) == ";"
    draw = random.Random(1)
    paragraphs = [" ".join(draw.choices(["Why?", *["He sings."] * 9], k=6)) for _ in range(1_000)]
    assert find_inner_marks(paragraphs) == ""
    assert find_inner_marks([f"Good morning! {line}" for line in paragraphs]) == "!"
    assert find_inner_marks(["1 2 3", "", "  "]) == ""
    assert find_inner_marks(["他说！她说", "they say! he says"]) == "!"
    assert split_sentences("他说！她说", "!") == ["他说！她说"]  # one mark, whatever its width


@pytest.mark.parametrize("sentence", ["他来了。", "她说：“好。”", "コーヒー", "です！"])
def test_no_space_follows_chinese_and_japanese(sentence):
    assert separator(sentence) == ""


@pytest.mark.parametrize("sentence", ["He came.", "OK.", "그는 왔다."])
def test_a_space_follows_other_scripts(sentence):
    assert separator(sentence) == " "


odd_lines = st.lists(
    st.text(max_size=5) | st.sampled_from([*ATOMS, ". ", "! A", "。", "…” ", " Mr. ", "。“a"]),
    max_size=20,
).map("".join)


@given(line=odd_lines, marks=st.sampled_from(["", ".", "!?", "。"]))
def test_split_sentences_loses_no_text(line, marks):
    sentences = split_sentences(line, marks)
    assert "".join("".join(sentences).split()) == "".join(line.split())
    assert all(sentence.strip() == sentence != "" for sentence in sentences)
    assert sum(len(split_words(sentence)) for sentence in sentences) == len(split_words(line))
    joined = "".join(sentence + separator(sentence) for sentence in sentences)
    assert split_words(joined) == split_words(" ".join(sentences))


@pytest.mark.parametrize("text", ['."' * 100_000, "." * 300_000, '"' * 300_000, "。" * 300_000])
def test_lines_of_punctuation_are_split_in_linear_time(text):
    """With quadratic time, each of them would take minutes."""
    assert "".join(split_sentences(text)) == text
    assert len(find_inner_marks([text])) <= 1


def test_split_words_by_spaces_or_characters():
    for line in ("Das ist\tgut.", "a  b\u3000c\u2028d", "", " x ", "it's (so) gut-gut!"):
        assert split_words(line) == line.split()
    assert split_words("私はTomです。") == ["私", "は", "Tom", "で", "す", "。"]
    assert split_words("他说：“好。”Paul 走了") == [
        "他",
        "说",
        "：",
        "“",
        "好",
        "。”",
        "Paul",
        "走",
        "了",
    ]
    assert split_words("ที่นี่") == ["ที่", "นี่"]  # letters with the marks that follow them
    assert split_words("ខ្\u200bញុំ\u2060 a\u200bb") == ["ខ្\u200b", "ញុំ\u2060", "a\u200bb"]


def test_words_continue_with_letters_and_combining_marks():
    assert all(map(continues_word, "aß7é\u0301ी한ж\u00ad\u200c\u200d\u2060"))
    assert not any(map(continues_word, " .-'’▁東カก。\u3000\u200b"))


@given(line=odd_lines, cuts=st.lists(st.integers(0, 60), max_size=9))
def test_words_of_spans_contain_their_characters(line, cuts):
    words = split_words(line)
    places = sorted({0, len(line), *(cut for cut in cuts if cut < len(line))})
    spans = list(itertools.pairwise(places))
    if not words:
        return
    numbers = words_of_spans(line, spans)
    covered = np.zeros(len(words), dtype=bool)
    for (start, end), of_span in zip(spans, numbers, strict=True):
        assert len(of_span) > 0 and 0 <= of_span[0] <= of_span[-1] < len(words)
        text = line[start:end]
        if text.strip():
            assert len(of_span) == len(split_words(text))
            assert split_words(text)[0] in words[of_span[0]]
        covered[list(of_span)] = True
    assert covered.all()
