"""The examples of output in `docs/inspecting.md` are what the code prints.

What depends on trained weights, the numbers of a trace and the cosines, is left out.
"""

import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from commands import ROOT

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.data.statistics import text_statistics
from seq2seq_cli.data.token_store import open_store
from seq2seq_cli.decoding.default_search import DefaultSearch, MeasuredSearch
from seq2seq_cli.extras.inspect.parameters import summarize, table
from seq2seq_cli.extras.inspect.run_report import RunReport, report_model
from seq2seq_cli.extras.inspect.trace import trace_tensors
from seq2seq_cli.extras.inspect.vocabulary import Neighbor, Neighbors, split_text
from seq2seq_cli.model.transformer import build_model
from seq2seq_cli.model.weights import ModelScores
from seq2seq_cli.tokenizers.tokenizer import Tokenizers, fit_tokenizers

PAGES = [ROOT / "docs/inspecting.md", ROOT / "docs/inspecting.zh-CN.md"]


class Blocks(NamedTuple):
    report: str
    split: str
    neighbors: str
    trace: str


def blocks(page: Path) -> Blocks:
    text = page.read_text(encoding="utf-8")
    return Blocks(*re.findall(r"^```text\n(.*?)\n```", text, re.DOTALL | re.MULTILINE))


BLOCKS = blocks(PAGES[0])


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(ROOT / "configs/quickstart.yaml")


@pytest.fixture(scope="module", autouse=True)
def _in_the_repository():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # the config names its text from there
        yield


@pytest.fixture(scope="module")
def tokenizers(config, _in_the_repository) -> Tokenizers:
    return fit_tokenizers(config.train_text, config.tokenizer)


def test_both_languages_show_the_same_output():
    assert blocks(PAGES[1]) == BLOCKS


def test_report_of_the_quickstart_model(config, tokenizers):
    store = open_store(config.train_text, tokenizers, config.data.on_bad_line)
    model = report_model(tokenizers, config, text_statistics(store, tokenizers.src))
    score = float(re.findall(r"this model: exact_match ([\d.]+)", BLOCKS.report)[0])
    scores = ModelScores("step 1,500", {"exact_match": score})
    (search,) = re.findall(r"^search +(.*)$", BLOCKS.report, re.MULTILINE)
    chosen = printed_search(search)
    report = RunReport("runs/quickstart", "best", 1_500, "exact_match", scores, chosen, model)
    assert report.as_text() == BLOCKS.report


def printed_search(text: str) -> DefaultSearch:
    """A greedy search with these scores and speeds, which are other ones on each machine."""
    found = re.findall(r"exact_match ([\d.]+), ([\d,]+) sentences/s", text)
    measured = tuple(
        MeasuredSearch(
            beam_size=beam_size,
            length_penalty=1,
            score=float(score),
            sentences_per_second=float(rate.replace(",", "")),
        )
        for beam_size, (score, rate) in zip((1, 5), found, strict=True)
    )
    return DefaultSearch(
        step=1_500, metric="exact_match", lines=200, length_penalty_formula="power",
        measured=measured, beam_size=1, length_penalty=1,
    )  # fmt: skip


def test_split_of_a_sentence(tokenizers):
    assert split_text(tokenizers.src, "Ich möchte 🙂 trinken.").as_text() == BLOCKS.split


def test_neighbors_are_tokens_of_the_vocabulary(tokenizers):
    ids = {piece: number for number, piece in enumerate(tokenizers.src.pieces())}
    rows = re.findall(r"^ +([\d.]+) +(\d+)  (\S+)$", BLOCKS.neighbors, re.MULTILINE)
    nearest = [Neighbor(float(cosine), ids[piece], piece) for cosine, _, piece in rows]
    shown = Neighbors("source", "▁trinkt", ids["▁trinkt"], nearest)
    assert len(rows) == 10 and shown.as_text() == BLOCKS.neighbors


def test_trace_has_the_names_and_shapes_of_the_tensors(config, tokenizers):
    source, target, _, header, *lines = BLOCKS.trace.splitlines()
    ids = {piece: number for number, piece in enumerate(tokenizers.src.pieces())}
    src_BS, tgt_BT = (torch.tensor([[ids[p] for p in s.split()[1:]]]) for s in (source, target))
    tensors = trace_tensors(build_model(config.model, tokenizers).eval(), src_BS, tgt_BT)
    assert header == table([summarize(tensor) for tensor in tensors]).splitlines()[0]
    expected = [f"{t.name} {summarize(t).shape_text}".split() for t in tensors]
    shown = [re.findall(r"^\S+|\b[A-Z]\d+\b", line) for line in lines if line != "..."]
    assert len(shown) > 30
    assert shown == [row for row in expected if row in shown]
