"""The page of an attention study, used in a browser as its readers use it.

L layers, H heads, Q query positions, M memory positions.
"""

import itertools

import pytest
from headless_browser import open_browser
from PIL import Image
from studies import ARABIC, CHINESE, GERMAN, JAPANESE, study, with_text

from seq2seq_cli.extras.inspect.attention_figure import view_maps
from seq2seq_cli.extras.inspect.attention_page import attention_page

KINDS = {"encoder": "e", "decoder": "d", "cross": "c"}
VIEWS = {"weights": "1", "renormalized": "2", "norms": "3"}
HOSTILE = (
    "</script><img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
)


@pytest.fixture(scope="module")
def tab():
    with open_browser() as browser:
        yield browser.new_page(viewport={"width": 1400, "height": 1000})


@pytest.fixture
def errors():
    """What the page complains about; a test that expects a complaint takes it out."""
    return []


@pytest.fixture
def opened(tab, tmp_path, errors):
    """Open the page of some studies. No request may leave it, and no error occur."""
    requests = []
    listeners = {
        "request": lambda request: requests.append(request.url),
        "pageerror": lambda error: errors.append(str(error)),
        "console": lambda message: errors.append(message.text),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)
    file = tmp_path / "attention.html"

    def open_page(*studies, color_scheme="light"):
        file.write_text(attention_page(studies), encoding="utf-8")
        tab.emulate_media(color_scheme=color_scheme)
        tab.goto(file.as_uri())
        tab.evaluate("attentionPage.ready")
        return tab

    yield open_page
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert errors == []
    own = [url for url in requests if not url.startswith(("data:", "blob:"))]
    assert own == [file.as_uri()]


def picked(page, panel: int = 0) -> str:
    return (
        page.locator(".panel")
        .nth(panel)
        .locator(".thumbnails [aria-pressed=true]")
        .get_attribute("value")
    )


def lines(page) -> list[list[int]]:
    """The lines shown: query and memory position."""
    paths = "document.querySelector('.lines').querySelectorAll('path')"
    positions = "[Number(path.dataset.query), Number(path.dataset.memory)]"
    return page.evaluate(f"Array.from({paths}, (path) => {positions})")


@pytest.mark.parametrize("pair", [GERMAN, CHINESE, ARABIC])
def test_hovering_a_token_shows_its_lines(opened, pair):
    made = study(pair)
    page = opened(made)
    assert page.locator(".token[data-side=query]").all_inner_texts() == list(made.target.tokens)
    assert page.locator(".token[data-side=memory]").all_inner_texts() == list(made.source.tokens)
    assert len({query for query, _ in lines(page)}) == len(made.target.tokens)
    for side, number in (("query", 0), ("memory", 1)):
        page.hover(f".token[data-side={side}] >> nth=2")
        weights_QM = made.cross.weights_LHQM[0, 0]
        weights = weights_QM[2] if side == "query" else weights_QM[:, 2]
        shown = [n for n, weight in enumerate(weights.tolist()) if weight >= 0.01]
        assert [line[1 - number] for line in lines(page)] == shown
        assert {line[number] for line in lines(page)} == {2}
    page.mouse.move(0, 0)
    assert len({query for query, _ in lines(page)}) == len(made.target.tokens)


def test_a_token_with_the_focus_shows_its_lines(opened):
    page = opened(study())
    page.focus(".token[data-side=query] >> nth=1")
    assert {query for query, _ in lines(page)} == {1}
    page.keyboard.press("Tab")
    assert {query for query, _ in lines(page)} == {2}


def test_the_title_of_a_token_has_the_weight_shown_or_none(opened):
    page = opened(study())
    memory = page.locator(".token[data-side=memory]").first
    page.hover(".token[data-side=query] >> nth=0")
    assert memory.get_attribute("title").startswith("▁Wir: ")
    memory.hover()
    assert memory.get_attribute("title") == "▁Wir"


def test_layer_and_head_are_picked_with_the_mouse_and_with_keys(opened):
    page = opened(study(layers=3, heads=4))
    page.click(".thumbnails button[value='1.2']")
    assert picked(page) == "1.2"
    assert (
        page.locator(".heatmap svg").get_attribute("aria-label")
        == "cross-attention, layer 2, head 3"
    )
    for key, expected in (
        ("ArrowRight", "1.3"), ("ArrowRight", "1.mean"), ("ArrowRight", "1.mean"),
        ("ArrowDown", "2.mean"), ("ArrowDown", "2.mean"), ("ArrowLeft", "2.3"),
        ("m", "2.mean"), ("m", "2.3"), ("ArrowUp", "1.3"),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert picked(page) == expected, key
        assert page.evaluate("document.activeElement.value") == expected  # the focus follows
    page.click(".headfacts tr[data-pick='0.1']")
    assert picked(page) == "0.1"


@pytest.mark.parametrize("pair", [GERMAN, JAPANESE])
def test_the_page_computes_the_views_as_python_does(opened, pair):
    """For every kind, view and unit: the labels, and the numbers of a head and of a mean."""
    made = study(pair, heads=3, seed=3)
    page = opened(made)
    page.click(".thumbnails button[value='1.2']")
    choices = list(itertools.product((False, True), KINDS, VIEWS))
    keys = [
        ["w" if by_words else "s", KINDS[kind], VIEWS[view]] for by_words, kind, view in choices
    ]
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"
    shown = page.evaluate(
        f"""(keys) => keys.map((all, number) => {{
            const isNew = (key, place) => key !== keys[number - 1]?.[place];
            const press = (key) => {{ {press}; return attentionPage.matrix(); }};
            return [...all.filter(isNew), "m", "m"].map(press).slice(-2);
        }})""",
        keys,
    )
    for (by_words, kind, view), matrices in zip(choices, shown, strict=True):
        expected = view_maps(made, kind, view, by_words)
        values_HQM = expected.values_LHQM[1]
        for matrix, values_QM in zip(
            matrices, (values_HQM.mean(dim=0), values_HQM[2]), strict=True
        ):
            assert matrix["queries"] == list(expected.queries)
            assert matrix["memory"] == list(expected.memory)
            for row, expected_row in zip(matrix["values"], values_QM.tolist(), strict=True):
                assert row == pytest.approx(expected_row, abs=1e-6)


def test_buttons_switch_kind_numbers_and_units(opened):
    page = opened(study())
    for value, option, text in (
        ("decoder", "kind", "<s>"), ("encoder", "kind", "▁gestern"), ("cross", "kind", "sehen"),
        ("words", "unit", "gesehen."), ("renormalized", "view", "gesehen."),
        ("tokens", "unit", "▁Film"),
    ):  # fmt: skip
        page.click(f"[data-option={option}] [value={value}]")
        assert (
            page.get_attribute(f"[data-option={option}] [value={value}]", "aria-pressed") == "true"
        )
        assert text in page.locator(".token[data-side=memory]").all_inner_texts()
    assert "</s>" not in page.locator(".token[data-side=memory]").all_inner_texts()


def test_weights_that_are_not_stored_exactly_are_close(opened):
    made = study()
    weights_LHQM = made.cross.weights_LHQM.roll(1, -1) * 0.937
    made.cross.weights_LHQM.copy_(weights_LHQM)
    shown = opened(made).evaluate("attentionPage.matrix().values")
    for row, expected_row in zip(shown, weights_LHQM[0, 0].tolist(), strict=True):
        for weight, expected in zip(row, expected_row, strict=True):
            assert abs(weight - expected) <= expected**0.5 / 255 + 1 / 510**2 + 1e-9


def test_heat_map_has_tooltips(opened):
    page = opened(study())
    box = page.locator(".heatmap rect[height]:not([height='100%']) >> nth=0").bounding_box()
    cell = box["height"] / len(study().target.tokens)
    page.mouse.move(box["x"] + 3.5 * cell, box["y"] + 1.5 * cell)
    weight = float(study().cross.weights_LHQM[0, 0, 1, 3])
    tooltip = page.inner_text("#tooltip")
    assert tooltip.startswith("▁saw → ▁den: weight .")
    assert float(tooltip.split()[-1]) == pytest.approx(weight, abs=0.0051)
    assert {query for query, _ in lines(page)} == {1}
    page.mouse.move(0, 0)
    assert not page.is_visible("#tooltip")


def test_predictions_facts_and_alignment_are_shown(opened):
    made = study()
    page = opened(made)
    row = page.locator(".predictions tbody tr").nth(1).inner_text()
    assert [text in row for text in ("▁saw", "0.450", "0.20", "▁other4")] == [True] * 4
    page.keyboard.press("w")
    word = page.locator(".predictions tbody tr").nth(4).inner_text()
    product = 0.9 / 5 * 0.9 / 6 * 0.9 / 7  # ▁yester day .
    assert [text in word for text in ("yesterday.", f"{product:.3f}", "3.00", ".:")] == [True] * 4
    assert page.inner_text(".pharaoh") == " ".join(f"{s}-{t}" for s, t in made.alignment)
    page.click("[data-sort=importance]")
    importances = page.locator(".headfacts tbody tr td:last-child").all_inner_texts()
    numbers = [float(text.replace("−", "-")) for text in importances]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == pytest.approx(
        float(made.head_statistics["cross"].importance_LH.max()), abs=1e-4
    )
    assert page.locator("th[aria-sort=descending]").inner_text() == "importance ↓"


def test_dark_and_light(opened):
    page = opened(study(), color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    corner = "document.querySelector('.heatmap rect').getAttribute('fill')"
    dark = page.evaluate(paper), page.evaluate(corner)
    page.keyboard.press("t")
    light = page.evaluate(paper), page.evaluate(corner)
    page.click("#theme")
    assert (page.evaluate(paper), page.evaluate(corner)) == dark
    assert light == ("rgb(251, 251, 250)", "#ffffff") and not set(dark) & set(light)


def test_studies_stand_side_by_side_with_the_same_picks(opened):
    studies = [
        study(),
        study(CHINESE, layers=1, heads=2, seed=1, run="runs/b"),
        study(ARABIC, run="runs/c"),
    ]
    page = opened(*studies)
    page.click(".thumbnails button[value='1.3']")
    assert [picked(page, 0), picked(page, 1)] == ["1.3", "0.1"]  # the nearest of a smaller model
    left, right = (page.locator(".panel").nth(n).bounding_box() for n in (0, 1))
    assert left["y"] == right["y"] and left["x"] < right["x"]
    page.locator("select").nth(1).select_option("2")
    assert page.locator(".panel").nth(1).locator("h2").inner_text() == "runs/c"
    assert picked(page, 1) == "1.3"
    page.set_viewport_size({"width": 600, "height": 900})
    left, right = (page.locator(".panel").nth(n).bounding_box() for n in (0, 1))
    page.set_viewport_size({"width": 1400, "height": 1000})
    assert left["x"] == right["x"] and left["y"] < right["y"]


def test_the_heat_map_is_saved_as_svg_and_png(opened, tmp_path):
    page = opened(study(JAPANESE))
    for suffix in ("svg", "png"):
        with page.expect_download() as download:
            page.click(f"text=Save {suffix.upper()}")
        assert download.value.suggested_filename == f"attention-cross-layer1-head1.{suffix}"
        download.value.save_as(tmp_path / f"saved.{suffix}")
    svg = (tmp_path / "saved.svg").read_text(encoding="utf-8")
    assert svg.startswith("<svg xmlns=") and "飲み" in svg
    with Image.open(tmp_path / "saved.png") as image:
        assert image.format == "PNG" and len(image.getcolors(100_000)) > 20


def test_text_is_never_markup(opened, errors):
    page = opened(with_text(study(), HOSTILE))
    assert page.title() == f"Attention: {HOSTILE}"
    assert page.inner_text(".source") == HOSTILE
    assert page.locator("img").count() == 0
    assert page.evaluate("document.scripts.length") == 3
    # Were a script to get in, the policy would not let it run.
    inserted = "const made = document.createElement('script'); made.textContent = 'window.ran = 1';"
    assert (
        page.evaluate(f"() => {{ {inserted} document.body.append(made); return window.ran }}")
        is None
    )
    assert "Content Security Policy" in errors.pop()


def test_a_sentence_of_punctuation_has_an_empty_view(opened):
    page = opened(study(("▁! ?", "▁! ?")))
    for key in ("2", "w", "e", "d"):
        page.keyboard.press(key)
        assert page.evaluate("attentionPage.matrix().memory") == []


def test_the_page_of_a_large_model_is_small(tmp_path):
    pieces = " ".join(f"▁{number:x}" for number in range(39))
    made = study((pieces, pieces), layers=6, heads=8)
    assert made.cross.weights_LHQM.shape == (6, 8, 40, 40)
    assert len(attention_page([made]).encode("utf-8")) < 300_000
