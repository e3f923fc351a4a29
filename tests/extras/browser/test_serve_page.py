"""The page of `seq2seq serve`, used in a browser as people use it, against a real server."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from commands import Command
from headless_browser import open_browser
from number_languages import in_german, languages_config
from number_task import write_config
from playwright.sync_api import Browser, Page, Route, expect
from served import Served, serving

from seq2seq_cli.extras.serve.documents.document_writer import DocumentWriter
from seq2seq_cli.extras.serve.documents.formats import READERS
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter
from seq2seq_cli.extras.serve.messages import SentenceOutput
from seq2seq_cli.text.sentences import BEFORE_SPACE

ROOT = Path(__file__).parents[3]
expect.set_options(timeout=20_000)
TOKEN = "s3cret"
CHAR_LIMIT = 120
DESKTOP, PHONE = {"width": 1200, "height": 900}, {"width": 320, "height": 640}
HOSTILE = "<img src=x onerror=\"document.title='run'\">"
LONG = "\n".join(["one two three four", "five six seven", "", "eight nine zero"] * 4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Iterator[Served]:
    """English to German and back, for those who have the token."""
    folder = tmp_path_factory.mktemp("languages")
    config, run = write_config(folder, languages_config(folder)), folder / "run"
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    languages = ("--langs", "en-de", "--langs", "de-en")
    options = ("--processes", 1, "--char-limit", CHAR_LIMIT, "--alternatives-limit", 3)
    with serving(
        run, run, *languages, *options, environment={"SEQ2SEQ_TOKEN": f"{TOKEN}\n"}
    ) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def errors() -> list[str]:
    """What the page complains about; a test that expects a complaint takes it out."""
    return []


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, server: Served, errors: list[str]) -> Iterator[OpenPage]:
    """Open the page in a browser that keeps nothing yet but what is given."""
    urls: list[str] = []
    contexts = []

    def open_one(kept: dict[str, Any] | None = None, path: str = "/", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": DESKTOP, "locale": "en-US", **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: urls.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        start = {"token": TOKEN, "languages": {"source": "en", "target": "de"}, **(kept or {})}
        items = json.dumps({f"seq2seq.{name}": json.dumps(value) for name, value in start.items()})
        page.add_init_script(f"if (!localStorage.length) Object.assign(localStorage, {items});")
        page.goto(server.url + path)
        wait_until_ready(page)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert errors == []
    assert [url for url in urls if not url.startswith((server.url, "blob:"))] == []


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    return open_page()


def wait_until_ready(page: Page) -> None:
    """Wait until the page knows the languages of the server, and listens."""
    expect(page.locator("#from option").first).to_be_attached()


def reload(page: Page) -> None:
    page.reload()
    wait_until_ready(page)


def stop_clock(page: Page) -> None:
    """Let time pass only as the test says."""
    page.clock.install()
    page.clock.pause_at(datetime.now() + timedelta(hours=1))


def translate(page: Page, text: str) -> None:
    """Fill in a text, and wait until it is translated and its words are known."""
    page.fill("#source", text)
    expect(page.locator("#target")).to_have_text(in_german(text))
    expect(page.locator("#source-words .word").first).to_be_attached()


def words(page: Page, marks: str) -> list[str]:
    return page.locator(marks).all_inner_texts()


class Requests:
    """Requests of a page to a path, each of which may be held for a while."""

    def __init__(self, page: Page, path: str = "translate") -> None:
        self._page = page
        self.fields: list[dict[str, Any]] = []
        self.held: list[Route] = []
        self.holds = False
        page.route(f"**/{path}", self._handle)

    def _handle(self, route: Route) -> None:
        self.fields.append(route.request.post_data_json)
        if self.holds:
            self.held.append(route)
        else:
            route.continue_()

    def release(self) -> None:
        """Let a request go on that is held, or that will be."""
        while not self.held:
            self._page.evaluate("0")
        self.held.pop().continue_()


# From one box to the other


def test_typing_is_translated_when_it_pauses(open_page: OpenPage):
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    expect(page.locator("#source")).to_be_focused()
    requests = Requests(page)
    stop_clock(page)
    page.evaluate(  # nothing is translated while characters are composed
        """() => {
            const source = document.getElementById("source");
            source.value = "one";
            source.dispatchEvent(new InputEvent("input", {isComposing: true}));
        }"""
    )
    page.clock.run_for(5_000)
    assert requests.fields == []
    page.dispatch_event("#source", "compositionend")
    page.clock.run_for(5_000)
    expect(page.locator("#target")).to_have_text("eins")
    page.click("#clear")
    requests.fields.clear()
    page.locator("#source").press_sequentially("one two three")
    assert requests.fields == []
    page.clock.run_for(1_000)
    expect(page.locator("#target")).to_have_text("eins zwei drei")
    assert [fields["q"] for fields in requests.fields] == ["one two three"]
    expect(page.locator("#count")).to_have_text(f"13 / {CHAR_LIMIT}")
    expect(page.locator("#target")).to_have_attribute("aria-busy", "false")
    page.fill("#source", "one\n\ntwo")
    page.keyboard.press("Control+Enter")  # does not wait for a pause
    expect(page.locator("#target")).to_have_text("eins zwei")
    page.click("#copy")
    expect(page.locator("#status")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "eins\n\nzwei"
    page.click("#clear")
    expect(page.locator("#target")).to_have_text("")
    expect(page.locator("#source")).to_be_focused()
    expect(page.locator("#copy")).to_be_disabled()


def test_only_the_answer_to_the_latest_text_is_shown(page: Page):
    requests = Requests(page)
    requests.holds = True
    with page.expect_request("**/translate"):
        page.fill("#source", "one")
    expect(page.locator("#target")).to_have_attribute("aria-busy", "true")
    requests.holds = False
    with page.expect_event("requestfailed"):  # it is given up as soon as there is another text
        translate(page, "two")
    assert [fields["q"] for fields in requests.fields] == ["one", "two"]
    requests.holds = True
    with page.expect_request("**/translate"):
        page.fill("#source", "three")
    page.click("#clear")
    expect(page.locator("#target")).to_have_attribute("aria-busy", "false")


def test_a_long_text_is_translated_in_pieces_and_shown_on_the_way(page: Page):
    requests = Requests(page)
    stop_clock(page)
    requests.holds = True
    page.fill("#source", LONG)
    expect(page.locator("#count")).to_have_text(f"{len(LONG)} characters in 2 parts")
    page.keyboard.press("Control+Enter")
    expect(page.locator("#target")).to_have_attribute("aria-busy", "true")
    page.clock.fast_forward(2_000)  # it takes its time
    requests.release()
    progress = page.locator("#progress")
    expect(progress).to_be_visible()
    expect(page.locator("#target")).to_have_text(re.compile("^eins zwei drei vier\nfünf"))
    assert 0 < progress.evaluate("bar => bar.value") < 1
    requests.release()
    expect(progress).to_be_hidden()
    assert page.evaluate("document.querySelector('#target').textContent") == in_german(LONG)
    assert "".join(fields["q"] for fields in requests.fields) == LONG
    assert max(len(fields["q"]) for fields in requests.fields) <= CHAR_LIMIT


def test_languages_are_detected_and_swapped_with_the_texts(open_page: OpenPage):
    page = open_page({"languages": {"source": "auto", "target": "de"}})
    expect(page.locator("#swap")).to_be_disabled()
    translate(page, "three four five")
    assert page.locator("#from option").first.inner_text() == "English (detected)"
    page.click("#swap")
    expect(page.locator("#source")).to_have_value("drei vier fünf")
    expect(page.locator("#target")).to_have_text("three four five")
    expect(page.locator("#target")).to_have_attribute("lang", "en")
    assert (page.input_value("#from"), page.input_value("#to")) == ("de", "en")
    assert page.locator("#to option").all_inner_texts() == ["English"]  # only pairs that exist
    reload(page)
    assert (page.input_value("#from"), page.input_value("#to")) == ("de", "en")
    page.select_option("#from", "en")
    assert page.locator("#to option").all_inner_texts() == ["German"]


def test_swapping_keeps_a_text_that_is_not_translated_yet(page: Page):
    translate(page, "one two")
    page.click("#show-alternatives")
    expect(page.locator("#choices input").first).to_be_visible()
    requests = Requests(page)
    requests.holds = True
    stop_clock(page)
    page.fill("#source", "three")  # while the translation of "one two" is shown
    page.click("#swap")
    expect(page.locator("#source")).to_have_value("three")
    page.select_option("#from", "en")
    page.fill("#source", LONG)
    page.keyboard.press("Control+Enter")
    expect(page.locator("#target")).to_have_attribute("aria-busy", "true")
    page.clock.fast_forward(2_000)
    requests.release()
    expect(page.locator("#target")).to_have_text(re.compile("^eins zwei drei vier\nfünf"))
    expect(page.locator("#choices")).to_be_hidden()  # of a sentence that is no longer there
    page.click("#swap")
    expect(page.locator("#source")).to_have_value(LONG)


# Words that belong together


def test_the_mouse_shows_words_that_belong_together(page: Page):
    translate(page, "one two\nthree four")
    page.hover("#target .word >> nth=2")
    assert (words(page, ".pointed"), words(page, ".aligned")) == (["drei"], ["three"])
    box = page.locator("#source-words .word").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert (words(page, ".pointed"), words(page, ".aligned")) == (["two"], ["zwei"])
    page.mouse.move(0, 0)
    assert words(page, ".pointed, .aligned") == []
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert words(page, ".pointed") == ["two"]
    page.keyboard.type("x")  # there are no words until the text is translated
    page.mouse.move(0, 0)
    assert words(page, ".pointed, .aligned") == []


def test_words_of_other_scripts_are_found(page: Page):
    page.fill("#source", "😀 one\n𝔘𝔫𝔦 two")
    expect(page.locator("#source-words .word")).to_have_text(["😀", "one", "𝔘𝔫𝔦", "two"])
    assert page.locator("#source-words").inner_text() == "😀 one\n𝔘𝔫𝔦 two "
    page.fill("#source", "שלום עולם")  # from right to left
    for box in ("#source", "#source-words"):
        assert page.locator(box).evaluate("box => box.matches(':dir(rtl)')")


def test_keys_show_words_that_belong_together(page: Page):
    translate(page, "one two\nthree four")
    page.focus("#target")
    for key, pointed, aligned in (
        ("ArrowRight", "eins", "one"), ("ArrowRight", "zwei", "two"),
        ("ArrowDown", "drei", "three"), ("ArrowLeft", "zwei", "two"),
        ("End", "vier", "four"), ("ArrowRight", "vier", "four"), ("Home", "eins", "one"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert (words(page, ".pointed"), words(page, ".aligned")) == ([pointed], [aligned]), key
        expect(page.locator("#spoken")).to_have_text(f"{pointed}: {aligned}")
    page.focus("#source")
    assert words(page, ".pointed") == []
    page.keyboard.press("Control+Home")
    page.keyboard.press("ArrowDown")
    assert (words(page, ".pointed"), words(page, ".aligned")) == (["three"], ["drei"])


# A closer look


def test_alternatives_of_a_sentence_too_long_for_attention(page: Page):
    """The limit of the server is above that of its texts, so the page is told another one."""

    def lower(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | {"attentionLimit": 10})

    page.route("**/frontend/settings", lower)
    reload(page)
    requests = Requests(page)
    translate(page, "one two three\nfour")
    page.click("#show-alternatives")
    page.click("#show-attention")
    expect(page.locator("#choices input").first).to_be_visible()
    expect(page.locator("#attention-hint")).to_contain_text("at most 10 characters")
    expect(page.locator("#weights")).to_be_hidden()
    assert not any(fields.get("attention") for fields in requests.fields)
    page.focus("#target")
    page.keyboard.press("End")
    expect(page.locator("#weights td").first).to_be_attached()
    expect(page.locator("#attention-hint")).to_contain_text("attended to")


def test_an_alternative_is_chosen_with_keys_and_with_the_mouse(page: Page):
    translate(page, "one two\nthree four")
    page.focus("#target")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    chosen = page.locator("#choices :checked")
    expect(chosen).to_be_focused()
    expect(page.locator("#which")).to_have_text("Sentence 2 of 2")
    choices = page.locator("#choices label").all_inner_texts()
    assert choices[0] == "drei vier" and len({*choices}) == len(choices) >= 3
    page.keyboard.press("ArrowDown")
    target = page.locator("#target")
    expect(target).to_have_text(f"eins zwei\n{choices[1]}")
    page.locator("#choices label").nth(2).click()
    expect(target).to_have_text(f"eins zwei\n{choices[2]}")
    expect(page.locator("#history bdi").nth(1)).to_have_text(f"eins zwei\n{choices[2]}")
    page.hover("#target .word >> nth=-1")  # the words of an alternative are aligned, too
    assert len(words(page, ".aligned")) >= 1
    page.fill("#source", "one two\nthree four\nfive")  # what was chosen stays
    expect(target).to_have_text(f"eins zwei\n{choices[2]}\nfünf")
    page.click("#show-alternatives")
    expect(page.locator("#closer")).to_be_hidden()


def test_attention_is_a_table_with_numbers(page: Page):
    translate(page, "one two three")
    page.click("#show-attention")
    table = page.locator("#weights")
    expect(table.get_by_role("columnheader")).to_have_text(["one", "two", "three"])
    expect(table.get_by_role("rowheader")).to_have_text(["eins", "zwei", "drei"])
    percents = [int(text.split()[0]) for text in table.locator("td[title]").all_inner_texts()]
    assert len(percents) == 9
    for row in range(3):
        assert sum(percents[3 * row : 3 * row + 3]) == pytest.approx(100, abs=2)
    strongest = percents.index(max(percents))
    title = table.locator("td[title]").nth(strongest).get_attribute("title")
    assert title.endswith(f"{max(percents)} %")
    weights = "cells => cells.map((cell) => Number(cell.style.getPropertyValue('--weight')))"
    shown = table.locator("td[title]").evaluate_all(weights)
    assert shown.index(max(shown)) == strongest


# Glossary and history, which stay in the browser


def fill_in_term(page: Page, term: str, translation: str) -> None:
    first = page.locator("#glossary li").first
    first.get_by_placeholder("Term").fill(term)
    first.get_by_placeholder("Translation").fill(translation)


def test_a_glossary_is_kept_to_and_kept(page: Page):
    translate(page, "one two")
    page.click("#more summary")
    fill_in_term(page, "two", "neun")
    expect(page.locator("#target")).to_contain_text("neun")
    expect(page.locator("#glossary li")).to_have_count(2)
    reload(page)
    page.fill("#source", "two")
    expect(page.locator("#target")).to_contain_text("neun")
    page.click("#more summary")
    page.get_by_role("button", name="Remove two").click()
    expect(page.locator("#target")).to_have_text("zwei")
    expect(page.locator("#glossary li")).to_have_count(1)
    fill_in_term(page, "one", "unknown")
    page.fill("#source", "one")  # an error within a stream
    expect(page.locator("#alert")).to_contain_text("outside this run's target vocabulary")


def test_two_tabs_keep_what_each_other_has_stored(page: Page):
    other = page.context.new_page()
    other.goto(page.url)
    wait_until_ready(other)
    translate(page, "one")
    translate(other, "two")
    translate(page, "three")
    for tab in (page, other):
        tab.click("#more summary")
    expect(page.locator("#history li")).to_have_text(["threedrei", "twozwei", "oneeins"])
    fill_in_term(page, "one", "neun")
    expect(other.get_by_placeholder("Term").first).to_have_value("one")
    other.get_by_placeholder("Term").last.fill("two")
    expect(page.locator("#glossary li")).to_have_count(3)
    fields = page.locator("#glossary input").all()
    assert [field.input_value() for field in fields] == ["one", "neun", "two", "", "", ""]


def test_history_stays_in_the_browser(open_page: OpenPage):
    old = [
        {"from": "en", "to": "de", "source": f"old {n}", "target": f"alt {n}"} for n in range(50)
    ]
    page = open_page({"history": old})
    translate(page, "one")
    translate(page, "one two")  # the same text, typed further
    page.locator("#source").blur()
    translate(page, "three")
    page.click("#more summary")
    entries = page.locator("#history li")
    expect(entries).to_have_count(50)
    expect(entries.nth(0)).to_have_text("threedrei")
    expect(entries.nth(1)).to_have_text("one twoeins zwei")
    expect(entries.nth(2)).to_have_text("old 0alt 0")
    entries.nth(1).get_by_role("button").click()
    expect(page.locator("#target")).to_have_text("eins zwei")
    expect(page.locator("#source")).to_have_value("one two")
    reload(page)
    page.click("#more summary")
    expect(entries.nth(0)).to_have_text("one twoeins zwei")
    page.uncheck("#keep-history")
    translate(page, "five")
    expect(entries.nth(0)).to_have_text("one twoeins zwei")
    page.click("#clear-history")
    expect(entries).to_have_count(0)
    assert page.evaluate("localStorage['seq2seq.history']") == "[]"


# Files

FILES = {
    "a b.txt": "\ufeffone two\r\n\r\nthree four\r\n" + "five six seven eight\n" * 12,
    "notes.md": "---\ntitle: one\n---\n\n# one two\n\n```\none two\n\nthree\n```\n\n"
    + "* three\n* [four](one.html)\n\n    five\n\n" * 6
    + "[five][a] [six][A b] seven\n\n" * 6
    + "[a]: one.html\n[a  B]: one.html \"one\"\n",
    "page.html": "<!doctype html><title>one two</title>\n"
    + '<p class="one">one two</p><pre>one</pre><code>two</code><p>three <i>four</i></p>\n' * 4,
    "film.srt": "".join(f"{n}\n00:0{n}:00,0 --> 00:0{n}:09,9\none two\n\n" for n in range(1, 9)),
    "film.vtt": "WEBVTT\n\nNOTE one\n\n" + "00:01.000 --> 00:02.000\n&#111;ne\ntwo\n\n" * 6,
}  # fmt: skip
KEPT = (
    r"(---\ntitle: one\n---|```.*?```|one\.html|\"one\"|<code>.*?</code>|<pre>.*?</pre>|NOTE one)"
)


def translated_file(name: str, text: str) -> str:
    parts = re.split(KEPT.replace("|<pre>.*?</pre>", ""), unescape(text), flags=re.DOTALL)
    return "".join(part if n % 2 else in_german(part) for n, part in enumerate(parts))


def test_files_are_translated_one_after_the_other(page: Page, tmp_path: Path):
    requests = Requests(page)
    files = []
    for name, text in FILES.items():
        files.append(tmp_path / name)
        files[-1].write_bytes(text.encode())
    downloads = []
    page.on("download", lambda download: downloads.append(download))
    page.click("#more summary")
    with page.expect_file_chooser() as chooser:
        page.click("#choose-files")
    chooser.value.set_files(files)
    expect(page.locator("#files li")).to_have_count(len(FILES))
    expect(page.locator("#files").get_by_role("link", name="Save")).to_have_count(len(FILES))
    expect(page.locator("#spoken")).to_have_text("film.vtt: done")
    expected = ["a b.de.txt", "notes.de.md", "page.de.html", "film.de.srt", "film.de.vtt"]
    assert [download.suggested_filename for download in downloads] == expected
    for download, (name, text) in zip(downloads, FILES.items(), strict=True):
        assert download.path().read_bytes().decode() == translated_file(name, text)
    assert max(len(fields["q"]) for fields in requests.fields) <= CHAR_LIMIT
    assert len(requests.fields) > 2 * len(FILES)


def test_files_are_canceled_or_refused_while_others_go_on(page: Page):
    requests = Requests(page)
    requests.holds = True
    page.click("#more summary")
    texts = [(f"{name}.txt", f"{name}\n".encode() * 60) for name in ("one", "two")]
    with page.expect_request("**/translate"):
        page.set_input_files(
            "#file-input",
            [{"name": name, "mimeType": "text/plain", "buffer": data} for name, data in texts],
        )
    first, second = (page.locator("#files li").nth(n) for n in (0, 1))
    expect(first).to_contain_text("0 %")
    expect(second).to_contain_text("waiting")
    requests.holds = False
    page.get_by_role("button", name="Cancel one.txt").click()
    expect(first).to_contain_text("canceled")
    expect(second).to_contain_text("done")
    given = {
        "one.pdf": (b"one", "This file type"),
        "two.txt": ("zwölf".encode("latin-1"), "not UTF-8"),
        "three.html": (b"<p>" + b"one " * 40, "A part of 163 characters cannot be split"),
    }
    files = [
        {"name": name, "mimeType": "text/plain", "buffer": data}
        for name, (data, _) in given.items()
    ]
    page.set_input_files("#file-input", files)
    for _, message in given.values():
        expect(page.locator("#files")).to_contain_text(message)


def test_a_file_is_dropped_and_its_language_found_once(open_page: OpenPage):
    page = open_page({"languages": {"source": "auto", "target": "de"}})
    expect(page.locator("#source")).to_be_focused()
    requests, detections = Requests(page), Requests(page, "detect")
    page.evaluate(
        """() => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File(["one two\\n".repeat(40)], "new.txt"));
            document.body.dispatchEvent(new DragEvent("drop", {dataTransfer, bubbles: true}));
        }"""
    )
    expect(page.locator("#files")).to_contain_text("done")
    assert {fields["source"] for fields in requests.fields} == {"en"}
    assert len(requests.fields) > 1 and len(detections.fields) == 1


CUT = [
    *((path, "markdown", 3_000) for path in sorted((ROOT / "docs").glob("[de][arv]*.md"))),
    (ROOT / "README.md", "text", 300),
    (ROOT / "seq2seq_cli/extras/serve/page/page.html", "html", 1_500),
    (ROOT / "seq2seq_cli/extras/inspect/attention_page.html", "html", 2_500),
]
HOSTILE_TEXTS = [
    ("Ein Satz. Noch einer! " * 30 + "ohneLeerzeichen" * 20, "text", 100),
    ("一句话。" * 60 + "😀" * 90, "text", 50),
    ("a\r\n\r\nb\rc\n" * 20, "text", 10),
    ("```\na\n\nb\n~~~\n```\n\nc\n\n" * 9, "markdown", 40),
    ("> ```\n> a\n>\n> b\n> ```\n\nc\n\n- ~~~ x\n  a\n\n  b\n  ~~~\n\nd\n\n" * 3, "markdown", 70),
    *(
        (f"{start}\na\n\nb\n{end}\n\nc\n\n+++\n\nd\n\n" + "e\n\n" * 9, "markdown", 30)
        for start, end in (("---", "---"), ("---", "..."), ("+++", "+++"))
    ),
    ("<!--\na\n\nb\n-->\n\nc\n\n<pre>\nd\n\ne</pre>\n\nf\n\n---\n\ng\n\n" * 3, "markdown", 60),
    (
        "[See] [a b], [this][C], [a\nB][] and [x].\n\n" * 9
        + "    [x]: y\n\n[see]: <z y> 'b'\n[A  B]:\n  y\n[c]: z (t)\n\n[x]: not one\n\n> [d]: e",
        "markdown",
        150,
    ),
    ("[a]: b\n[c]: d\n[e]: f\n\n[a] [c] [e] g [^h]\n\n" * 4 + "[^h]: [a] i\n", "markdown", 90),
    ("WEBVTT\n\n" + "00:01.000 --> 00:02.000\n<v Ä B>a &amp; b</v>\n\n" * 9, "subtitles", 100),
    ("1\n00:01.000 --> 00:02.000\na &amp; b\n\n" * 9, "subtitles", 80),
    ("<div>\n- a\n- b\n\n- c\n- d\n  e\n\n      f\n- g\n\n" * 4, "markdown", 20),
    ("<p>a</p><!-- <p>b --><script>'<p>'</script><p title='>'>c <b>d</b></p>" * 5, "html", 90),
    (
        "<div translate='no'><p>a</p><div><p>b</p></div></div><p>c</p><br translate=no>" * 4,
        "html",
        99,
    ),
    ("<script>for(i=0;i<n;i++){a(i)}</script>" + "<p>Words.</p>" * 9, "html", 60),
    (
        "<script>s='<!--'</script><Title >a <b></title ><div>c</div><p>d</p><!--><p>e" * 2,
        "html",
        70,
    ),
    ("<ul><li>a<li>b <i>c<p>d</i></ul><svg><title>e</title></svg><p>f & g &lt; h" * 4, "html", 90),
]


def test_pieces_of_texts_have_the_sentences_of_the_whole(page: Page):
    texts = [(path.read_text("utf-8"), form, limit) for path, form, limit in CUT] + HOSTILE_TEXTS
    pieces_of_texts = page.evaluate(
        """async (texts) => {
            const { contextsOf, piecesOf } = await import("./texts.js");
            return texts.map(([text, format, limit]) => {
                const contextOf = contextsOf(text, format);
                return piecesOf(text, limit, format).map((piece) => [piece, ...contextOf(piece)]);
            });
        }""",
        texts,
    )
    for (text, text_format, limit), pieces in zip(texts, pieces_of_texts, strict=True):
        assert "".join(piece for piece, _, _ in pieces) == text
        assert len(pieces) > 1
        assert max(len("".join(piece)) for piece in pieces) <= limit
        if text_format == "text" and max(map(len, text.splitlines())) > limit:
            continue  # nothing but a cut inside of a line is left
        read, splitter = READERS[text_format], SentenceSplitter()
        whole = read(text, splitter)
        parts = [read(before + piece + after, splitter) for piece, before, after in pieces]
        assert [s for part in parts for s in part.sentences] == whole.sentences
        for part, (_, before, after) in zip(parts, pieces, strict=True):
            writer = DocumentWriter(part)
            translations = [SentenceOutput(sentence.text.upper()) for sentence in part.sentences]
            written = "".join([*map(writer.add, translations), writer.rest()])
            assert written.startswith(before) and written.endswith(after)


def test_long_lines_are_cut_after_sentences_of_every_script(page: Page):
    for mark in f"{BEFORE_SPACE}។":
        text, script = f"a b c{mark} " * 3, "t => import('./texts.js').then(m => m.piecesOf(t, 12))"
        assert page.evaluate(script, text) == [f"a b c{mark} "] * 3


# Languages, sizes, keys and what else makes a page usable


def open_all(page: Page) -> None:
    translate(page, "one two\nthree")
    for button in ("#show-alternatives", "#show-attention", "#more summary"):
        page.click(button)
    expect(page.locator("#weights td").first).to_be_attached()
    expect(page.locator("#choices input").first).to_be_visible()
    page.set_input_files(
        "#file-input", {"name": "x.txt", "mimeType": "text/plain", "buffer": b"one"}
    )
    expect(page.locator("#files a")).to_be_visible()
    page.locator("#glossary input").first.fill("nine")
    expect(page.locator("#glossary li")).to_have_count(2)


def test_a_checker_finds_nothing_inaccessible(open_page: OpenPage):
    """Light and dark, in both languages, with everything open."""
    page = open_page(reduced_motion="reduce")
    open_all(page)
    page.evaluate(AXE_SCRIPT)
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    page.hover("#target .word >> nth=0")
    for button in ("#theme", "#ui-language", "#theme", "#enter-token"):
        found = page.evaluate("tags => axe.run({runOnly: tags})", tags)["violations"]
        assert [(rule["id"], [node["html"] for node in rule["nodes"]]) for rule in found] == []
        page.click(button)
    expect(page.locator("#token")).to_be_visible()
    assert page.evaluate("tags => axe.run({runOnly: tags})", tags)["violations"] == []


def test_the_page_is_english_or_chinese(open_page: OpenPage):
    page = open_page(locale="zh-CN")
    messages = page.evaluate("import('./messages.js').then((module) => module.MESSAGES)")
    for key, (english, chinese) in messages.items():
        assert english and chinese, key
        values = [sorted(re.findall(r"\{\w+\}", text)) for text in (english, chinese)]
        assert values[0] == values[1], key
    open_all(page)
    for key in ("files", "glossary", "attention", "copy"):
        shown = page.locator(f"[data-text={key}]").first
        expect(shown).to_have_text(messages[key][1])
    html = page.locator("html")
    expect(html).to_have_attribute("lang", "zh-Hans")
    assert page.locator("#from option").nth(1).inner_text() == "英语"
    page.get_by_role("button", name="English").click()
    expect(html).to_have_attribute("lang", "en")
    expect(page).to_have_title("Translate")
    text = page.locator("body").inner_text().replace("中文", "")
    assert not re.search("[\u4e00-\u9fff]", text)
    reload(page)
    expect(html).to_have_attribute("lang", "en")


def test_dark_and_light(open_page: OpenPage):
    page = open_page(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.click("#theme")
    light = page.evaluate(paper)
    reload(page)
    assert page.evaluate(paper) == light != dark
    page.click("#theme")
    assert page.evaluate(paper) == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(paper) == light  # it follows the system again


def test_a_phone_has_fingers_and_nothing_scrolls_sideways(open_page: OpenPage):
    page = open_page(viewport=PHONE, has_touch=True, locale="zh-CN")
    translate(page, "one two")
    page.tap("#target .word >> nth=1")
    assert (words(page, ".pointed"), words(page, ".aligned")) == (["zwei"], ["two"])
    open_all(page)
    page.fill("#source", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamte")
    expect(page.locator("#source-words .word")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    source, target = (page.locator(box).bounding_box() for box in ("#source", "#target"))
    assert source["y"] + source["height"] <= target["y"]
    for field in page.locator("button:visible, select:visible, a:visible").all():
        assert field.bounding_box()["height"] >= 24  # WCAG 2.2, 2.5.8


def test_everything_is_reached_with_the_keyboard(page: Page):
    expect(page.locator("#source")).to_be_focused()
    page.keyboard.type("one two")
    expect(page.locator("#target .word")).to_have_count(2)
    name = "document.activeElement.id || document.activeElement.className || 'none'"

    def press_until(wanted: str) -> list[str]:
        seen = []
        while wanted not in seen:
            page.keyboard.press("Tab")
            seen.append(page.evaluate(name))
            assert len(seen) < 40, seen
            assert page.evaluate(
                "document.activeElement === document.body || getComputedStyle("
                "document.activeElement).outlineStyle !== 'none'"
            )
        return seen

    press_until("target")
    press_until("show-attention")
    page.keyboard.press("Enter")
    expect(page.locator("#weights td").first).to_be_attached()
    seen = press_until("none")  # the summary
    assert seen == ["scroll", "none"]
    page.keyboard.press("Enter")
    rest = press_until("enter-token")
    assert {"choose-files", "keep-history", "clear-history"} <= {*rest}
    page.keyboard.press("Enter")
    expect(page.locator("#token-field")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#token")).to_be_hidden()
    expect(page.locator("#enter-token")).to_be_focused()


# Token and errors


def test_the_token_is_asked_for_and_asked_for_again(
    open_page: OpenPage, errors: list[str], server: Served
):
    page = open_page({"token": None})
    dialog, field = page.locator("#token"), page.locator("#token-field")
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    page.fill("#source", "one")
    expect(page.locator("#alert")).to_contain_text("requires a token")
    page.get_by_role("button", name="Enter the token").first.click()
    field.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-reason")).to_have_text("The server does not accept this token.")
    field.fill(TOKEN)
    page.check("#keep-token")
    page.get_by_role("button", name="OK").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#target")).to_have_text("eins")
    assert "403" in errors.pop()
    reload(page)
    translate(page, "two")
    page.route(
        "**/frontend/settings", lambda route: route.fulfill(json={**settings, "keyRequired": False})
    )
    settings = server.ask("/frontend/settings").json
    other = page.context.new_page()
    other.route(
        "**/frontend/settings", lambda route: route.fulfill(json={**settings, "keyRequired": False})
    )
    other.goto(server.url)
    expect(other.locator("#source")).to_be_focused()
    expect(other.locator("#enter-token")).to_be_hidden()


def test_a_busy_server_is_asked_again(page: Page, errors: list[str]):
    refusals = iter([503, 429])

    def handle(route: Route) -> None:
        status = next(refusals, None)
        if status is None:
            route.continue_()
        else:
            route.fulfill(status=status, headers={"Retry-After": "3"}, json={"error": "Slowdown"})

    page.clock.install()
    page.route("**/translate", handle)
    page.fill("#source", "one")
    page.keyboard.press("Control+Enter")
    for _ in range(2):
        expect(page.locator("#status")).to_have_text("The server is busy; trying again in 3 s.")
        page.clock.run_for(3_000)
    expect(page.locator("#target")).to_have_text("eins")
    expect(page.locator("#status")).to_have_text("")
    assert len(errors) == 2
    errors.clear()


def refuse(page: Page, status: int, message: str) -> None:
    answer = {"status": status, "json": {"error": message}}
    page.route("**/translate", lambda route: route.fulfill(**answer))


def test_errors_are_said_in_the_language_of_the_page(open_page: OpenPage, errors: list[str]):
    page = open_page(locale="zh-CN")
    for status, message in (
        (400, "服务器无法翻译：too <b>much</b>"),
        (500, "服务器出错（状态 500）。"),
    ):
        refuse(page, status, "too <b>much</b>")
        page.fill("#source", f"one {status}")
        expect(page.locator("#alert span")).to_have_text(message)
        page.unroute("**/translate")
    page.fill("#source", "one")
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.locator("#target")).to_have_text("eins")
    page.route("**/translate", lambda route: route.abort())
    page.fill("#source", "two")
    expect(page.locator("#alert span")).to_have_text("无法连接服务器。")
    expect(page.locator("#target")).to_have_text("eins")  # what was there stays
    page.unroute("**/translate")
    page.get_by_role("button", name="重试").click()
    expect(page.locator("#target")).to_have_text("zwei")
    assert len(errors) == 3
    errors.clear()


# Safety


def test_text_is_never_markup(page: Page, errors: list[str]):
    page.fill("#source", HOSTILE)
    expect(page.locator("#source-words .word").first).to_be_attached()
    page.click("#show-attention")
    page.click("#show-alternatives")
    page.click("#more summary")
    expect(page.locator("#weights th").first).to_be_attached()
    fill_in_term(page, HOSTILE, HOSTILE)
    page.set_input_files(
        "#file-input", {"name": f"{HOSTILE}.pdf", "mimeType": "text/plain", "buffer": b"one"}
    )
    expect(page.locator("#files")).to_contain_text(HOSTILE)
    page.route(
        "**/translate",
        lambda route: route.fulfill(
            body="".join(
                f"event: {name}\ndata: {json.dumps(data)}\n\n"
                for name, data in hostile_events(route.request.post_data_json["q"])
            )
        ),
    )
    page.click("#clear")
    page.fill("#source", HOSTILE)
    expect(page.locator("#target")).to_have_text(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.title() == "Translate"
    # Were a script to get in, the policy would not let it run.
    inserted = "const made = document.createElement('script'); made.textContent = 'window.ran = 1';"
    ran = page.evaluate(f"() => {{ {inserted} document.body.append(made); return window.ran }}")
    assert ran is None
    assert "Content Security Policy" in errors.pop()


def hostile_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    ranges = [[0, 4], [5, len(text)]]
    sentence = {"text": text, "source": text, "target": text, "sourceStart": 0, "targetStart": 0}
    details = {"sourceWords": ranges, "targetWords": ranges, "alignment": [[0, 0]]}
    return [("sentence", sentence | details), ("done", {"translatedText": text})]


def test_it_works_below_a_prefix(open_page: OpenPage, server: Served, page: Page):
    def forward(route: Route) -> None:
        url = route.request.url.replace("/some/prefix/", "/")
        route.fulfill(response=route.fetch(url=url))

    expect(page.locator("#source")).to_be_focused()  # nothing is under way
    page.route("**/some/prefix/**", forward)
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(server.url + "/some/prefix/")
    translate(page, "one two")
    assert len(requested) > 10
    assert [url for url in requested if not url.startswith(f"{server.url}/some/prefix/")] == []
