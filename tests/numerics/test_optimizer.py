"""Every option of the optimizer and of the learning rate reaches the update."""

import copy
import math

import pytest
import torch
from schedulefree import AdamWScheduleFree
from small_models import build
from torch import nn
from torch.nn import functional

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.model.parameters import is_matrix_of_layer
from seq2seq_cli.training.optimizers.muon import orthogonalize
from seq2seq_cli.training.optimizers.optimizer import build_optimizer, trained_weights
from seq2seq_cli.training.optimizers.schedules import SCHEDULES, Plan, set_lr

OPTIONS = {"max_steps": 100, "warmup_steps": 4, "lr": 0.1, "adam_beta1": 0.7, "adam_beta2": 0.8}
OPTIONS |= {"adam_epsilon": 0.01, "weight_decay": 0.3}


def adam_by_hand(weights: list[float], gradients: list[float], config: TrainingConfig, lr: float):
    """Kingma & Ba 2015, algorithm 1; the weight decay is decoupled with adamw, else L2."""
    mean = square = [0.0] * len(weights)
    for step in (1, 2, 3):
        decayed = gradients
        if config.optimizer == "adam":
            pairs = zip(gradients, weights, strict=True)
            decayed = [g + config.weight_decay * w for g, w in pairs]
        else:
            weights = [w * (1 - lr * config.weight_decay) for w in weights]
        beta1, beta2 = config.adam_beta1, config.adam_beta2
        mean = [beta1 * m + (1 - beta1) * g for m, g in zip(mean, decayed, strict=True)]
        square = [beta2 * v + (1 - beta2) * g * g for v, g in zip(square, decayed, strict=True)]
        for i, weight in enumerate(weights):
            scaled = math.sqrt(square[i] / (1 - beta2**step)) + config.adam_epsilon
            weights[i] = weight - lr * mean[i] / (1 - beta1**step) / scaled
    return weights


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_optimizer_matches_adam_by_hand_with_every_option(name):
    config = TrainingConfig(**OPTIONS, optimizer=name)
    layer = nn.Linear(3, 1, bias=False)
    gradients = [0.02, -0.5, 3.0]
    expected = adam_by_hand(layer.weight[0].tolist(), gradients, config, lr=0.05)
    optimizer = build_optimizer(layer, config)
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    for _ in range(3):
        layer.weight.grad = torch.tensor([gradients])
        optimizer.step()
    assert layer.weight[0].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_set_lr_uses_schedule_peak_and_warmup(schedule):
    config = TrainingConfig(**OPTIONS, schedule=schedule)
    optimizer = build_optimizer(nn.Linear(3, 1), config)
    plan = Plan(60, 4)
    for step in (1, 4, 5, 40, 60):
        lr = set_lr(optimizer, config, step, plan)
        assert lr == pytest.approx(0.1 * SCHEDULES[schedule](step, plan))
        assert [group["lr"] for group in optimizer.param_groups] == [lr, lr]


def test_schedule_free_adamw_equals_the_authors_implementation():
    """With warm-up, weight decay of matrices, and both sequences compared."""
    config = TrainingConfig(
        optimizer="schedule_free_adamw",
        lr=0.02,
        warmup_steps=20,
        adam_beta1=0.85,
        adam_beta2=0.97,
        adam_epsilon=1e-6,
        weight_decay=0.1,
    )
    torch.manual_seed(1)
    inputs, wanted = torch.randn(64, 5), torch.randn(64, 3)
    ours = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))
    theirs = copy.deepcopy(ours)
    optimizer = build_optimizer(ours, config)
    groups = [
        {"params": [p for p in theirs.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in theirs.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    reference = AdamWScheduleFree(
        groups, lr=0.02, betas=(0.85, 0.97), eps=1e-6, warmup_steps=20, foreach=False
    )
    reference.train()
    for step in range(1, 201):
        rows = torch.randint(64, (8,))
        for model in (ours, theirs):
            model.zero_grad()
            functional.mse_loss(model(inputs[rows]), wanted[rows]).backward()
        set_lr(optimizer, config, step, Plan(200, 20))
        optimizer.step()
        reference.step()
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    for y, expected in pairs:
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=1e-4)
    reference.eval()
    averages = trained_weights(ours, optimizer)
    assert not torch.equal(averages["0.weight"], ours[0].weight)
    for x, expected in zip(averages.values(), theirs.parameters(), strict=True):
        torch.testing.assert_close(x, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_muon_trains_matrices_of_layers_and_adamw_the_rest(precision):
    """As PyTorch's two optimizers do, each with its own parameters, and Muon with half the rate."""
    config = TrainingConfig(
        optimizer="muon", lr=0.02, weight_decay=0.1, adam_beta2=0.9, precision=precision
    )
    ours, theirs = build(seed=1, tie_embeddings=True), build(seed=1, tie_embeddings=True)
    for model in (ours, theirs):  # as after an edit
        model.encoder[0].register_parameter("added", nn.Parameter(torch.ones(2, 2, 2)))
    optimizer = build_optimizer(ours, config)
    named = dict(theirs.named_parameters())
    layers = [p for name, p in named.items() if "coder." in name and p.dim() == 2]
    embeddings = [p for name, p in named.items() if "coder." not in name and p.dim() == 2]
    embeddings.append(theirs.encoder[0].added)
    vectors = [p for p in named.values() if p.dim() == 1]
    assert len(layers) == 2 * (4 + 2) + 2 * (8 + 2)
    muon = torch.optim.Muon(layers, lr=0.01, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(
        [{"params": embeddings, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=0.02,
        betas=(0.9, 0.9),
        eps=config.adam_epsilon,
        fused=True,
    )
    for _ in range(3):
        for ours_p, theirs_p in zip(ours.parameters(), theirs.parameters(), strict=True):
            ours_p.grad = torch.randn_like(ours_p)
            theirs_p.grad = ours_p.grad.clone()
        for each in (optimizer, muon, adamw):
            each.step()
    moved = 3 * 0.1 * 0.02  # about, of each element
    for name, ours_p in ours.named_parameters():
        tolerance = 0.2 * moved if is_matrix_of_layer(name, ours_p) else 0.0  # for bf16
        torch.testing.assert_close(ours_p, named[name], atol=tolerance, rtol=0.0)


@pytest.mark.parametrize("use_bf16", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 16, 4), (2, 4, 16)])
def test_orthogonalized_matrices_are_nearly_orthogonal(shape, use_bf16):
    """Each on its own, whatever its length; U Vᵀ has the singular vectors of U S Vᵀ."""
    torch.manual_seed(1)
    u, _, vt = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    singular_values = torch.linspace(1.0, 2.0, min(shape[1:]))
    scales = torch.logspace(-6, 6, shape[0])[:, None, None]
    found = orthogonalize(scales * (u * singular_values) @ vt, use_bf16)
    assert found.dtype == (torch.bfloat16 if use_bf16 else torch.float32)  # on every processor
    values = u.mT @ found.float() @ vt.mT
    diagonal = values.diagonal(dim1=-2, dim2=-1)
    assert ((diagonal > 0.5) & (diagonal < 1.5)).all()
    torch.testing.assert_close(values, torch.diag_embed(diagonal), atol=0.05, rtol=0.0)
