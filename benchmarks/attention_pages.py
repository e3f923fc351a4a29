"""The page of `seq2seq attend` and those of BertViz, on the same attention, in Chromium.

python benchmarks/attention_pages.py RUN SENTENCE [--libraries FOLDER] [--rounds 5]

RUN is a run folder. The same is measured with random attention of 6 layers, 8 heads and 40 tokens
on each side. BertViz's pages load three libraries from a CDN; FOLDER has them as require.min.js,
d3.min.js and jquery.min.js, and requests are then answered from there, without a network. Time to
open is that from the start of navigation until the drawing is there and painted.

The tables are printed as Markdown.

L layers, H heads, Q query positions, M memory positions.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bertviz import head_view, model_view
from playwright.sync_api import Browser, Route, sync_playwright
from torch import Tensor

from seq2seq_cli import Translator
from seq2seq_cli.extras.inspect.attention_page import attention_page
from seq2seq_cli.extras.inspect.attention_study import AttentionStudy, study_attention

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from studies import study  # the random attention of the tests

# What each page has drawn when it is ready.
DRAWN = {"seq2seq attend": ".heatmap rect", "head_view": "#vis svg", "model_view": "#vis svg"}
PAINTED = """(selector) => new Promise((resolve) => {
    const look = () => document.querySelector(selector)
        ? requestAnimationFrame(() => setTimeout(() => resolve(performance.now())))
        : setTimeout(look, 1);
    look();
})"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("sentence")
    parser.add_argument("--libraries", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    (real,) = study_attention(Translator.load(options.run, "cpu"), options.sentence, None)
    pieces = " ".join(f"▁{number}" for number in range(39))
    large = study((pieces, pieces), layers=6, heads=8)
    print("| attention | page | bytes | offline | requests | time to open, ms (min to max) |")
    print("|---|---|--:|---|--:|--:|")
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for shown in (real, large):
            layers, heads, queries, memory = shown.cross.weights_LHQM.shape
            for name, page in pages_of(shown):
                file = Path(folder) / "page.html"
                file.write_text(page, encoding="utf-8")
                row = measured(browser, file, name, options.libraries, options.rounds)
                print(f"| {layers} × {heads} × {queries} × {memory} | {name} | {row} |", flush=True)


def pages_of(shown: AttentionStudy) -> Iterator[tuple[str, str]]:
    yield "seq2seq attend", attention_page([shown])

    def by_layer(weights_LHQM: Tensor) -> list[Tensor]:
        return list(weights_LHQM[:, None])

    arguments = {
        "encoder_attention": by_layer(shown.encoder.weights_LHQM),
        "decoder_attention": by_layer(shown.decoder.weights_LHQM),
        "cross_attention": by_layer(shown.cross.weights_LHQM),
        "encoder_tokens": list(shown.source.tokens),
        "decoder_tokens": list(shown.target.tokens),
        "html_action": "return",
    }
    for view in (head_view, model_view):
        yield view.__name__, f'<!doctype html><meta charset="utf-8">{view(**arguments).data}'


def measured(browser: Browser, file: Path, name: str, libraries: Path | None, rounds: int) -> str:
    """Return whether the page is drawn without a network, its requests, and its time to open."""
    requests: list[str] = []
    is_drawn = opened(browser, file, DRAWN[name], None, requests) is not None
    times = [opened(browser, file, DRAWN[name], libraries, []) for _ in range(rounds)]
    drawn = [time for time in times if time is not None]
    spread = (
        f"{statistics.median(drawn):.0f} ({min(drawn):.0f} to {max(drawn):.0f})" if drawn else "–"
    )
    offline = "complete" if is_drawn else "blank"
    return f"{file.stat().st_size:,} | {offline} | {len(requests)} | {spread}"


def opened(
    browser: Browser, file: Path, selector: str, libraries: Path | None, requests: list[str]
) -> float | None:
    """Return the milliseconds until the page is drawn, or None if it is not in five seconds."""

    def answer(route: Route) -> None:
        requests.append(route.request.url)
        library = libraries / route.request.url.split("/")[-1] if libraries else None
        if library and library.exists():
            route.fulfill(path=library)
        else:
            route.abort()

    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.route(lambda url: url.startswith("http"), answer)
    page.goto(file.as_uri())
    try:
        page.wait_for_selector(
            selector, state="attached", timeout=5_000 if libraries is None else 60_000
        )
        time: float = page.evaluate(PAINTED, selector)
        return time
    except Exception as error:
        if "Timeout" not in type(error).__name__:
            raise
        return None
    finally:
        page.close()


if __name__ == "__main__":
    main()
