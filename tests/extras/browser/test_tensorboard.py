"""TensorBoard on a run, in a browser: what training logs can be seen there."""

import re
import subprocess
import sys

import pytest
import yaml
from commands import ROOT
from headless_browser import open_browser

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory, seq2seq):
    """A folder with a run of the toy config, which draws attention at its validations."""
    folder = tmp_path_factory.mktemp("runs")
    config = yaml.safe_load((ROOT / "configs" / "beer.yaml").read_text(encoding="utf-8"))
    for text in ("train", "valid"):
        config["data"][text] = {
            side: str(ROOT / path) for side, path in config["data"][text].items()
        }
    (folder / "beer.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    options = ("--set", "validation.attention=true", "--set", "validation.every=20")
    seq2seq("train", folder / "beer.yaml", "--run-dir", folder / "beer", *options).ok()
    return folder


@pytest.fixture(scope="module")
def address(runs):
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(runs), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        lines = iter(server.stderr.readline, "")
        yield next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
        server.terminate()


@pytest.fixture(scope="module")
def page(address):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.set_default_timeout(60_000)
        yield page


def test_scalars_are_plotted(page, address):
    page.goto(f"{address}#scalars")
    group = page.locator("tf-category-paginated-view .heading").first
    group.wait_for()
    assert group.inner_text().split()[0] == "Loss"
    for tag in ("valid/loss", "valid/exact_match", "attention_entropy/cross/layer_2/head_4"):
        page.locator("tf-tag-filterer input").fill(f"^{tag}$")
        card = page.locator("tf-scalar-card", has_text=tag).first
        card.locator("vz-line-chart2 svg").first.wait_for()


def test_attention_is_drawn(page, address):
    page.goto("about:blank")
    page.goto(f"{address}#images")
    for kind in ("encoder", "decoder", "cross"):
        card = page.locator("tf-image-loader", has_text=f"attention/{kind}/sentence_1").first
        card.scroll_into_view_if_needed()
        width = "image => image.decode().then(() => image.naturalWidth)"
        assert card.locator("img").first.evaluate(width) > 300


def test_samples_are_text(page, address):
    page.goto("about:blank")
    page.goto(f"{address}#text")
    for sentence in ("ich mochte ein bier", "i want a beer"):
        page.locator("tf-text-loader").get_by_text(sentence).first.wait_for()
