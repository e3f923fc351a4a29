"""Views of attention maps, and the figures drawn of them.

L layers, H heads, Q query positions, M memory positions.
"""

import logging
import struct
import sys
from dataclasses import replace

import matplotlib
import pytest
import torch
from studies import CHINESE, GERMAN, JAPANESE, study, with_text

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.inspect.attention_figure import (
    FigureOptions,
    axes,
    draw_attention,
    view_maps,
)
from seq2seq_cli.extras.plot.figures import figure_bytes


def test_words_are_those_of_the_sentence():
    made = study(GERMAN)
    queries, memory = axes(made, "cross")
    assert memory.words == ("Wir", "haben", "gestern", "den", "Film", "gesehen.", "</s>")
    assert memory.word_of_token == (0, 1, 2, 3, 4, 5, 5, 5, 6)
    assert queries.words == ("We", "saw", "the", "film", "yesterday.", "</s>")
    queries, memory = axes(made, "decoder")
    assert memory.words == ("<s>", "We", "saw", "the", "film", "yesterday.")
    assert not memory.is_content[0]
    # A token of several characters, each a word, stands for all of them.
    assert axes(study(JAPANESE), "cross")[1].words == (
        *("ビール", "を", "飲み", "たい", "です", "。", "</s>"),
    )


@pytest.mark.parametrize("pair", [GERMAN, CHINESE])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_between_words_rows_are_means_and_columns_sums(kind, pair):
    made = study(pair)
    queries, memory = axes(made, kind)
    tokens_LHQM = view_maps(made, kind, "weights", by_words=False).values_LHQM
    words_LHQM = view_maps(made, kind, "weights", by_words=True).values_LHQM
    assert words_LHQM.shape[2:] == (len(queries.words), len(memory.words))
    for word in range(len(queries.words)):
        own = [n for n, w in enumerate(queries.word_of_token) if w == word]
        for attended in range(len(memory.words)):
            columns = [n for n, w in enumerate(memory.word_of_token) if w == attended]
            expected_LH = tokens_LHQM[:, :, own][..., columns].sum(dim=-1).mean(dim=-1)
            torch.testing.assert_close(words_LHQM[:, :, word, attended], expected_LH)


@pytest.mark.parametrize("by_words", [False, True])
@pytest.mark.parametrize("kind", ["encoder", "cross"])
def test_renormalized_rows_sum_to_one_without_eos_and_punctuation(kind, by_words):
    made = study(GERMAN)
    viewed = view_maps(made, kind, "renormalized", by_words)
    assert not {"</s>", "."} & set(viewed.memory)
    sums_LHQ = viewed.values_LHQM.sum(dim=-1)
    torch.testing.assert_close(sums_LHQ, torch.ones_like(sums_LHQ))
    if not by_words:
        kept_LHQM = made.cross.weights_LHQM[..., :-2]
        if kind == "cross":
            expected_LHQM = kept_LHQM / kept_LHQM.sum(dim=-1, keepdim=True)
            torch.testing.assert_close(viewed.values_LHQM, expected_LHQM)


def test_rows_of_which_nothing_is_left_are_zero():
    first_LHM = view_maps(study(), "decoder", "renormalized", False).values_LHQM[:, :, 0]
    assert (first_LHM == 0).all()  # it can attend to BOS only
    empty = view_maps(study(("▁! ?", "▁! ?")), "cross", "renormalized", True)
    assert empty.memory == () and empty.values_LHQM.shape[-1] == 0


def test_norms_are_weights_times_norms_of_values():
    made = study()
    viewed = view_maps(made, "cross", "norms", False)
    expected_LHQM = made.cross.weights_LHQM * made.cross.value_norms_LHM[:, :, None, :]
    torch.testing.assert_close(viewed.values_LHQM, expected_LHQM)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_figure_gives_the_same_bytes(suffix):
    options = FigureOptions("cross", layer=2, head=3)
    first, second = (figure_bytes(draw_attention(study(), options), f".{suffix}") for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_figures_do_not_depend_on_the_settings_of_the_user(suffix):
    options = FigureOptions("cross", layer=2)
    expected = figure_bytes(draw_attention(study(), options), f".{suffix}")
    settings = {"font.size": 20, "savefig.bbox": "tight", "svg.fonttype": "none"}
    with matplotlib.rc_context({"text.usetex": True, **settings}):
        assert figure_bytes(draw_attention(study(), options), f".{suffix}") == expected


def test_figures_of_long_sentences_are_bounded():
    long = study(("▁a " * 300 + "▁b", "▁c"), layers=1, heads=1)
    figure = draw_attention(long, FigureOptions("cross", layer=1))
    (width,) = struct.unpack(">I", figure_bytes(figure, ".png")[16:20])
    assert width < 4096
    assert not figure.axes[0].get_xticklabels()


def test_figures_show_what_they_are_asked_for():
    made = study(layers=2, heads=3)
    viewed = view_maps(made, "cross", "norms", True)
    figure = draw_attention(made, FigureOptions("cross", layer=2, view="norms", by_words=True))
    (image,) = figure.axes[0].images
    mean_QM = viewed.values_LHQM[1].mean(dim=0)
    torch.testing.assert_close(torch.tensor(image.get_array().data), mean_QM)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == list(viewed.memory)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == list(viewed.queries)
    assert len(draw_attention(made, FigureOptions("decoder")).axes) == 2 * 3


def test_layers_and_heads_that_do_not_exist_are_refused():
    model = ModelConfig.model_validate({"layers": 2, "heads": 4})
    for options in ({"layer": 3}, {"layer": 1, "head": 5}, {"layer": 0}):
        with pytest.raises(UserError, match="count from 1"):
            FigureOptions(**options).check(model)
    with pytest.raises(UserError, match="--head requires --layer"):
        FigureOptions(head=1).check(model)
    with pytest.raises(UserError, match="nothing is left"):
        draw_attention(study(("▁! ?", "▁! ?")), FigureOptions(view="renormalized"))


def test_characters_without_a_font_are_warned_of_once(caplog):
    strange, stranger = (with_text(study(), f"{text}$x$") for text in ("\U0010fffe", "\U0010fffd"))
    with caplog.at_level(logging.WARNING, "seq2seq_cli"):
        for kind in ("encoder", "cross", "cross"):
            figure_bytes(draw_attention(strange, FigureOptions(kind, layer=1)), ".png")
        assert len(caplog.records) == 1 and "no installed font" in caplog.text
        draw_attention(stranger, FigureOptions("cross", layer=1))
        draw_attention(with_text(study(), "\n\t$x$"), FigureOptions("cross", layer=1))
        assert len(caplog.records) == 2


def test_figures_without_matplotlib_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install .*\[plot\]'"):
        draw_attention(replace(study(), head_statistics=None), FigureOptions())
