"""Each example runs, prints what it promises, and computes what its formulas say.

B sentences, T positions, Q query positions, M memory positions, D d_model, H heads, K size of one
head.
"""

import contextlib
import io
import math
import re
import runpy
import sys
import tempfile
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from commands import ROOT
from small_models import pytorch_attention
from torch import nn
from torch.nn import functional as F

from seq2seq_cli.config.types import AttentionScale
from seq2seq_cli.model.attention import ScoreScale, attention_weights

FOLDER = ROOT / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
PLOTTED = ("masks", "score_scaling")


@cache
def run(name: str) -> SimpleNamespace:
    """Run an example as a program; return what it defines, its `output` and its `plot_bytes`."""
    file, output = FOLDER / f"{name}.py", io.StringIO()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        plot = Path(folder, "plot.png")
        arguments = ["--plot", str(plot)] if name in PLOTTED else []
        patch.setattr(sys, "argv", [str(file), *arguments])
        with contextlib.redirect_stdout(output):
            defined = runpy.run_path(str(file), run_name="__main__")
        picture = plot.read_bytes() if arguments else b""
    return SimpleNamespace(**defined | {"output": output.getvalue(), "plot_bytes": picture})


def numbers(text: str, label: str) -> list[float]:
    """The numbers of the first line that begins with a label."""
    (line, *_) = re.findall(rf"^ *{re.escape(label)}(.*)$", text, re.MULTILINE)
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", line)]


def close(actual, expected, atol=1e-5):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_short_and_name_their_source(name):
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    assert f"python examples/{name}.py" in source
    assert re.search(r"[A-Z]\w+(?: et al\.)?\s\(?\d{4}", source), "no paper"


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_page_lists_every_example_and_shows_real_output(page):
    text = (FOLDER / page).read_text(encoding="utf-8")
    in_order = re.findall(r"^python examples/(\w+)\.py$", text, re.MULTILINE)
    assert in_order == re.findall(r"^\| \[\w+\.py\]\((\w+)\.py\)", text, re.MULTILINE)
    assert sorted(in_order) == NAMES
    shown = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(shown) == 2
    for block, name in zip(shown, ("attention_from_averages", "masks"), strict=True):
        assert block in run(name).output


@pytest.mark.parametrize("name", PLOTTED)
def test_plots_are_saved(name):
    assert run(name).plot_bytes.startswith(b"\x89PNG")


# ---- attention_from_averages.py ----


def test_uniform_weights_are_the_mean_of_the_past():
    example, x_BTD = run("attention_from_averages"), torch.randn(3, 6, 4)
    expected = x_BTD.numpy().cumsum(axis=1) / np.arange(1, 7)[:, None]
    uniform_QM = example.masked_softmax(torch.zeros(6, 6))
    means = (example.mean_by_loop(x_BTD), example.mean_by_matrix(x_BTD), uniform_QM @ x_BTD)
    for means_BTD in means:
        np.testing.assert_allclose(means_BTD, expected, atol=1e-6)
    differences = re.findall(r"largest difference, .*: (\S+)", example.output)
    assert len(differences) == 3
    assert max(map(float, differences)) < 1e-5


def test_learned_weights_find_the_previous_position():
    weights_QM = run("attention_from_averages").learn_scores(6)
    assert weights_QM.triu(1).max() == 0
    assert weights_QM.diagonal(-1).min() > 0.9


def test_attention_of_the_example_is_scaled_dot_product_attention():
    example = run("attention_from_averages")
    q_BQK, k_BMK, v_BMK = torch.randn(3, 2, 5, 8)
    expected_BQK = F.scaled_dot_product_attention(q_BQK, k_BMK, v_BMK, is_causal=True)
    close(example.attend(q_BQK, k_BMK, v_BMK), expected_BQK)


def test_heads_by_hand_are_those_of_pytorch():
    example, x_BTD = run("attention_from_averages"), torch.randn(2, 5, 12)
    ours, theirs = pytorch_attention(d_model=12, heads=3)
    future_TT = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected_BTD, _ = theirs(x_BTD, x_BTD, x_BTD, attn_mask=future_TT)
    close(example.attend_with_heads(ours, x_BTD), expected_BTD)


# ---- masks.py ----


def test_masks_of_the_example_follow_their_definitions():
    example = run("masks")
    ids_BT, sentences = example.read_batch()
    lengths = [len(words) for words in sentences]
    assert len(set(lengths)) == 3
    masks = example.masks_of(ids_BT)
    for b, q, m in product(range(3), range(max(lengths)), range(max(lengths))):
        is_word, is_past = m < lengths[b], m <= q
        assert masks["padding mask"][b, q, m] == is_word
        assert masks["causal mask"][b, q, m] == is_past
        assert masks["padding and causal mask"][b, q, m] == (is_word and is_past)


def test_pictures_show_the_masks():
    example = run("masks")
    ids_BT, sentences = example.read_batch()
    for name, mask_BQM in example.masks_of(ids_BT).items():
        picture = example.picture(mask_BQM, sentences)
        assert f"{name}: " in example.output
        assert picture in example.output
        assert picture.count("█") == mask_BQM.sum()
    assert example.output.endswith("by the causal mask alone: False\n")


# ---- self_attention.py ----


def test_fused_and_separate_projections_are_equal():
    example, x_BTD = run("self_attention"), torch.randn(2, 5, 8)
    separate = example.SeparateProjections(8)
    fused = example.FusedProjection(example.fuse(separate.query, separate.key, separate.value))
    close(fused(x_BTD), separate(x_BTD))
    q_BTD, k_BTD, v_BTD = separate.query(x_BTD), separate.key(x_BTD), separate.value(x_BTD)
    close(separate(x_BTD), F.scaled_dot_product_attention(q_BTD, k_BTD, v_BTD))


@pytest.mark.parametrize("heads", [1, 3])
def test_full_attention_matches_pytorch_under_a_mask(heads):
    example, x_BTD = run("self_attention"), torch.randn(3, 5, 12)
    ours, theirs = pytorch_attention(12, heads)
    layer = example.FullAttention(
        example.fuse(ours.query, ours.key, ours.value), ours.output, heads, dropout=0.5
    )
    is_word_BT = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    expected_BTD, _ = theirs(x_BTD, x_BTD, x_BTD, key_padding_mask=~is_word_BT)
    mask_B11T = is_word_BT[:, None, None]
    assert not torch.allclose(layer(x_BTD, mask_B11T), expected_BTD), "dropout"
    close(layer.eval()(x_BTD, mask_B11T), expected_BTD)
    mask_B1T = mask_B11T[:, 0]
    right_BTD = example.attend_merged(layer, x_BTD, mask_B1T.repeat_interleave(heads, dim=0))
    close(right_BTD, expected_BTD)
    repeated_BTD = example.attend_merged(layer, x_BTD, mask_B1T.repeat(heads, 1, 1))
    assert torch.allclose(repeated_BTD, expected_BTD, atol=1e-5) == (heads == 1)


def test_the_mask_repeated_over_heads_is_shown_to_be_wrong():
    output = run("self_attention").output
    assert numbers(output, "masks by repeat_interleave") == [0, 0, 0, 1, 1, 1, 0.0]
    *order, gap = numbers(output, "masks by repeat, wrong")
    assert order == [0, 1, 0, 1, 0, 1]
    assert gap > 0.01
    assert numbers(output, "version 4 and MultiHeadAttention")[0] < 1e-5
    assert numbers(output, "version 3 at words, if padding changes") == [0.0]


# ---- score_scaling.py ----


def test_scales_follow_their_formulas():
    example, (q_QK, k_MK) = run("score_scaling"), torch.randn(2, 6, 5).double()
    for query, key in product(range(6), range(6)):
        q, k = q_QK[query].tolist(), k_MK[key].tolist()
        dot = sum(x * y for x, y in zip(q, k, strict=True))
        lengths = math.hypot(*q) * math.hypot(*k)
        expected = {
            "none": dot,
            "sqrt": dot / math.sqrt(5),
            "cosine": 10 * dot / lengths,
            "length": dot * math.log(6) / math.sqrt(5),
        }
        for name, scale in example.SCALES.items():
            assert scale(q_QK, k_MK)[query, key].item() == pytest.approx(expected[name], abs=1e-9)
        cool = example.temperature(q_QK, k_MK, tau=2)[query, key].item()
        assert cool == pytest.approx(dot / math.sqrt(5) / 2, abs=1e-9)


def test_scales_are_those_of_the_option():
    example = run("score_scaling")
    q_BHQK, k_BHMK = torch.randn(2, 1, 1, 6, 5)
    scales = example.SCALES | {"temperature": example.temperature}
    for name in get_args(AttentionScale):
        weights_BHQM = attention_weights(ScoreScale(name, 1, 5)(q_BHQK), k_BHMK, None)
        close(scales[name](q_BHQK, k_BHMK).softmax(dim=-1), weights_BHQM)


def test_division_by_the_root_of_the_size_keeps_variance_entropy_and_gradients():
    example = run("score_scaling")
    none, sqrt = (
        [example.measure_random(example.SCALES[name], size) for size in (16, 64, 256, 1024)]
        for name in ("none", "sqrt")
    )
    for row, size in zip(none, (16, 64, 256, 1024), strict=True):
        assert row.variance == pytest.approx(size, rel=0.1)
    for row in sqrt:
        assert row.variance == pytest.approx(1, rel=0.1)
        assert row.entropy == pytest.approx(sqrt[0].entropy, abs=0.1)
        assert row.gradient == pytest.approx(sqrt[0].gradient, rel=0.1)
    for attribute in ("entropy", "gradient"):
        values = [getattr(row, attribute) for row in none]
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0] / 4


def test_measures_of_a_softmax():
    example = run("score_scaling")
    uniform = example.measure(torch.zeros(3, 4))
    assert uniform.entropy == pytest.approx(math.log(4))
    assert uniform.greatest == pytest.approx(1 / 4)
    assert uniform.gradient == pytest.approx(math.sqrt(3) / 4)  # ‖(I - 11ᵀ/4) / 4‖
    saturated = example.measure(1e4 * torch.eye(4))
    assert (saturated.entropy, saturated.greatest, saturated.gradient) == (0, 1, 0)


# ---- attention_gradients.py ----


def test_softmax_gradients_by_hand_equal_autograd():
    example = run("attention_gradients")
    scores_QM, dp_QM = torch.randn(2, 3, 7, dtype=torch.float64)
    scores_QM[:, 4:] = -math.inf
    scores_QM.requires_grad_()
    p_QM = scores_QM.softmax(dim=-1)
    (expected_QM,) = torch.autograd.grad(p_QM, scores_QM, dp_QM)
    close(example.softmax_backward(p_QM.detach(), dp_QM), expected_QM, 1e-12)
    for p_M, dp_M, expected_M in zip(p_QM.detach(), dp_QM, expected_QM, strict=True):
        close(example.softmax_jacobian(p_M) @ dp_M, expected_M, 1e-12)


@pytest.mark.parametrize(("leading", "heads"), [((), 1), ((3,), 4)], ids=["one head", "batch"])
def test_attention_gradients_by_hand_equal_autograd(leading, heads):
    """Against PyTorch's own multi-head attention, in fp64."""
    example = run("attention_gradients")
    theirs = nn.MultiheadAttention(16, heads, batch_first=True).double()
    x, dy = torch.randn(2, *leading, 5, 16, dtype=torch.float64)
    is_word = torch.arange(5) < (torch.tensor([5, 3, 1])[:, None] if leading else 4)
    past_TT = torch.ones(5, 5, dtype=torch.bool).tril()
    mask = is_word[..., None, None, :] & past_TT if leading else is_word & past_TT
    inputs = {"x": x.clone().requires_grad_(), **dict(theirs.named_parameters())}
    y, _ = theirs(*[inputs["x"]] * 3, attn_mask=~past_TT, key_padding_mask=~is_word)
    found = dict(zip(inputs, torch.autograd.grad(y, list(inputs.values()), dy), strict=True))
    expected = {"x": found["x"]}
    weights = {}
    for kind in ("weight", "bias"):
        for tensors, projections, output in (
            (expected, found[f"in_proj_{kind}"], found[f"out_proj.{kind}"]),
            (weights, getattr(theirs, f"in_proj_{kind}"), getattr(theirs.out_proj, kind)),
        ):
            for name, part in zip(("query", "key", "value"), projections.chunk(3), strict=True):
                tensors[f"{name}.{kind}"] = part.detach()
            tensors[f"output.{kind}"] = output.detach()
    by_hand = example.self_attention_gradients(
        weights, x, mask if leading else mask[None], heads, dy
    )
    assert by_hand.keys() == expected.keys()
    for name, gradient in by_hand.items():
        close(gradient, expected[name], 1e-12)


def test_gradients_of_the_package_are_those_by_hand():
    differences = re.findall(r"^  .*? {2,}(\S+)$", run("attention_gradients").output, re.MULTILINE)
    assert len(differences) == 2 + 3 + 9
    assert max(map(float, differences)) < 1e-5


# ---- text_classifier.py ----


def test_the_classifier_needs_attention_and_generalizes():
    output = run("text_classifier").output
    (averaged,) = numbers(output, "accuracy, mean of word vectors:")
    (attending,) = numbers(output, "accuracy, attention, then mean:")
    assert attending > 95
    assert averaged < 80
    (change,) = numbers(output, "largest change of the logits by five positions of padding:")
    assert change < 1e-4


def test_reviews_differ_and_negation_turns_the_label():
    example = run("text_classifier")
    reviews = dict(example.write_reviews(300, example.random.Random(5)))
    assert len(reviews) == 300
    for text, label in reviews.items():
        words = text.split()
        (at,) = [i for i, word in enumerate(words) if word in example.GOOD + example.BAD]
        assert label == ((words[at] in example.GOOD) != (words[at - 1] == "not"))


# ---- language_model.py ----


def test_language_models_beat_bigrams_and_respect_the_entropy_of_the_text():
    example = run("language_model")
    labels = ("bigrams", "1-head attention", "4-head attention", "least possible")
    bigrams, one, four, least = (numbers(example.output, label)[-1] for label in labels)
    assert max(one, four) < bigrams - 0.1
    assert min(one, four) > least - 0.02
    share, *_ = numbers(example.output, "sampled,")
    assert share > 80


def test_bigram_loss_is_that_of_smoothed_counts():
    example = run("language_model")
    size = len(example.VOCABULARY)
    loss = example.bigram_loss(torch.tensor([[0, 2, 2]]), torch.tensor([[0, 2, 1]]))
    expected = -(math.log(2 / (size + 1)) + math.log(1 / (size + 1))) / 2
    assert loss == pytest.approx(expected, rel=1e-5)


def test_the_causal_mask_hides_the_future():
    output = run("language_model").output
    changes, leaks = numbers(output, "causal mask "), numbers(output, "without mask")
    assert changes[:5] == [0.0] * 5
    assert min(changes[5:]) > 0
    assert min(leaks) > 0


def test_sentences_agree_with_their_grammar():
    example = run("language_model")
    sentences = [example.write_sentence(example.random.Random(i)) for i in range(50)]
    assert all(map(example.agrees, sentences))
    assert {len(words) for words in sentences} == {example.WORDS}
    wrong = sentences[0][:6] + sentences[0][7:6:-1] + sentences[0][6:7] + sentences[0][8:]
    assert not example.agrees(wrong)


# ---- words_in_context.py ----


def test_context_separates_the_meanings_of_a_word():
    output = run("words_in_context").output.split("after training")[1]
    bench, bank, mixed, article = (
        numbers(output, label)
        for label in (
            "bank: both mean a bench",
            "bank: both mean a bank",
            "bank: one of each",
            "der: beside one of each",
        )
    )
    assert bench[0] == bank[0] == mixed[0] == article[0] == 1
    assert mixed[2] < min(bench[2], bank[2], article[2]) - 0.2
    assert mixed[2] < mixed[1] < mixed[0]
    assert numbers(output, ":") == [100.0]


# ---- transformer_by_heart.py ----


def test_the_transformer_learns_two_sentences_by_heart():
    example = run("transformer_by_heart")
    for side in ("ich mochte ein bier → i want a beer .", "ich mochte ein cola → i want a coke ."):
        assert f"  {side}\n" in example.output
    assert "cross    2 × 1 × 4 × 6 × 5\n" in example.output
    assert "greatest weight on a later word 0.0, on padding 0.0\n" in example.output
    assert example.check_positions(64) < 1e-5
    first, last = numbers(example.output, "loss ")
    assert last < 0.1 < first
