"""Makes the screenshots of docs/: python docs/screenshots.py

Runs Chromium without a window, on the pages of `seq2seq attend` and `seq2seq serve` and on
TensorBoard. They show runs/quickstart and runs/kana, trained first if they are not there (three
minutes on two cores), and a run of configs/beer.yaml. Screenshots depend on the fonts of the
machine: Chinese and Japanese need a font such as Noto Sans CJK.
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
GERMAN, KANA = "Der Freund besucht am Sonntag Paul.", "とうきょうタワー"
TWO_SENTENCES = (
    "Deine Tochter spielt am Morgen nicht mit unserem Freund. Wir haben gestern gelacht."
)
MAX_BYTES = 150_000


def main() -> None:
    FIGURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, _browser() as browser:
        folder = Path(temporary)
        train_missing("quickstart", "kana")
        _page_of_attention(browser, folder, "quickstart", GERMAN, "light")
        _page_of_attention(browser, folder, "kana", KANA, "dark")
        _page_of_server(browser)
        _tensorboard(browser, folder)


def train_missing(*configs: str) -> None:
    """Train the runs of these configs that are not in runs/ yet."""
    for config in configs:
        if not (ROOT / "runs" / config / "model.safetensors").exists():
            _seq2seq("train", f"configs/{config}.yaml")


def _page_of_attention(
    browser: Browser,
    folder: Path,
    config: str,
    sentence: str,
    color_scheme: Literal["light", "dark"],
) -> None:
    """Show a token's lines in a head of the last layer."""
    file = folder / f"{config}.html"
    _seq2seq("attend", f"runs/{config}", sentence, "--output", str(file))
    page = browser.new_page(
        viewport={"width": 1200, "height": 900}, color_scheme=color_scheme, device_scale_factor=1
    )
    page.goto(file.as_uri())
    page.evaluate("attentionPage.ready")
    page.locator(".thumbnails button").nth(-2).click()  # the last but the mean
    page.set_viewport_size({"width": 1200, "height": page.evaluate("document.body.scrollHeight")})
    page.hover(".token[data-side=query] >> nth=2")
    _save(page, f"attention_page_{config}_{color_scheme}")


def _page_of_server(browser: Browser) -> None:
    """Show a word with those that it belongs to: with all details, and on a phone in Chinese."""
    with _server(ROOT, "seq2seq_cli", "serve", "runs/quickstart", "--port", "0") as address:
        page = browser.new_page(viewport={"width": 1200, "height": 1080}, locale="en-US")
        _translate(page, address)
        page.click("#show-alternatives")
        page.click("#show-attention")
        page.locator("#weights td").first.wait_for()
        page.hover("#target .word >> nth=4")
        _save(page, "serve_page_light")
        page = browser.new_page(
            viewport={"width": 390, "height": 740},
            device_scale_factor=2,
            locale="zh-CN",
            color_scheme="dark",
        )
        _translate(page, address)
        page.hover("#target .word >> nth=4")
        _save(page, "serve_page_phone_dark")


def _translate(page: Page, address: str) -> None:
    page.goto(address)
    page.fill("#source", TWO_SENTENCES)
    page.locator("#source-words .word").first.wait_for(state="attached")


def _tensorboard(browser: Browser, folder: Path) -> None:
    options = ("validation.attention=true", "validation.every=10", "training.log_every=1")
    overrides = [argument for option in options for argument in ("--set", option)]
    _seq2seq("train", "configs/beer.yaml", "--run-dir", str(folder / "runs" / "beer"), *overrides)
    waits: dict[str, Callable[[Page], None]] = {
        "scalars": _show_scalars,
        "images": lambda page: page.locator("tf-image-loader img").nth(1).wait_for(),
        "text": _show_samples,
    }
    with _server(folder, "tensorboard.main", "--logdir", "runs", "--port", "0") as address:
        for tab, wait in waits.items():
            page = browser.new_page(viewport={"width": 1200, "height": 680})
            page.set_default_timeout(60_000)
            page.goto(f"{address}#{tab}")
            wait(page)
            page.wait_for_timeout(2_000)  # for its animations
            _save(page, f"tensorboard_{tab}")


def _show_scalars(page: Page) -> None:
    page.locator("tf-tag-filterer input").fill("^Loss/|cross/layer_2/head_[12]")
    page.locator("tf-scalar-card vz-line-chart2 svg").nth(1).wait_for()


def _show_samples(page: Page) -> None:
    page.locator("tf-tag-filterer input").fill("samples")
    page.locator("tf-text-loader table").first.wait_for()


def _save(page: Page, name: str) -> None:
    """Save what the window shows, in 128 colours: a quarter of the size, and no difference seen."""
    with Image.open(io.BytesIO(page.screenshot())) as image:
        reduced = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    path = FIGURES / f"{name}.png"
    reduced.save(path, optimize=True)
    assert path.stat().st_size <= MAX_BYTES, f"{path} is too large: {path.stat().st_size} bytes"
    print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")
    page.close()


def _seq2seq(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "seq2seq_cli", *arguments], cwd=ROOT, check=True)


@contextmanager
def _browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        sys.exit("the screenshots need Chromium or Chrome: apt-get install chromium")
    with sync_playwright() as playwright:
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        yield playwright.chromium.launch(executable_path=program, args=arguments)


@contextmanager
def _server(folder: Path, module: str, *arguments: str) -> Iterator[str]:
    """Start a server in a folder, and return the address that it says it has."""
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        lines = iter(server.stderr.readline, "")
        yield next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
        server.terminate()


if __name__ == "__main__":
    main()
