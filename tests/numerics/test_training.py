import ctypes
import functools
import math
import os
import sys

import pytest
import torch
from bare_runs import SGD, bare_run, random_batch
from hypothesis import example, given
from hypothesis.strategies import integers
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

from seq2seq_cli.config.schema import DEFAULT_WARMUP, ModelConfig, TrainingConfig
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import retain_freed_pages
from seq2seq_cli.model.device import check_compiler
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import Packed, Padded
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import fused
from seq2seq_cli.native import library as native
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID
from seq2seq_cli.training.checkpoints.checkpoint import load_last_checkpoint, save_checkpoint
from seq2seq_cli.training.losses.cross_entropy import BatchLoss, check_loss, sequence_loss
from seq2seq_cli.training.optimizers.optimizer import OPTIMIZERS, build_optimizer
from seq2seq_cli.training.optimizers.schedules import SCHEDULES, Plan, set_lr
from seq2seq_cli.training.run import BestModel, Run
from seq2seq_cli.training.step import seed_dropout, train_step

CONFIG = TrainingConfig(lr=1e-2, warmup_steps=10, max_steps=100)


def build(dropout: float = 0.0, **options) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(d_model=16, heads=2, layers=1, d_ff=32, dropout=dropout, **options)
    return Transformer(config, 20, 20, True, PAD_ID)


def loss_of(model: Transformer, use_bf16: bool = False) -> BatchLoss:
    return BatchLoss(model, CONFIG.label_smoothing, use_bf16)


def batch_of(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """Build a batch by hand, independently of the package."""
    src_length = max(len(src) for src, _ in pairs)
    tgt_length = max(len(tgt) for _, tgt in pairs)
    return Batch(
        torch.tensor([src + [PAD_ID] * (src_length - len(src)) for src, _ in pairs]),
        torch.tensor(
            [[BOS_ID, *tgt[:-1]] + [PAD_ID] * (tgt_length - len(tgt)) for _, tgt in pairs]
        ),
        torch.tensor([tgt + [IGNORE_INDEX] * (tgt_length - len(tgt)) for _, tgt in pairs]),
        sum(len(tgt) for _, tgt in pairs),
        sum(len(src) for src, _ in pairs),
    )


class Scaled(Transformer):
    """An edit of logits that training does not know of."""

    def decode(self, *inputs, **options) -> torch.Tensor:
        return 3 * super().decode(*inputs, **options)


PAIRS = [
    ([5, 6, EOS_ID], [7, 8, 9, EOS_ID]),
    ([9, EOS_ID], [4, EOS_ID]),
    ([4, 5, 6, 7, 8, EOS_ID], [10, 11, 12, 13, 14, 15, EOS_ID]),
    ([11, 12, EOS_ID], [16, 17, EOS_ID]),
]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_matches_a_naive_loop_over_tokens(smoothing):
    torch.manual_seed(3)
    states, projection = torch.randn(6, 4), torch.randn(5, 4)
    labels = torch.tensor([1, 4, 2, 3, IGNORE_INDEX, IGNORE_INDEX])
    expected = 0.0
    for position, label in enumerate(labels.tolist()):
        if label == IGNORE_INDEX:
            continue
        scores = [math.exp(float(row @ states[position])) for row in projection]
        for word in range(5):
            share = (1 - smoothing) * (word == label) + smoothing / 5
            expected -= share * math.log(scores[word] / sum(scores))
    loss = sequence_loss(states, projection, labels, smoothing)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("rows", "vocabulary"),
    [(150, 30), (1_500, 8_000), (400, 40_000)],
    ids=["one chunk", "three chunks", "chunks of the fewest rows"],
)
def test_chunked_loss_and_gradients_match_cross_entropy(smoothing, rows, vocabulary):
    """Compared with fp64: sums over many words in fp32 are not exact."""
    torch.manual_seed(4)
    states = torch.randn(rows, 8, requires_grad=True)
    projection = torch.randn(vocabulary, 8, requires_grad=True)
    labels = torch.randint(vocabulary, (rows,))
    labels[torch.rand(rows) < 0.2] = IGNORE_INDEX
    plain = functional.cross_entropy(
        states.double() @ projection.double().T,
        labels,
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=smoothing,
    )
    ours = sequence_loss(states, projection, labels, smoothing)
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    expected = torch.autograd.grad(plain * 0.5, (states, projection))
    actual = torch.autograd.grad(ours * 0.5, (states, projection))
    for theirs, mine, tolerance in zip(expected, actual, (1e-3, 4e-5), strict=True):
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_output_bias_is_in_the_loss_and_gets_its_gradient(tied):
    """Also with the bias of -100 of a token that no translation contains."""
    model = build(output_bias=True, tie_embeddings=tied)
    with torch.no_grad():
        model.projection.bias.normal_()
        model.projection.bias[PAD_ID] = -100
    batch = batch_of(PAIRS)
    ours = loss_of(model)(batch).total
    plain = functional.cross_entropy(
        model(batch.src_BS, batch.tgt_in_BT).flatten(0, 1),
        batch.labels_BT.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
        label_smoothing=CONFIG.label_smoothing,
    )
    assert ours.item() == pytest.approx(plain.item(), rel=1e-5)
    parameters = list(model.parameters())
    expected, actual = (torch.autograd.grad(loss, parameters) for loss in (plain, ours))
    for theirs, mine in zip(expected, actual, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("std", [10, 50, 200, 2_000])
def test_loss_of_a_diverged_model_matches_cross_entropy(smoothing, std):
    """The label's probability underflows, in all rows or in a few."""
    torch.manual_seed(5)
    projection = torch.randn(40, 16) / 4
    labels = torch.randint(40, (90,))
    for num_wrong in (90, 3):
        states = torch.randn(90, 16)
        states[:num_wrong] *= std
        loss = sequence_loss(states, projection, labels, smoothing)
        plain = functional.cross_entropy(
            states @ projection.T, labels, reduction="sum", label_smoothing=smoothing
        )
        assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
        assert loss.item() > 0


def test_loss_and_gradients_of_padding_are_zero():
    states = torch.randn(3, 4, requires_grad=True)
    projection = torch.randn(5, 4, requires_grad=True)
    loss = sequence_loss(states, projection, torch.full((3,), IGNORE_INDEX), 0.1)
    gradients = torch.autograd.grad(loss, (states, projection))
    assert [loss.item(), *(float(g.abs().sum()) for g in gradients)] == [0, 0, 0]


def test_loss_in_bf16_is_close_to_fp32_for_confident_models():
    """The loss is within 0.5 %, the gradients within 2 % of their norm."""
    torch.manual_seed(4)
    projection = torch.randn(8_000, 64) * 64**-0.5
    labels = torch.randint(8_000, (300,))
    states = 12 * projection[labels] + torch.randn(300, 64)  # sure of most labels, not of all
    results = []
    for use_bf16 in (False, True):
        inputs = states.clone().requires_grad_(), projection.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
            loss = sequence_loss(*inputs, labels, 0.1)
        results.append((loss.item(), torch.autograd.grad(loss, inputs)))
    (fp32, expected), (bf16, actual) = results
    assert bf16 == pytest.approx(fp32, rel=5e-3)
    for gradient, close in zip(expected, actual, strict=True):
        assert (close - gradient).norm() <= 0.02 * gradient.norm()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_packed_batches_match_padded_batches(norm):
    results = []
    for layout in (Padded, Packed):
        model = build(norm=norm)
        batch_loss = loss_of(model)
        batch_loss.layout = layout
        loss = batch_loss(batch_of(PAIRS)).total
        loss.backward()
        results.append((loss.item(), {n: p.grad for n, p in model.named_parameters()}))
    (padded, expected), (packed, actual) = results
    assert packed == pytest.approx(padded, rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "positions", "use_bf16", "tolerance"),
    [
        ("eager", "rotary", False, 1e-5),
        ("aot_eager", "rotary", False, 1e-5),
        ("aot_eager", "sinusoidal", False, 1e-5),
        ("aot_eager", "rotary", True, 0.05),
        ("aot_eager", "sinusoidal", True, 0.05),
    ],
)
def test_compiled_step_matches_the_eager_step(backend, positions, use_bf16, tolerance, monkeypatch):
    """It is traced once for all shapes; PyTorch's operations stand in for kernels."""
    backend = CompileCounterWithBackend(backend)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    model = build(positions=positions)
    plain = BatchLoss(model, 0.1, use_bf16)
    compiled = BatchLoss(model, 0.1, use_bf16, compiles=True)
    plain.layout = Padded
    counts = []
    for pairs in (PAIRS, PAIRS[:3], PAIRS[1:3] * 4):
        results = []
        for batch_loss in (plain, compiled):
            loss = batch_loss(batch_of(pairs)).total
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            results.append(torch.cat([loss[None], *(g.flatten() for g in gradients)]))
        assert (results[1] - results[0]).norm() <= tolerance * results[0].norm()
        counts.append(backend.frame_count)
    assert counts[0] == counts[-1]


@pytest.mark.slow
def test_compiled_step_draws_new_dropout_at_each_update(monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    batch_loss = BatchLoss(build(dropout=0.5), 0.0, use_bf16=False, compiles=True)
    losses = []
    for step in (1, 2, 1):
        seed_dropout(batch_loss.model, 0, step, rank=0)
        losses.append(batch_loss(batch_of(PAIRS)).total.item())
    assert losses[0] == losses[2] != losses[1]


def test_compile_without_a_compiler_is_rejected_before_training(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"training\.compile needs the C\+\+ compiler no-such-co"):
        check_compiler()
    monkeypatch.setenv("CXX", sys.executable)
    check_compiler()


def test_shards_of_a_batch_make_the_batch():
    batch = batch_of(PAIRS)
    shares = [batch.shard(3, first) for first in range(3)]
    assert [share.src_BS.tolist() for share in shares] == [
        batch.src_BS[first::3].tolist() for first in range(3)
    ]
    assert sum(share.num_tokens for share in shares) == batch.num_tokens
    assert sum(share.num_src_tokens for share in shares) == batch.num_src_tokens
    nothing = batch.shard(5, 4)
    assert (nothing.num_tokens, nothing.labels_BT.unique().tolist()) == (0, [IGNORE_INDEX])


def test_packed_batch_without_padding_matches_padded_batch():
    results = []
    for layout in (Padded, Packed):
        model = build()
        batch_loss = loss_of(model)
        batch_loss.layout = layout
        batch_loss(batch_of(PAIRS[:1] * 16)).total.backward()
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*results, atol=1e-4, rtol=1e-4)


def test_gradient_accumulation_matches_one_large_batch():
    """It holds for batches of different token counts: the sum is divided once."""
    results = []
    for size in (4, 2, 1):
        model = build()
        optimizer = SGD(model.parameters(), lr=0.1)  # shows gradients as they are
        batches = [batch_of(PAIRS[i : i + size]) for i in range(0, 4, size)]
        update = train_step(bare_run(loss_of(model), optimizer, CONFIG), batches)
        results.append((update, [p.detach().clone() for p in model.parameters()]))
    for update, parameters in results[1:]:
        assert update.loss == pytest.approx(results[0][0].loss, rel=1e-5)
        assert update.grad_norm == pytest.approx(results[0][0].grad_norm, rel=1e-4)
        for ours, first in zip(parameters, results[0][1], strict=True):
            torch.testing.assert_close(ours, first, atol=1e-5, rtol=0)


def test_model_overfits_one_batch():
    model = build()
    optimizer = build_optimizer(model, CONFIG)
    batch = batch_of(PAIRS)
    run = bare_run(BatchLoss(model, 0.0, use_bf16=False), optimizer, CONFIG)
    for step in range(1, 101):
        set_lr(optimizer, CONFIG, step, Plan(100, CONFIG.warmup_updates))
        update = train_step(run, [batch])
        run.state.step = step
    assert update.loss / batch.num_tokens < 0.05


def test_gradients_are_clipped_to_the_norm():
    model = build()
    optimizer = SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    clipped = CONFIG.model_copy(update={"max_grad_norm": 0.01})
    update = train_step(bare_run(loss_of(model), optimizer, clipped), [batch_of(PAIRS)])
    moved = torch.stack([(p - q).norm() for p, q in zip(model.parameters(), before, strict=True)])
    assert update.grad_norm > 0.01
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_nonfinite_update_is_not_applied():
    model = build()
    optimizer = build_optimizer(model, CONFIG)
    with torch.no_grad():
        model.encoder[0].feed_forward.expand.weight[0, 0] = math.inf
    before = model.tgt_embedding.weight.detach().clone()
    update = train_step(bare_run(loss_of(model), optimizer, CONFIG), [batch_of(PAIRS)])
    assert not update.is_finite
    assert torch.equal(model.tgt_embedding.weight, before)


def test_bf16_keeps_fp32_parameters_and_close_gradients():
    """The loss is within 1 %, each gradient within 5 % of its norm (zero for key biases).

    With relu, rounding also switches units that are near 0, which moves gradients by more.
    """
    results = []
    for use_bf16 in (False, True):
        model = build(activation="gelu")
        loss = loss_of(model, use_bf16)(batch_of(PAIRS)).total
        loss.backward()
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        results.append((loss.item(), {n: p.grad for n, p in model.named_parameters()}))
    (fp32, expected), (bf16, actual) = results
    assert bf16 == pytest.approx(fp32, rel=1e-2)
    for name, gradient in expected.items():
        assert (actual[name] - gradient).norm() <= 0.05 * gradient.norm() + 1e-2, name


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kernels", [os.environ.get("SEQ2SEQ_CPU_ISA"), "plain"])
def test_gradients_in_bf16_are_close_in_large_batches(request, norm, kernels):
    """For every parameter: a sum of thousands of rows in bf16 would lose most of them."""
    request.addfinalizer(lambda: native.choose_kernels(os.environ.get("SEQ2SEQ_CPU_ISA")))
    native.precisions()  # whose first call chooses the kernels
    native.choose_kernels(kernels)
    gradients = []
    for use_bf16 in (False, True):
        torch.manual_seed(0)
        shape = ModelConfig(d_model=16, heads=2, layers=1, d_ff=32, dropout=0, norm=norm)
        loss = loss_of(Transformer(shape, 30, 30, True, PAD_ID).train(), use_bf16)
        loss(random_batch(1000, seed=1)).total.backward()
        gradients.append({name: p.grad for name, p in loss.model.named_parameters()})
    fp32, bf16 = gradients
    for name in fp32.keys() - {name for name in fp32 if name.endswith("key.bias")}:  # 0
        assert (bf16[name] - fp32[name]).norm() <= 0.05 * fp32[name].norm(), name


def test_gradients_of_a_sharded_norm_count_all_rows():
    norm = nn.LayerNorm(8).bfloat16()
    fused.normalize(torch.randn(4000, 8).bfloat16(), norm).sum().backward()
    torch.testing.assert_close(norm.bias.grad.float(), torch.full([8], 4000.0), rtol=0.01, atol=0)


def test_packed_batches_are_close_to_padded_batches_in_bf16():
    results = []
    for layout in (Padded, Packed):
        model = build()
        batch_loss = loss_of(model, use_bf16=True)
        batch_loss.layout = layout
        batch_loss(batch_of(PAIRS)).total.backward()
        results.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    padded, packed = results
    assert (packed - padded).norm() <= 0.02 * padded.norm()


def test_dropout_depends_on_seed_step_and_rank_only():
    model = build(dropout=0.5)

    def noise(seed: int, step: int, rank: int) -> float:
        seed_dropout(model, seed, step, rank)
        return torch.rand(()).item()

    def keys(seed: int, step: int, rank: int) -> tuple[int | None, ...]:
        seed_dropout(model, seed, step, rank)
        return tuple(module.key for module in model.modules() if isinstance(module, Dropout))

    assert noise(1, 3, 0) == noise(1, 3, 0)
    assert len({noise(1, 3, 0), noise(1, 4, 0), noise(1, 3, 1), noise(2, 3, 0)}) == 4
    assert keys(1, 3, 0) == keys(1, 3, 1)
    of_updates = keys(1, 3, 0) + keys(1, 4, 0) + keys(2, 3, 0)
    assert len(set(of_updates)) == len(of_updates)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_warm_up_to_the_peak_learning_rate(name):
    shares = [SCHEDULES[name](step, Plan(100, 10)) for step in range(1, 101)]
    assert shares[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    assert max(shares) == 1.0
    assert min(shares) > 0.0
    without_warmup = [SCHEDULES[name](step, Plan(100)) for step in range(1, 101)]
    assert without_warmup[0] == pytest.approx(1.0, abs=0.02)
    assert without_warmup == sorted(without_warmup, reverse=True)


@pytest.mark.parametrize("name", SCHEDULES)
@given(warmup_steps=integers(0, 1_200), total_steps=integers(1, 1_200))
@example(warmup_steps=1_000, total_steps=998)
@example(warmup_steps=1_000, total_steps=999)
@example(warmup_steps=1_000, total_steps=1_000)
def test_schedules_stay_between_zero_and_the_peak(name, warmup_steps, total_steps):
    """It holds for any warm-up, even one longer than the run."""
    plan = Plan(total_steps, warmup_steps)
    shares = [SCHEDULES[name](n, plan) for n in range(1, total_steps + 1)]
    assert 0 < min(shares) <= max(shares) <= 1
    warming = shares[: warmup_steps or None]
    assert warming == sorted(warming, reverse=not warmup_steps)
    assert shares[warmup_steps:] == sorted(shares[warmup_steps:], reverse=True)


def test_inverse_sqrt_without_warmup_decays_as_after_the_default_warmup():
    without, after = (
        [SCHEDULES["inverse_sqrt"](step + shift, Plan(20_000, warmup)) for step in range(1, 10_001)]
        for warmup, shift in ((0, 0), (DEFAULT_WARMUP, DEFAULT_WARMUP - 1))
    )
    assert without == pytest.approx(after)
    assert without[-1] == pytest.approx(0.30, abs=0.01)


def test_schedules_match_their_formulas():
    assert SCHEDULES["constant"](90, Plan(100, 10)) == 1.0
    assert SCHEDULES["inverse_sqrt"](40, Plan(100, 10)) == pytest.approx(0.5)
    assert SCHEDULES["linear"](101, Plan(100, 10)) == pytest.approx(0.0)
    assert SCHEDULES["cosine"](101, Plan(100, 10)) == pytest.approx(0.0)
    assert SCHEDULES["linear"](55, Plan(100, 9)) == pytest.approx(0.5)
    assert SCHEDULES["cosine"](55, Plan(100, 9)) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_weight_decay_applies_to_matrices_only(name):
    model = build()
    config = CONFIG.model_copy(update={"weight_decay": 0.1, "optimizer": name})
    for group in build_optimizer(model, config).param_groups:
        assert all((p.dim() > 1) == (group["weight_decay"] > 0) for p in group["params"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoint_restores_weights_optimizer_and_position(tmp_path, name):
    """Five updates, saved and resumed for five more, match ten updates bit for bit."""
    config = TrainingConfig(lr=1e-2, warmup_steps=10, max_steps=100, optimizer=name)

    def new_run() -> Run:
        model = build(dropout=0.3)
        return bare_run(loss_of(model), build_optimizer(model, config), config)

    def five_steps(run: Run) -> list[float]:
        losses = []
        for _ in range(5):
            losses.append(train_step(run, [batch_of(PAIRS)]).loss)
            run.state.step += 1
        return losses

    run, resumed = new_run(), new_run()
    torch.manual_seed(7)
    five_steps(run)
    run.state.epoch, run.state.position = 2, 1
    run.state.best_models = [BestModel(4, 3.5, 2.25)]
    run.state.window.loss = 1.25
    save_checkpoint(RunFolder(tmp_path), run)
    load_last_checkpoint(RunFolder(tmp_path), resumed)
    assert resumed.state == run.state
    expected = five_steps(run)
    torch.manual_seed(99)
    assert five_steps(resumed) == expected
    for ours, theirs in zip(resumed.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert [path.name for path in tmp_path.rglob("step-*")] == ["step-00000005"]


def test_retaining_freed_pages_is_a_no_op_without_glibc(monkeypatch):
    class NoLibrary:
        def __getattr__(self, name: str):
            raise AttributeError(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: NoLibrary())
    assert retain_freed_pages() is False


def deeper(**options: object) -> Transformer:
    torch.manual_seed(5)
    shape = {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 32, "dropout": 0.0} | options
    return Transformer(ModelConfig(**shape), 30, 30, True, PAD_ID)


@pytest.mark.parametrize("options", [{}, {"norm": "post", "positions": "rotary"}])
def test_activation_checkpointing_keeps_every_bit_of_the_gradients(options):
    """With dropout, which is drawn again in the backward pass."""
    gradients = []
    for checkpoints in (False, True):
        model = deeper(dropout=0.3, attention_dropout=0.2, activation_dropout=0.1, **options)
        model.checkpoints_activations = checkpoints
        batch_loss = BatchLoss(model, 0.1, use_bf16=False).train()
        for seed in (1, 2):
            batch_loss(random_batch(7, seed=seed)).total.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert all(torch.equal(gradients[0][name], g) for name, g in gradients[1].items())


def test_activation_checkpointing_keeps_only_what_layers_read():
    """Fewer tensors wait for the backward pass."""
    sizes = []
    for checkpoints in (False, True):
        model, kept = deeper(layers=4), []
        model.checkpoints_activations = checkpoints
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, kept=kept: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            BatchLoss(model, 0.1, use_bf16=False).train()(random_batch(7, seed=1))
        sizes.append(sum(kept))
    assert sizes[1] < sizes[0] / 3


def test_a_loss_that_is_not_of_the_logits_is_refused():
    check_loss(build(dropout=0.1), batch_of(PAIRS))
    torch.manual_seed(0)
    scaled = Scaled(ModelConfig(d_model=16, heads=2, layers=1, d_ff=32), 20, 20, True, PAD_ID)
    with pytest.raises(UserError, match="is not the cross-entropy of its logits"):
        check_loss(scaled, batch_of(PAIRS))


def test_a_parameter_without_a_gradient_has_no_state(tmp_path):
    """As one of a layer that is not used yet."""
    runs = []
    for _ in range(2):
        model = build()
        model.unused = torch.nn.Linear(2, 2)
        runs.append(bare_run(loss_of(model), build_optimizer(model, CONFIG), CONFIG))
    run, resumed = runs
    train_step(run, [batch_of(PAIRS)])
    save_checkpoint(RunFolder(tmp_path), run)
    load_last_checkpoint(RunFolder(tmp_path), resumed)
    for each in runs:
        train_step(each, [batch_of(PAIRS)])
    for name, weight in run.model.named_parameters():
        assert weight.equal(resumed.model.get_parameter(name)), name
