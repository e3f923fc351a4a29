"""Documents: sentences are taken out and put back; everything else comes out as it went in."""

import re
from collections import Counter
from html.parser import HTMLParser

import hypothesis
import pytest
from commands import ROOT
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from seq2seq_cli.extras.serve.documents.document import Document, Sentence
from seq2seq_cli.extras.serve.documents.document_writer import DocumentWriter
from seq2seq_cli.extras.serve.documents.formats import READERS, FormatName
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter, has_letters
from seq2seq_cli.extras.serve.documents.xml_document import XmlTags, read_xml
from seq2seq_cli.extras.serve.messages import SentenceOutput
from seq2seq_cli.text.sentences import sentence_spans, split_sentences
from seq2seq_cli.text.words import word_spans

SPLITTER = SentenceSplitter()


def sentences(text: str, name: FormatName = "text", splitter: SentenceSplitter = SPLITTER):
    return [sentence.text for sentence in READERS[name](text, splitter).sentences]


def write(text: str, name: FormatName, translate) -> str:
    """What becomes of a text whose sentences a function translates."""
    return write_document(READERS[name](text, SPLITTER), translate)


def write_document(document: Document, translate) -> str:
    writer = DocumentWriter(document)
    return "".join(writer.add(translate(s)) for s in document.sentences) + writer.rest()


def upper(sentence: Sentence) -> SentenceOutput:
    """A translation word by word."""
    text = sentence.text.upper()
    assert len(word_spans(text)) == len(word_spans(sentence.text))
    return SentenceOutput(text, [(i, i) for i in range(len(word_spans(text)))])


def same(sentence: Sentence) -> SentenceOutput:
    return upper(sentence)._replace(text=sentence.text)


def backwards(sentence: Sentence) -> SentenceOutput:
    """A translation with its words in the opposite order, and its full stop at the end."""
    words = sentence.text.rstrip(".").split()
    count = len(words)
    text = " ".join(reversed(words)) + "." * sentence.text.endswith(".")
    return SentenceOutput(text, [(i, count - 1 - i) for i in range(count)])


# Plain text


def test_white_space_and_lines_without_letters_stay_where_they_are():
    text = "  Hello there.  How are you? \r\n\r\n1. 2. 3!\n\t- yes\u2028😀 👍\n"
    assert sentences(text) == ["Hello there.", "How are you?", "- yes"]
    assert write(text, "text", upper) == text.upper()


@given(st.text(alphabet=st.sampled_from("aB. !?\n\t\r\u3000\u2028。！5😀"), max_size=60))
def test_text_whose_sentences_stay_the_same_stays_the_same(text: str):
    document = READERS["text"](text, SPLITTER)
    if "。" not in text and "！" not in text:  # after which spaces are left out
        assert write(text, "text", same) == text
    starts = document.sentence_starts()
    for sentence, start in zip(document.sentences, starts, strict=True):
        assert text[start : start + len(sentence.text)] == sentence.text


@given(st.text(alphabet=st.sampled_from("aB. !?'\n\u3000。」"), max_size=60))
def test_spans_of_sentences_are_those_that_lines_are_split_into(text: str):
    assert [text[i:j] for i, j in sentence_spans(text)] == split_sentences(text)


def test_sentences_stay_together_if_lines_of_the_training_text_have_several():
    text = "One. Two. Three.\nFour. Five."
    assert sentences(text, splitter=SentenceSplitter(most=2)) == [
        *("One.", "Two.", "Three."),
        "Four. Five.",
    ]
    assert sentences(text, splitter=SentenceSplitter(inner_marks=".")) == [
        "One. Two. Three.",
        "Four. Five.",
    ]


def test_spaces_between_sentences_follow_the_script_of_the_translation():
    def chinese(sentence: Sentence) -> SentenceOutput:
        return SentenceOutput("你好。")

    assert write("Hello. Hello.  Hello.", "text", chinese) == "你好。你好。  你好。"
    english = SentenceOutput("Hello.")
    assert write("你好。你好。", "text", lambda _: english) == "Hello. Hello."


# HTML


def test_long_text_without_ends_of_sentences_is_cut():
    text = "word " * 500 + "x" * 1_500
    parts = sentences(text, splitter=SentenceSplitter(longest=1_000))
    assert max(map(len, parts)) <= 1_000
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert write(text, "text", same).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize(
    ("source", "found", "expected"),
    [
        (
            "<p>A small\n house &amp; a garden. <!-- c -->Really?</p>",
            ["A small house & a garden.", "Really?"],
            "<p>A SMALL HOUSE &amp; A GARDEN. <!-- c -->REALLY?</p>",
        ),
        (
            "<ul>\n  <li>one <b>two</b>, three</li>\n  <li> 4 </li></ul>",
            ["one two, three"],
            "<ul>\n  <li>ONE <b>TWO</b>, THREE</li>\n  <li> 4 </li></ul>",
        ),
        (
            "<script>var a = 'b < c';</script><style>p{}</style><p title='no'>yes<br/>no</p>",
            ["yes", "no"],
            "<script>var a = 'b < c';</script><style>p{}</style><p title='no'>YES<br/>NO</p>",
        ),
        (
            '<p translate="no">Keep this.</p><p class="x notranslate">And this.</p>Not this.',
            ["Not this."],
            '<p translate="no">Keep this.</p><p class="x notranslate">And this.</p>NOT THIS.',
        ),
        (
            'The <span translate="no">Deutsche Bahn</span> runs <code>make all</code> daily.',
            ["The Deutsche Bahn runs make all daily."],
            'THE <span translate="no">Deutsche Bahn</span> RUNS <code>make all</code> DAILY.',
        ),
        (
            "Look at <img src=a.png> this <a id=x></a>word.",
            ["Look at  this word."],
            "LOOK AT <img src=a.png>  THIS <a id=x></a>WORD.",
        ),
        ("a &lt;b&gt; c &eacute;", ["a <b> c é"], "A &lt;B&gt; C É"),
        (
            "<pre>one  line\n  <b>two</b> lines\n</pre>",
            ["one line", "two lines"],
            "<pre>ONE LINE\n  <b>TWO</b> LINES\n</pre>",
        ),
        (
            "He <b>says: so. Then</b> he goes.",
            ["He says: so.", "Then he goes."],
            "HE <b>SAYS: SO.</b> <b>THEN</b> HE GOES.",
        ),
        ("<b>One.</b> <i>Two.</i>", ["One.", "Two."], "<b>ONE.</b> <i>TWO.</i>"),
        ("<b>One. Two.</b>", ["One.", "Two."], "<b>ONE. TWO.</b>"),
        ("<p>open <b>bold<p>next", ["open bold", "next"], "<p>OPEN <b>BOLD<p>NEXT"),
        ("x <3 y && z <", ["x <3 y && z <"], "X &lt;3 Y &amp;&amp; Z &lt;"),
        ("Press <svg><path d=''/></svg> to go.", ["Press  to go."], None),
        ("<title>Name</title><button>Go</button>", ["Name", "Go"], None),
        ("<select><option>one</select>", [], None),
        (
            "<select translate=yes><option>one<option>two</select>",
            ["one", "two"],
            "<select translate=yes><option>ONE<option>TWO</select>",
        ),
        (
            "Call <code>f()</code>, then <code>g()</code>.",
            ["Call f(), then g()."],
            "CALL <code>f()</code>, THEN <code>g()</code>.",
        ),
        (
            "H<sub>2</sub>O and mc<sup>2</sup>.",
            ["H2O and mc."],
            "H<sub>2</sub>O AND MC<sup>2</sup>.",
        ),
        ("not-<code>null</code> here", ["not-null here"], "NOT-NULL<code>null</code> HERE"),
        ("one<sup>st</sup> word[1]", ["onest word[1]"], "ONEST WORD[1]"),
        ("one</> two </ x>three", ["one two three"], "ONE</> TWO </ x>THREE"),
        (
            "<p>one</p><script translate=yes>let it = 'be'</script>two",
            ["one", "two"],
            "<p>ONE</p><script translate=yes>let it = 'be'</script>TWO",
        ),
        ("<title>a <b> & c</title>", ["a <b> & c"], "<title>A &lt;B&gt; &amp; C</title>"),
        ("one <a href='a>b'>two</a>", ["one two"], "ONE <a href='a>b'>TWO</a>"),
        ("one &#; <b>two</b> &# three", ["one &#; two &# three"], None),
        (f"a&#{'9' * 5_000};b &#{'0' * 5_000}65;", ["a\ufffdb A"], "A\ufffdB A"),
        (
            "one <a href=x><img src=y></a> two",
            ["one  two"],
            "ONE <a href=x><img src=y></a>  TWO",
        ),
        ("one <svg/> two", ["one  two"], "ONE <svg/>  TWO"),
        ("one <i></i> two", ["one  two"], "ONE <i></i>  TWO"),
        (
            "<li>\n  <i></i> one\n</li><p>two <img src=x>\n</p>",
            ["one", "two"],
            "<li>\n  <i></i> ONE\n</li><p>TWO <img src=x>\n</p>",
        ),
        (
            "one <code>&amp;nbsp;</code> two <code>?a&amp;copy=2</code>",
            ["one &nbsp; two ?a&copy=2"],
            "ONE <code>&amp;nbsp;</code> TWO <code>?a&amp;copy=2</code>",
        ),
        (
            "<p>one <x-a b='c'>two <x-d>three</x-d></x-a> four<p>five <x-a>six",
            ["one two three four", "five six"],
            "<p>ONE <x-a b='c'>TWO <x-d>THREE</x-d></x-a> FOUR<p>FIVE <x-a>SIX",
        ),
        (
            "<x-a>one</x-a><x-a><p>two</p>three</x-a>",
            ["one", "two", "three"],
            "<x-a>ONE</x-a><x-a><p>TWO</p>THREE</x-a>",
        ),
        (
            "one <picture><source><img></picture> two <progress></progress> three <embed> four",
            ["one  two  three  four"],
            None,
        ),
        ("<p>你好。<code>x</code>再见。</p>", ["你好。", "x再见。"], None),
        (
            '<ul><li class="notranslate">X-12\n<li>one<ul><li translate=no>y</ul>two</ul><p>three',
            ["one", "two", "three"],
            '<ul><li class="notranslate">X-12\n<li>ONE<ul><li translate=no>y</ul>TWO</ul><p>THREE',
        ),
        (
            "<p translate=no>x <object><p>y</object> z<hr>one<div><p translate=no>x</div>two",
            ["one", "two"],
            "<p translate=no>x <object><p>y</object> z<hr>ONE<div><p translate=no>x</div>TWO",
        ),
        ("", [], ""),
        ("<!doctype html>\n<hr>12 &euro;", [], "<!doctype html>\n<hr>12 &euro;"),
    ],
)
def test_html(source: str, found: list[str], expected: str | None):
    assert sentences(source, "html") == found
    if expected is not None:
        assert write(source, "html", upper) == expected


GLUED = [
    ("<a href=u>Müller</a>-<a href=v>Meier</a>", "html"),
    ("Choose either/<b>or</b> here", "html"),
    ("user@<a href=x>host.org</a>, please", "html"),
    ("H<sub>2</sub>O<sub>2</sub>", "html"),
    ("See [Docs](a)/[Code](b)", "markdown"),
]


@pytest.mark.parametrize(("source", "name"), GLUED)
def test_markup_that_begins_inside_a_word_stays_there(source: str, name: FormatName):
    assert write(source, name, same) == source


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("either/<b>or</b>", "entweder/oder", "entweder/<b>oder</b>"),
        ("<a x>English</a>|<a y>German</a>", "英语|德语", "<a x>英语</a>|<a y>德语</a>"),
        ("one/<b>two</b>", "a/b/c", "<b>a/b/c</b>"),
        ("(<b>or</b>)", "“oder”", "“<b>oder</b>”"),
        ("<b>buys</b>.", "खरीदता।", "<b>खरीदता</b>।"),
        ("<b>here</b>.", "ที่นี่.", "<b>ที่นี่</b>."),
        ("<b>coffee</b>.", "cafe\u0301.", "<b>cafe\u0301</b>."),
    ],
)
def test_markup_begins_inside_a_translated_word(source: str, target: str, expected: str):
    """Where the same mark divides both."""

    def translate(_: Sentence) -> SentenceOutput:
        return SentenceOutput(target, [(0, i) for i in range(len(word_spans(target)))])

    assert write(source, "html", translate) == expected


def test_markup_follows_its_words():
    source = "I see <b>the <i>red</i> house</b> <a href='x'>today</a>."
    expected = "<a href='x'>today</a> <b>house <i>red</i> the</b> see I."
    assert write(source, "html", backwards) == expected


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("see <a x>this <img></a> now", "html", "now <a x>this <img></a> see"),
        ("see <b>this<!-- c --></b> now", "html", "now <b>this<!-- c --></b> see"),
        ("see <b><img>one two</b> now", "html", "now <b><img>two one</b> see"),
        ("see <a x><i></i> this</a> now", "html", "now <a x><i></i> this</a> see"),
        ("see it <i></i> now", "html", "now it <i></i> see"),
        ("<t>see <g>a <g>b<x/></g></g> now</t>", "xml", "<t>now <g><g>b<x/></g> a</g> see</t>"),
        ("<t>see <b>a &c;</b>now</t>", "xml", "<t>now <b>a &c;</b> see</t>"),
        ("see **this[^1]** now", "markdown", "now **this[^1]** see"),
    ],
)
def test_markup_without_words_stays_in_its_element(source: str, name: FormatName, expected: str):
    assert write(source, name, backwards) == expected


def test_a_word_that_is_aligned_far_away_does_not_pull_markup_there():
    sentence = READERS["html"]("<b>a b</b> c d e", SPLITTER).sentences[0]
    assert [(s.start, s.end) for s in sentence.spans] == [(0, 3)]

    def translate(_: Sentence) -> SentenceOutput:
        return SentenceOutput("A B C D E", [(0, 0), (1, 1), (2, 2), (3, 3), (1, 4)])

    assert write("<b>a b</b> c d e", "html", translate) == "<b>A B</b> C D E"


LOST_WORDS = [
    ("a <b>b</b> c", "html", "A C"),
    ("a <a href=x>b</a> c", "html", "A <a href=x>C</a>"),
    ("a <b><a href=x>b</a></b> c", "html", "A <b><a href=x>C</a></b>"),
    ("<b>a</b> <a href=x>b</a> <i>c</i>", "html", "<b>A</b> <a href=x>C</a>"),
    ("<i>a</i> <a href=x>b</a> <a href=y>c</a>", "html", "<a href=x>A</a> <a href=y>C</a>"),
    ("a **b** c", "markdown", "A C"),
    ("a [b](x) c", "markdown", "A [C](x)"),
    ("a *[b](x)* c", "markdown", "A *[C](x)*"),
]


@pytest.mark.parametrize(("source", "name", "expected"), LOST_WORDS)
def test_markup_of_words_that_a_translation_lacks(source: str, name: FormatName, expected: str):
    """Emphasis is left out, a link goes around the nearest word that no other one needs."""

    def translate(_: Sentence) -> SentenceOutput:
        return SentenceOutput("A C", [(0, 0), (2, 1)])

    assert write(source, name, translate) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "<p>Ich <b>will <i>ein</b> Bier</i>.</p><p>So.",
            "<p><i>Bier</i> <b><i>ein</i> will</b> Ich.</p><p>So.",
        ),
        ("<p>a <b>b <i>c</b></p>d</i> e", "<p><b><i>c</i> b</b> a<i></p>e d</i>"),
    ],
)
def test_elements_that_overlap_are_divided(source: str, expected: str):
    assert write(source, "html", backwards) == expected


class Nesting(HTMLParser):
    """Checks that every element that is opened is closed in the right order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.tags: Counter[str] = Counter()
        self.feed(text)
        self.close()
        assert not self.opened

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.opened.append(tag)

    def handle_endtag(self, tag):
        assert self.opened.pop() == tag


def elements(depth: int) -> st.SearchStrategy[str]:
    text = st.sampled_from(["one", "two three", " ", "end. ", "5", "&amp;"])
    if depth == 0:
        return text
    inner = st.lists(elements(depth - 1), max_size=3).map("".join)
    tag = st.sampled_from(["b", "i", "code", "p", "a href=x"])
    element = st.tuples(tag, inner).map(lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0].split()[0]}>")
    return st.one_of(text, element)


@pytest.mark.parametrize(
    "source",
    [
        "<p><b>a <i>b <s/>c</i> d</b> e</p>",
        "<p>one <b>two<s/>three</b> four <i>five<s/>six</i> end</p>",
        "<p><b>a <i>b <s/>c</i> d <u>e</u></b> f <u>g h</u> <i>i <b>j <s/>k</b></i></p>",
    ],
)
def test_elements_that_a_tag_divides_stay_nested(source: str):
    document = read_xml(source, SPLITTER, XmlTags(splitting=frozenset({"s"})))
    Nesting(write_document(document, backwards))


@given(st.lists(elements(3), max_size=6).map("".join), st.randoms(use_true_random=False))
def test_elements_stay_nested_whatever_the_alignment(source: str, random):
    def translate(sentence: Sentence) -> SentenceOutput:
        count = len(sentence.text.split())
        length = random.randint(1, 6)
        alignment = [(random.randrange(count), target) for target in range(length)]
        return SentenceOutput(" ".join("x" * length), alignment)

    written = write(source, "html", translate)
    before, after = Nesting(source).tags, Nesting(written).tags
    assert all(after[tag] >= before[tag] for tag in ("code", "p"))
    assert after.keys() <= before.keys()
    in_xml = Nesting(write(source.replace("=x", "='x'"), "xml", translate)).tags
    assert all(in_xml[tag] >= count for tag, count in before.items())
    assert in_xml.keys() == before.keys()


@given(st.lists(st.sampled_from(["w", "<a x>w</a>", "<b>w</b>", "<b>w <a x>w</a></b>"])), st.data())
def test_every_link_has_a_word_if_there_are_as_many(words: list[str], data: st.DataObject):
    source = " ".join(words)

    def translate(sentence: Sentence) -> SentenceOutput:
        length = data.draw(st.integers(max(1, source.count("<a")), 8 + source.count("<a")))
        pairs = st.tuples(st.integers(0, len(sentence.text.split())), st.integers(0, length - 1))
        return SentenceOutput(" ".join("x" * length), data.draw(st.lists(pairs)))

    written = write(source, "html", translate)
    links = re.findall("<a x>(.*?)</a>", written)
    assert len(links) == source.count("<a")
    assert all(link.strip() for link in links)


@given(st.data(), st.randoms(use_true_random=False))
def test_formatting_stays_in_its_paragraph(data: st.DataObject, random):
    """Also where elements overlap."""
    parts = data.draw(st.lists(st.sampled_from(["one ", "two. ", "b", "i", "u", "a"]), min_size=1))
    opened: list[str] = []
    source = "zero "  # a paragraph without words stays as it is
    for part in parts:
        if len(part) > 1:
            source += part
        elif part in opened:
            opened.remove(part)
            source += f"</{part}>"
        else:
            opened.append(part)
            source += f"<{part} x>" if part == "a" else f"<{part}>"
    source += "".join(f"</{name}>" for name in opened)

    def translate(sentence: Sentence) -> SentenceOutput:
        words = sentence.text.split()
        alignment = [(random.randrange(len(words)), target) for target in range(len(words))]
        return SentenceOutput(sentence.text, alignment)

    written = write(f"<p>{source}</p><p>end</p>", "html", translate)
    for paragraph in written.split("</p>"):
        Nesting(paragraph + "</p>" * paragraph.startswith("<p>"))


@given(st.text(alphabet=st.sampled_from("<>/!-&;a b='\"#x\n"), max_size=40))
def test_any_text_can_be_read_as_html(source: str):
    assert isinstance(write(source, "html", same), str)


def glued(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Parts with spaces between them, or in one word."""
    marks = st.sampled_from([" ", "/", "-", ""])
    return st.tuples(marks, st.lists(parts, min_size=1, max_size=3)).map(lambda p: p[0].join(p[1]))


INLINE_HTML = st.recursive(
    st.sampled_from(["one", "two, three", "5", "x &lt; y", "<code>f(1)</code>"]),
    lambda inner: st.tuples(
        st.sampled_from(["b", "i class='x > y'", "a href=x", "span translate=yes"]),
        glued(inner),
    ).map(lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0].split()[0]}>"),
    max_leaves=5,
)
BLOCKS_OF_HTML = st.one_of(
    st.tuples(
        st.sampled_from(["p", "li", "h1 id=x", "td", "title", "div><div"]),
        glued(INLINE_HTML),
    ).map(lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0].split()[0].split('>')[0]}>"),
    st.sampled_from(
        [
            "<script>if (a < b) '</p>'</script>",
            "<style translate=yes>p {}</style>",
            "<pre>\none two.\n <b>Three</b>\n</pre>",
            *("<hr>", "\n", "<!-- <p>no</p> -->", "<p>12 &euro;</p>"),
        ]
    ),
)


@given(st.lists(BLOCKS_OF_HTML, max_size=6).map("".join))
def test_html_whose_sentences_stay_the_same_stays_the_same(source: str):
    written = write(source, "html", same)
    if "<title>" not in source:  # in which there are no tags, so < is escaped
        assert written == source
    assert re.findall("</?(?:p|li|h1|td|div|pre|hr|title)", written) == re.findall(
        "</?(?:p|li|h1|td|div|pre|hr|title)", source
    )


def lists_and_tables(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Elements whose end tags may be left out, with others in them, some of which are kept."""

    def repeated(*names: str) -> st.SearchStrategy[str]:
        name = st.sampled_from([*names, *(f"{name} translate=no" for name in names)])
        element = st.tuples(name, inner).map(lambda p: f"<{p[0]}>{p[1]}</{p[0].split()[0]}>")
        return st.lists(element, min_size=1, max_size=3).map("".join)

    row = repeated("td", "th").map("<tr>{0}</tr><tr translate=no>{0}</tr><tr>{0}</tr>".format)
    return st.one_of(
        repeated("li").map("<ul>{}</ul>".format),
        repeated("dt", "dd").map("<dl>{}</dl>".format),
        row.map("<table><thead>{0}</thead><tbody translate=no>{0}</tbody></table>".format),
        repeated("p", "div"),
    )


@given(st.recursive(st.sampled_from(["one", "<hr><b>two.</b> Three"]), lists_and_tables))
def test_end_tags_may_be_left_out(source: str):
    def shorter(text: str) -> str:
        return re.sub("</(?:li|dt|dd|td|th|tr|thead|tbody|p)>", "", text)

    assert sentences(shorter(source), "html") == sentences(source, "html")
    assert write(shorter(source), "html", upper) == shorter(write(source, "html", upper))


# XML


@pytest.mark.parametrize(
    ("source", "tags", "found", "expected"),
    [
        (
            "<d>\n<t>A title</t>\n<par>One <b>two <i>now</i></b>. Three.</par></d>",
            XmlTags(),
            ["A title", "One two now.", "Three."],
            "<d>\n<t>A TITLE</t>\n<par>ONE <b>TWO <i>NOW</i></b>. THREE.</par></d>",
        ),
        (
            'Press <x id="1"/> or <g id="2"><g id="3">this</g></g>',
            XmlTags(),
            ["Press  or this"],
            'PRESS <x id="1"/>  OR <g id="2"><g id="3">THIS</g></g>',
        ),
        (
            "one <script>two <br/>two</script> <Code>three</Code> <title/>four",
            XmlTags(),
            ["one two two three four"],
            "ONE <script>TWO <br/>TWO</script> <Code>THREE</Code> <title/>FOUR",
        ),
        (
            "<d><par>one two</par> <par>three</par></d>",
            XmlTags(non_splitting={"par"}),
            ["one two three"],
            "<d><par>ONE TWO</par> <par>THREE</par></d>",
        ),
        ("one <p>two</p> <b>three</b>", XmlTags(splitting={"p"}), ["one", "two", "three"], None),
        (
            "<d><p>one</p> <b>two</b> <b>three</b></d>",
            XmlTags(splitting={"p"}, detects_outline=False),
            ["one", "two three"],
            "<d><p>ONE</p> <b>TWO</b> <b>THREE</b></d>",
        ),
        (
            "<d><n>one</n><p>two <n>three</n> four</p></d>",
            XmlTags(ignored={"n"}),
            ["two three four"],
            "<d><n>one</n><p>TWO <n>three</n> FOUR</p></d>",
        ),
        (
            "<!DOCTYPE d [<!ENTITY b 'c'>]><d>one &b; &lt;&eacute;</d><?p a > b?>",
            XmlTags(),
            ["one  <é"],
            "<!DOCTYPE d [<!ENTITY b 'c'>]><d>ONE &b;  &lt;É</d><?p a > b?>",
        ),
        ("<标题>one <![CDATA[<b> >]]></标题>", XmlTags(), ["one"], None),
        ("</b>one <i>two</i></c> three <d>four", XmlTags(), ["one two three four"], None),
        ("<ul><li>one</li><li translate='no'>two</li></ul>", XmlTags(), ["one"], None),
    ],
)
def test_xml(source: str, tags: XmlTags, found: list[str], expected: str | None):
    document = read_xml(source, SPLITTER, tags)
    assert [sentence.text for sentence in document.sentences] == found
    assert write_document(document, same).replace("  ", " ") == source.replace("&eacute;", "é")
    if expected is not None:
        assert write_document(document, upper) == expected


def test_xml_keeps_elements_whose_words_a_translation_lacks():
    def translate(_: Sentence) -> SentenceOutput:
        return SentenceOutput("A C", [(0, 0), (2, 1)])

    assert write("a <g>b</g> c", "xml", translate) == "A <g></g>C"


def test_xml_keeps_thirty_inline_elements_inside_one_another():
    def nested(depth: int, text: str) -> str:
        return "<b>" * depth + text + "</b>" * depth

    assert write(f"one {nested(30, 'two')}", "xml", upper) == f"ONE {nested(30, 'TWO')}"
    assert write(f"one {nested(31, 'two')}", "xml", upper) == f"ONE {nested(30, 'TWO')}"


@given(st.text(alphabet=st.sampled_from("<>/!?-&;[]a b='\"\n"), max_size=40))
def test_any_text_can_be_read_as_xml(source: str):
    assert isinstance(write(source, "xml", same), str)


# Markdown

MARKDOWN = """---
title: front matter
---
# A *title* #

Some **bold** text with [a link](http://x.y/a_(b) "t") and `code here`.
It goes on\\
and breaks.

> A quote of
> two lines. With snake_case.

- [ ] one
- two ![picture](x.png) three
  1. deep

| a | column two |
|---|---|
| 1 | **x y** |

```python
x = "Hello"
```

<div>raw</div>

See https://a.b/c_d_e. See <https://x.y> and <b>bold</b>. \\*not\\* text[^1].

[^1]: Note one.
"""


def test_markdown_keeps_its_markup():
    written = write(MARKDOWN, "markdown", upper)
    for line in ("# A *TITLE* #", "> A QUOTE OF TWO LINES. WITH SNAKE_CASE.", "- [ ] ONE"):
        assert line in written.splitlines()
    assert '**BOLD** TEXT WITH [A LINK](http://x.y/a_(b) "t") AND `code here`. IT GOES ON\\\n' in (
        written
    )
    for kept in ('x = "Hello"', "<div>raw</div>", "|---|---|", "title: front matter", "[^1]: "):
        assert kept in written
    assert "![picture](x.png)" in written
    assert "SEE https://a.b/c_d_e. SEE <https://x.y>" in written
    assert "<b>BOLD</b>. \\*NOT\\* TEXT[^1]." in written
    assert "| 1 | **X Y** |" in written


@pytest.mark.parametrize("mark", "_*~")
@pytest.mark.parametrize("count", range(1, 11))
def test_a_blank_to_fill_in_is_text(mark: str, count: int):
    """Runs of marks that stand alone are no emphasis in Markdown."""
    written = write(f"Ich {mark * count} (gehen) nach Hause.", "markdown", same)
    assert written.count(mark) == count
    assert "<" not in written


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "front",
    ["---|title: one|---|", "---|---|", "---|title: one|...|", "+++|title = 'a'|---|+++|", ""],
)
def test_front_matter_is_kept(mark: str, end: str, front: str):
    """Also with a byte order mark before it."""
    source = f"{mark}{front}# Two||three|---|".replace("|", end)
    assert sentences(source, "markdown") == ["Two", "three"]
    written = write(source, "markdown", upper)
    assert written == source.replace("Two", "TWO").replace("three", "THREE")


def test_references_of_markdown_keep_their_labels():
    source = "See [one] and [two][] and ![three](x.png).\n\n[one]: http://a\n[two]: http://b\n"
    expected = (
        "SEE [ONE][one] AND [TWO][two] AND ![three](x.png).\n\n[one]: http://a\n[two]: http://b\n"
    )
    assert write(source, "markdown", upper) == expected
    assert write("See [one].", "markdown", upper) == "SEE \\[ONE\\]."


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/serving.md"])
def test_real_pages_come_out_as_they_went_in(page: str):
    """But for where lines end, and characters that are escaped."""

    def bare(text: str) -> str:
        return "".join(text.split()).replace("\\", "")

    source = (ROOT / page).read_text(encoding="utf-8")
    assert bare(write(source, "markdown", same)) == bare(source)


def test_what_a_translation_adds_is_no_markup():
    def translate(_: Sentence) -> SentenceOutput:
        return SentenceOutput("1. *a* <b> [c] `d` e_f _g_ | \\")

    written = write("text", "markdown", translate)
    assert written == r"1\. \*a\* \<b> \[c\] \`d\` e_f \_g\_ \| \\"


def test_cells_of_tables_have_bars():
    source = "| one \\| two | one | `a \\| b` c |\n|---|---|---|\n| x | y | z |\n"
    assert sentences(source, "markdown") == ["one | two", "one", "a \\| b c", "x", "y", "z"]
    expected = "| ONE \\| TWO | ONE | `a \\| b` C |\n|---|---|---|\n| X | Y | Z |\n"
    assert write(source, "markdown", upper) == expected


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("请访问https://example.com。这是好网站。", ["请访问。", "这是好网站。"]),
        ("https://a.b/c?d=e&f是官方网站", ["是官方网站"]),
        ("공식 사이트는 https://a.b입니다.", ["공식 사이트는 입니다."]),
        ("see (https://de.wikipedia.org/wiki/Müller), please", ["see (), please"]),
        ("Xem https://vi.wikipedia.org/wiki/Việt_Nam nhé", ["Xem  nhé"]),
        ("**https://a.b** or *https://a.b/c_d*, too", [" or , too"]),
        ("See [https://a.b](https://a.b) now.", ["See  now."]),
    ],
)
def test_addresses_in_markdown_end_where_text_goes_on(source: str, found: list[str]):
    assert sentences(source, "markdown") == [sentence.strip() for sentence in found]
    assert write(source, "markdown", same).split() == source.split()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("## Two <!-- no toc -->", "## TWO <!-- no toc -->"),
        ("one <!--> two <!---> three", "ONE <!-->  TWO <!--->  THREE"),
        ("one <!-- `two\nthree --> *four*", "ONE <!-- `two three -->  *FOUR*"),
        ("one <!-- two -- >", "ONE \\<!-- TWO -- >"),
        ("one ![two](<a b.png>) three", "ONE ![two](<a b.png>)  THREE"),
        ("[one](<a b.md> 't')", None),
        ("[one](a_(b_(c)) (t)) two", "[ONE](a_(b_(c)) (t)) TWO"),
        ('[one](a "t \\" u") two', '[ONE](a "t \\" u") TWO'),
        ("[one]( a\\)b\n) two", "[ONE]( a\\)b ) TWO"),
        ("[one](a b)", "\\[ONE\\](A B)"),
        ("[one](<a b)", "\\[ONE\\](\\<A B)"),
    ],
)
def test_comments_and_targets_of_markdown(source: str, expected: str | None):
    expected = expected or source.replace("one", "ONE")
    assert write(source, "markdown", upper) == expected


@pytest.mark.parametrize(
    ("source", "found", "expected"),
    [
        ("Tom &amp; caf&eacute; &#8364;", "Tom & café €", "TOM & CAFÉ €"),
        ("a &notit; &copy", "a &notit; &copy", "A \\&NOTIT; &COPY"),
        ("&nbsp;&nbsp;one&nbsp;two", "one\xa0two", "&nbsp;&nbsp;ONE\xa0TWO"),
        ("a&NewLine;&#13;b", "a  b", "A  B"),
        ("\\&amp; means", "&amp; means", None),
        ("\\## one", "## one", None),
        ("\\>one", ">one", None),
        ("\\~~~ one", "~~~ one", "\\~\\~\\~ ONE"),
        ("\\_\\_one\\_\\_", "__one__", None),
        ("# one \\##", "one ##", None),
        ("one & two # three > four ~ 5 - 6 = 7", None, None),
    ],
)
def test_character_references_and_escapes(source: str, found: str | None, expected: str | None):
    assert sentences(source, "markdown") == [found or source]
    translate = upper if expected else same
    assert write(source, "markdown", translate) == (expected or source)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("an _important_ word", "一个 重要 词", "一个*重要*词"),
        ("this is **“important”** .", "这 是 “重要” 。", "这是<strong>“重要”</strong>。"),
        ("the **File:** menu", "打开 文件： 菜单", "打开<strong>文件：</strong>菜单"),
        ("see **[this](x)** now", "请 看 这", "请<strong>[看](x)</strong>这"),
        ("one **two** **three**", "一 二 三", "一**二**<strong>三</strong>"),
        ("one **two _three_**", "一 二 三", "一<strong>二*三*</strong>"),
    ],
)
def test_emphasis_in_scripts_without_spaces(source: str, target: str, expected: str):
    """It is written so that it is emphasis for CommonMark: `target` has a part for each word."""

    def translate(_: Sentence) -> SentenceOutput:
        parts = target.split()
        numbers = [number for number, part in enumerate(parts) for _ in word_spans(part)]
        return SentenceOutput("".join(parts), [(n, i) for i, n in enumerate(numbers)])

    assert write(source, "markdown", translate) == expected


def test_emphasis_between_sentences_keeps_its_space():
    def translate(sentence: Sentence) -> SentenceOutput:
        return SentenceOutput("一。", [(i, 0) for i in range(len(sentence.text.split()))])

    assert write("**One.** Two. Three *four. Five*.", "markdown", translate) == (
        "**一。** 一。*一*。*一*。"
    )


def test_a_space_between_sentences_comes_after_markup_that_closes():
    def translate(sentence: Sentence) -> SentenceOutput:
        return SentenceOutput({"重要。": "One.", "再见。": "Two."}[sentence.text])

    assert write("**重要。**再见。", "markdown", translate) == "**One.** Two."
    assert write("**重要。**_再见。_", "markdown", translate) == "**One.** _Two._"
    assert write("重要。<sup>[1]</sup>再见。", "html", translate) == "One.<sup>[1]</sup> Two."


def test_line_breaks_of_html_in_markdown():
    source = "one<BR>two\n\n| a<BR/>b |\n|---|\n"
    assert sentences(source, "markdown") == ["one", "two", "a", "b"]
    assert write(source, "markdown", upper) == source.upper()


EMPHASIS = st.sampled_from(["one", "_two_", "**three,**", "(*four*)", "~~five~~", "***six***"])
EMPHASIS |= st.sampled_from(["**six *seven***", "*six **seven***", "***six* seven**"])
for form in ("[{}](x)", "**{}**", "_{}_"):
    EMPHASIS |= st.lists(EMPHASIS, min_size=1, max_size=3).map(" ".join).map(form.format)


@given(st.lists(EMPHASIS, min_size=1, max_size=4).map(" ".join), st.data())
def test_no_delimiter_of_emphasis_is_shown(source: str, data: st.DataObject):
    parser = MarkdownIt("commonmark").enable("strikethrough")
    hypothesis.assume(not re.search("[*_~]", parser.render(source)))
    target = data.draw(
        st.text(alphabet="甲乙，“”ab ", min_size=1).map(str.strip).filter(has_letters)
    )

    def translate(sentence: Sentence) -> SentenceOutput:
        pairs = [st.integers(0, len(word_spans(s)) - 1) for s in (sentence.text, target)]
        return SentenceOutput(target, data.draw(st.lists(st.tuples(*pairs))))

    shown = parser.render(write(source, "markdown", translate))
    assert not re.search("[*_~]", shown)


def test_code_directly_after_a_sentence():
    assert sentences("运行命令。`make`二。", "markdown") == ["运行命令。", "make二。"]
    assert write("运行命令。`make`二。", "markdown", same) == "运行命令。`make`二。"


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\0"])
def test_lines_of_markdown_end_as_commonmark_says(character: str):
    source = f"# One\n\nTwo{character}three\nand four.\r\rFive.\r\n\r\nSix.\n"
    written = write(source, "markdown", upper)
    assert written == source.upper().replace("THREE\nAND", "THREE AND").replace("\0", "\ufffd")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("Call `a  \nb` or\nso.", "CALL `a   b` OR SO."),
        ("> One `a\\\n> b` two", "> ONE `a\\ b` TWO"),
        ("**One  \ntwo** three\\\n- x", "**ONE**  \n**TWO** THREE\\\\\n- X"),
        ("> [One  \n> two](x) three", "> [ONE](x)  \n> [TWO](x) THREE"),
        ("One [**two](x) three**", "ONE [\\*\\*TWO](x) THREE\\*\\*"),
        ("**One *two*** three", "<strong>ONE *TWO*</strong> THREE"),
        ("*One **two***", "*ONE **TWO***"),
        ("***One* two** three", "**<em>ONE</em> TWO** THREE"),
        ("***One two** three*", "***ONE TWO** THREE*"),
        ("__One two _three___", "__ONE TWO _THREE___"),
        ("***One** two", "\\***ONE** TWO"),
        ("One \\", "ONE \\\\"),
        ("> [!NOTE]\n> One\n> two.\n>\n> Three", "> [!NOTE]\n> ONE TWO.\n>\n> THREE"),
        ("> [!tip]  \r\n> One\r\n\r\n> [!TIP]\n", "> [!tip]  \r\n> ONE\r\n\r\n> [!TIP]\n"),
        ("One \\``two", "ONE \\`\\`TWO"),
    ],
)
def test_markup_across_lines_of_markdown(source: str, expected: str):
    assert write(source, "markdown", upper) == expected


INLINE_MARKDOWN = st.sampled_from(
    [
        "one",
        "two, three",
        "5 \\* 3",
        "a \\| b",
        "`x \\| y`",
        "`f(*)`",
        "a\u2028b",
        "a ![x](y) b",
        "c &amp; &copy;",
        "\\&amp; &lt;d",
        "\\## e",
        "f \\#",
        "\\_\\_g\\_\\_",
        "h \\~~i~~",
        "\\> j",
        "\\- k",
        "\\~~~ l",
        "1\\. m",
        "\\===",
        "&#35; n",
        "m&nbsp;o",
        "p <!-- q --> r",
        "&notit;",
    ]
)
for form in ("_{}_", "**{}**", "[{}](x)"):
    INLINE_MARKDOWN |= (
        st.lists(INLINE_MARKDOWN, min_size=1, max_size=3).map(" ".join).map(form.format)
    )
LINE_OF_MARKDOWN = st.lists(INLINE_MARKDOWN, min_size=1, max_size=4).map(" ".join)
BLOCKS_OF_MARKDOWN = st.one_of(
    st.lists(LINE_OF_MARKDOWN, min_size=1, max_size=3).map("\n".join),
    st.lists(LINE_OF_MARKDOWN, min_size=2, max_size=3).map("  \n".join),
    LINE_OF_MARKDOWN.map("# {}".format),
    LINE_OF_MARKDOWN.map("> - {0}\n>   go on".format),
    LINE_OF_MARKDOWN.map("1. {0}\n2. {0}".format),
    LINE_OF_MARKDOWN.map("| a | {0} |\n|---|---|\n| {0} | b |".format),
    st.sampled_from(["```\n# no\n```", "---", "    code", "<div>\nno\n</div>", "[x]: y"]),
)


@given(st.lists(BLOCKS_OF_MARKDOWN, max_size=5).map("\n\n".join))
def test_markdown_whose_sentences_stay_the_same_shows_the_same(source: str):
    """But for where lines end."""

    def shown(text: str) -> list[str]:
        return MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text).split()

    assert shown(write(source, "markdown", same)) == shown(source)


@given(st.text(alphabet=st.sampled_from("#*_`[]()>-|1. ab\n\\<"), max_size=40))
def test_any_text_can_be_read_as_markdown(source: str):
    assert isinstance(write(source, "markdown", same), str)


# Subtitles

SUBRIP = """1
00:00:01,000 --> 00:00:03,000
Hello <i>my old
friend</i>. How are you?

2
00:00:04,000 --> 00:00:05,500
- Good.
- {\\an8}Very good and
still better.

3
00:00:06,000 --> 00:00:07,000
♪ 123 ♪
"""


def test_subtitles_keep_times_and_lines():
    assert sentences(SUBRIP, "subtitles") == [
        *("Hello my old friend.", "How are you?"),
        *("Good.", "Very good and still better."),
    ]
    written = write(SUBRIP, "subtitles", upper)
    assert written.replace("<I>", "<i>").replace("</I>", "</i>") == SUBRIP.upper().replace(
        "\\AN8", "\\an8"
    ).replace("<I>", "<i>").replace("</I>", "</i>")


def test_web_vtt_keeps_notes_and_settings():
    source = (
        "WEBVTT\r\n\r\nNOTE a comment\r\n\r\n00:01.000 --> 00:02.000 align:left\r\n"
        "<v Paul>Hello you\r\nover there\r\n"
    )
    assert sentences(source, "subtitles") == ["Hello you over there"]
    expected = source.replace("Hello you", "HELLO YOU").replace("over there", "OVER THERE")
    assert write(source, "subtitles", upper) == expected


def test_cues_without_blank_lines_between_them_keep_their_times():
    times = [f"00:00:0{n},000 --> 00:00:0{n},900" for n in range(3)]
    source = "".join(f"{n}\n{time}\nwords {'abc'[n]}\n" for n, time in enumerate(times))
    assert sentences(source, "subtitles") == ["words a", "words b", "words c"]
    assert write(source, "subtitles", upper) == source.replace("w", "W").upper()


def test_entities_of_web_vtt_and_speakers_in_italics():
    source = "WEBVTT\n\n00:01.000 --> 00:02.000\n<i>- a &lt; b</i>\n<i>- no &amp; yes</i>\n"
    assert sentences(source, "subtitles") == ["a < b", "no & yes"]
    assert write(source, "subtitles", same) == source


@pytest.mark.parametrize(
    ("start", "line", "expected"),
    [
        ("WEBVTT\n\n", "<v Jürgen>one</v> two", "<v Jürgen>ONE</v> TWO"),
        ("WEBVTT\n\n", "<v 张三>one", "<v 张三>ONE"),
        ("WEBVTT\n\n", "<v.loud Mrs. Smith (off), Bob>one", "<v.loud Mrs. Smith (off), Bob>ONE"),
        ("WEBVTT\n\n", "one <00:01.500><c.größe>two</c>", "ONE <00:01.500><c.größe>TWO</c>"),
        ("WEBVTT\n\n", "one < two <i>and</i> 4 > 3", "ONE &lt; TWO <i>AND</i> 4 &gt; 3"),
        ("", '<font face="a" size="9px;">one</font>', '<font face="a" size="9px;">ONE</font>'),
        ("", "one < i >two< / i > <c x='ä'>three</c>", "ONE < i >TWO< / i > <c x='ä'>THREE</c>"),
        ("", "<v Jürgen>one <br/>two", "<v Jürgen>ONE <br/>TWO"),
        ("", "one <two and three> 1 < a and b > 2", "ONE <TWO AND THREE> 1 < A AND B > 2"),
    ],
)
def test_tags_of_subtitles(start: str, line: str, expected: str):
    start += "00:01.000 --> 00:02.000\n"
    assert write(start + line, "subtitles", upper) == start + expected


def test_a_cue_has_no_empty_line_however_short_its_translation():
    def translate(_: Sentence) -> SentenceOutput:
        return SentenceOutput("Yes", [(0, 0)])

    written = write(SUBRIP, "subtitles", translate)
    for cue in written.split("\n\n"):
        assert all(line.strip() for line in cue.strip("\n").split("\n"))


def test_a_line_with_only_a_dash_stays_a_line():
    source = "1\n00:00:01,000 --> 00:00:02,000\n-\nOne two\n- \nthree\n"
    written = write(source, "subtitles", upper)
    assert written == source.replace("One two", "ONE TWO").replace("three", "THREE")


@given(
    st.lists(
        st.lists(
            st.sampled_from(
                [
                    *("one two", "- Three.", "-", "<i>four</i>", "{\\an8}5 six", "♪ 7"),
                    *("<v Zoë Q. (off)>eight", "- <font size='9px;'>nine</font> &amp;"),
                ]
            ),
            min_size=1,
        )
    ),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["WEBVTT", ""]),
)
def test_subtitles_whose_sentences_stay_the_same_stay_the_same(
    cues: list[list[str]], end: str, start: str
):
    time = "00:00:01,000 --> 00:00:02,000"
    lines = [[str(number), time, *cue, ""] for number, cue in enumerate(cues)]
    source = "".join(line + end for cue in [[start, ""], *lines] for line in cue)
    written = write(source, "subtitles", same)
    assert written.split() == source.split()
    assert written.count(end) == source.count(end)
    assert written.count(end + end) == source.count(end + end)


@given(st.text(alphabet=st.sampled_from("a1<i v>\n\r -:,{\\}.=ä"), max_size=60))
def test_any_text_can_be_read_as_subtitles(text: str):
    for start in ("1\n", "WEBVTT\n\n"):
        start += "00:00:01,000 --> 00:00:02,000\n"
        assert write(start + text, "subtitles", same).startswith(start)
