"""Averages of weights equal those computed one number at a time."""

import pytest
import torch
from bare_runs import bare_run
from safetensors.torch import save_file
from small_models import build
from torch import nn

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.averaging import (
    Ema,
    averaged_steps,
    mean_of_files,
    with_weights,
)
from seq2seq_cli.training.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.optimizers.optimizer import build_optimizer, trained_weights
from seq2seq_cli.training.run import Run

SCHEDULE_FREE = TrainingConfig(optimizer="schedule_free_adamw", lr=0.01, adam_beta1=0.8)


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def must_be_equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_ema_equals_its_definition():
    """Its decay rises to that of the config, which it reaches at the 8th update."""
    model = build(seed=1)
    expected = {name: w.double() for name, w in weights_of(model).items()}
    ema = Ema(model, decay=0.5)
    for step in range(1, 20):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        decay = min(0.5, (1 + step) / (10 + step))
        assert (decay == 0.5) == (step >= 8)
        for name, w in weights_of(model).items():
            expected[name] = decay * expected[name] + (1 - decay) * w.double()
        ema.update(model, step)
    for name, w in expected.items():
        assert ema.weights[name].dtype == torch.float32
        torch.testing.assert_close(ema.weights[name], w.float(), atol=1e-6, rtol=1e-5)


def test_model_has_other_weights_only_for_a_while():
    model, other = build(seed=1, tie_embeddings=True), build(seed=2, tie_embeddings=True)
    before, places = weights_of(model), [p.data_ptr() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError), with_weights(model, weights_of(other)):
        must_be_equal(weights_of(model), weights_of(other))
        assert model.projection.weight is model.tgt_embedding.weight
        raise ZeroDivisionError
    must_be_equal(weights_of(model), before)
    assert [p.data_ptr() for p in model.parameters()] == places


def test_mean_of_files_equals_the_mean_of_each_number(tmp_path):
    models, paths = [build(seed) for seed in range(3)], [tmp_path / f"{n}" for n in range(3)]
    for model, path in zip(models, paths, strict=True):
        save_file(weights_of(model), path)
    mean = mean_of_files(paths, models[0])
    for name, found in mean.items():
        stacked = torch.stack([weights_of(model)[name].double() for model in models])
        assert torch.equal(found, stacked.mean(dim=0).float())
    must_be_equal(dict(mean_of_files(paths[1:2], models[0])), weights_of(models[1]))
    halves = {name: tensor.bfloat16() for name, tensor in weights_of(models[0]).items()}
    save_file(halves, paths[0])  # as other programs write them
    of_halves = mean_of_files(paths[:1], models[0])
    must_be_equal(dict(of_halves), {name: tensor.float() for name, tensor in halves.items()})
    save_file(weights_of(build(1, d_ff=8)), paths[2])
    with pytest.raises(UserError, match="does not fit the config"):
        mean_of_files(paths, models[0])


def test_steps_to_average_are_multiples_of_save_every():
    """Validations and stops leave checkpoints in between, which depend on the clock."""
    config = TrainingConfig(save_every=10, average_checkpoints=3)
    assert averaged_steps([0, 7, 10, 20, 25, 30, 40, 44], config) == [20, 30, 40]
    assert averaged_steps([0, 5], config) == []
    assert averaged_steps([10, 20], TrainingConfig(save_every=10)) == []


def schedule_free_run() -> Run:
    model = build(seed=3, tie_embeddings=True)
    optimizer = build_optimizer(model, SCHEDULE_FREE)
    return bare_run(BatchLoss(model, 0.1, use_bf16=False), optimizer, SCHEDULE_FREE)


def five_updates(run: Run) -> None:
    for step in range(run.state.step, run.state.step + 5):
        torch.manual_seed(step)
        for parameter in run.model.parameters():
            parameter.grad = torch.randn_like(parameter)
        run.optimizer.step()
    run.state.step += 5


def test_schedule_free_run_resumes_from_its_average(tmp_path):
    """The checkpoint holds x as weights, and y, which trains, is computed anew, bit for bit."""
    whole, resumed, folder = schedule_free_run(), schedule_free_run(), RunFolder(tmp_path)
    five_updates(whole)
    save_checkpoint(folder, whole)
    saved = dict(mean_of_files([folder.checkpoint(5) / "weights.safetensors"], whole.model))
    must_be_equal(saved, dict(trained_weights(whole.model, whole.optimizer)))
    assert not torch.equal(saved["tgt_embedding.weight"], whole.model.tgt_embedding.weight)
    load_checkpoint(folder.checkpoint(5), resumed)
    must_be_equal(weights_of(resumed.model), weights_of(whole.model))
    for run in (whole, resumed):
        five_updates(run)
    must_be_equal(weights_of(resumed.model), weights_of(whole.model))
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        must_be_equal(resumed.optimizer.state[ours], whole.optimizer.state[theirs])
