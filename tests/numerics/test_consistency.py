"""Losses over two passes against the formulas of R-Drop and SimCut, by autograd."""

import pytest
import torch
from bare_runs import SGD, bare_run
from torch import Tensor
from torch.nn import functional

from seq2seq_cli.config.regularization import Consistency
from seq2seq_cli.config.schema import ModelConfig, TrainingConfig
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import Packed, Padded
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID
from seq2seq_cli.training.losses.consistency import (
    ConsistencyLoss,
    build_loss,
    draw_cutoff,
    terms_of,
    twice,
    two_pass_loss,
)
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.step import seed_dropout, train_step

KINDS = {
    "r_drop": Consistency(kind="r_drop", weight=5.0),
    "simcut": Consistency(kind="simcut", weight=3.0, cutoff=0.3),
}
BATCH = Batch(
    torch.tensor([[5, 6, 7, EOS_ID], [9, 8, EOS_ID, PAD_ID], [4, EOS_ID, PAD_ID, PAD_ID]]),
    torch.tensor([[BOS_ID, 7, 8], [BOS_ID, 4, PAD_ID], [BOS_ID, 6, 9]]),
    torch.tensor([[7, 8, EOS_ID], [4, EOS_ID, IGNORE_INDEX], [6, 9, EOS_ID]]),
    num_tokens=8,
    num_src_tokens=9,
)


def published(kind: str, weight: float, first_NV: Tensor, second_NV: Tensor, y_N: Tensor, ε: float):
    """The sums of cross-entropies and divergences, as the papers write them."""
    log_p, log_q = first_NV.float().log_softmax(-1), second_NV.float().log_softmax(-1)
    p_q = (log_p.exp() * (log_p - log_q)).sum()
    q_p = (log_q.exp() * (log_q - log_p)).sum()
    ce = [functional.nll_loss(x, y_N, reduction="sum") * (1 - ε) for x in (log_p, log_q)]
    ce = [c - ε / x.size(1) * x.sum() for c, x in zip(ce, (log_p, log_q), strict=True)]
    if kind == "r_drop":
        return ce[0] + ce[1], weight * (p_q + q_p) / 2
    return ce[0], weight * p_q


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "vocabulary", "smoothing"), [(150, 30, 0.0), (150, 30, 0.1), (400, 8_000, 0.1)]
)
def test_loss_and_gradients_match_the_published_formula(kind, rows, vocabulary, smoothing):
    """In one chunk and in several, with ignored positions between the others."""
    torch.manual_seed(1)
    labels = torch.randint(vocabulary, (rows,))
    labels[torch.rand(rows) < 0.2] = IGNORE_INDEX
    states = torch.randn(2, rows, 8)
    states[1] = states[0] + 0.3 * states[1]
    inputs = states.flatten(0, 1).requires_grad_(), torch.randn(vocabulary, 8).requires_grad_()
    ours = two_pass_loss(*inputs, labels.repeat(2), smoothing, terms_of(KINDS[kind]))
    y, (first, second) = labels[labels >= 0], (inputs[0] @ inputs[1].T).chunk(2)
    weight = KINDS[kind].weight
    ce, divergence = published(kind, weight, first[labels >= 0], second[labels >= 0], y, smoothing)
    assert ours.metrics["consistency"].item() == pytest.approx(divergence.item(), rel=1e-4)
    assert ours.total.item() == pytest.approx((ce + divergence).item(), rel=1e-5)
    expected = torch.autograd.grad(0.5 * (ce + divergence), inputs)
    actual = torch.autograd.grad(0.5 * ours.total, inputs)
    for theirs, mine in zip(expected, actual, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_in_bf16_is_as_close_to_fp32_as_that_of_autograd(kind):
    torch.manual_seed(4)
    projection = torch.randn(2_000, 64) * 64**-0.5
    labels = torch.randint(2_000, (200,))
    states = (12 * projection[labels] + torch.randn(200, 64)).repeat(2, 1)
    states[200:] += 0.5 * torch.randn(200, 64)
    weight = KINDS[kind].weight

    def naive(states: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
        logits = functional.linear(states, projection).chunk(2)
        ce, divergence = published(kind, weight, *logits, labels, 0.1)
        return ce + divergence, divergence

    def fused(states: Tensor, projection: Tensor) -> tuple[Tensor, Tensor]:
        terms = terms_of(KINDS[kind])
        total, metrics = two_pass_loss(states, projection, labels.repeat(2), 0.1, terms)
        return total, metrics["consistency"]

    results = []
    for loss_of, use_bf16 in ((naive, False), (naive, True), (fused, True)):
        inputs = states.clone().requires_grad_(), projection.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
            total, divergence = loss_of(*inputs)
        results.append((total, divergence, *torch.autograd.grad(total, inputs)))
    exact, *rounded = results
    theirs, ours = (
        [((x - y).norm() / y.norm()).item() for x, y in zip(found, exact, strict=True)]
        for found in rounded
    )
    assert max(ours[:2]) < 0.01
    assert max(ours[2:]) < 1.5 * max(theirs[2:])


def test_loss_of_a_diverged_model_matches_the_published_formula():
    """The label's probability underflows in either pass."""
    torch.manual_seed(5)
    projection, labels = torch.randn(40, 16), torch.randint(40, (90,))
    states = torch.randn(180, 16)
    states[::3] *= 100
    logits = (states @ projection.T).chunk(2)
    ce, divergence = published("simcut", 3.0, *logits, labels, 0.1)
    ours = two_pass_loss(states, projection, labels.repeat(2), 0.1, terms_of(KINDS["simcut"]))
    assert ours.total.item() == pytest.approx((ce + divergence).item(), rel=1e-4)


def model_of(dropout: float) -> Transformer:
    torch.manual_seed(0)
    shape = ModelConfig(d_model=16, heads=2, layers=1, d_ff=32, dropout=dropout)
    return Transformer(shape, 12, 12, True, PAD_ID)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [Packed, Padded])
def test_batch_loss_matches_two_forward_passes(kind, layout):
    """With dropout and the tokens that are cut off drawn alike, the model's gradients are equal."""
    consistency = KINDS[kind]
    batch_loss = ConsistencyLoss(model_of(0.3), 0.1, False, consistency=consistency).train()
    batch_loss.layout = layout
    seed_dropout(batch_loss, 1, 1, 0)
    ours = batch_loss(BATCH)
    seed_dropout(batch_loss, 1, 1, 0)
    both, model = twice(BATCH), batch_loss.model
    cut = ()
    if consistency.cutoff:
        cut = map(draw_cutoff, (both.src_BS, both.tgt_in_BT), batch_loss.cutoffs)
    states, packed = model.forward_hidden(both.src_BS, both.tgt_in_BT, layout, *cut)
    labels = packed.pack_ids(both.labels_BT, IGNORE_INDEX).flatten()
    logits = model.projection(states.flatten(0, 1)[labels != IGNORE_INDEX]).chunk(2)
    assert not torch.allclose(*logits)
    y = BATCH.labels_BT[BATCH.labels_BT != IGNORE_INDEX]
    ce, divergence = published(kind, consistency.weight, *logits, y, 0.1)
    assert ours.total.item() == pytest.approx((ce + divergence).item(), rel=1e-5)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(ce + divergence, parameters)
    actual = torch.autograd.grad(ours.total, parameters)
    for theirs, mine in zip(expected, actual, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_tokens_that_are_cut_off_have_zero_embeddings():
    model, src, tgt = model_of(0.0), BATCH.src_BS, BATCH.tgt_in_BT
    with torch.no_grad():
        whole, _ = model.forward_hidden(src, tgt, Packed)
        actual, _ = model.forward_hidden(src, tgt, Packed, src == 6, tgt == 6)
        model.src_embedding.weight[6] = 0  # and the target's, which is the same
        expected, _ = model.forward_hidden(src, tgt, Packed)
    torch.testing.assert_close(actual, expected)
    assert not torch.allclose(actual, whole)


def test_only_the_second_pass_loses_tokens_and_never_eos_or_bos():
    ids = torch.randint(4, 12, (40, 50))
    ids[:, 0], ids[:, -1] = BOS_ID, EOS_ID
    cut = draw_cutoff(ids, Dropout(0.25).train())
    assert not cut[:20].any() and not cut[:, 0].any() and not cut[:, -1].any()
    assert cut[20:, 1:-1].float().mean().item() == pytest.approx(0.25, abs=0.05)


def test_gradient_accumulation_matches_one_large_batch():
    """Without dropout both passes are equal: twice the cross-entropy, and no divergence."""
    results = []
    training = TrainingConfig(consistency=KINDS["r_drop"], precision="fp32")
    for count in (1, 3):
        batch_loss = build_loss(model_of(0.0), training, torch.device("cpu"))
        optimizer = SGD(batch_loss.parameters(), lr=0.1)
        batches = [BATCH] if count == 1 else [BATCH.shard(3, part) for part in range(3)]
        results.append(train_step(bare_run(batch_loss, optimizer, training), batches))
    alone = BatchLoss(model_of(0.0), 0.1, False)(BATCH).total.item()
    for result in results:
        assert result.loss == pytest.approx(2 * alone, rel=1e-5)
        assert result.metrics["consistency"] == pytest.approx(0, abs=1e-5)
        assert result.grad_norm == pytest.approx(results[0].grad_norm, rel=1e-4)
