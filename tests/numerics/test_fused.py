"""The fused operations of training equal what they replace, which PyTorch computes in fp64."""

import math
import os

import pytest
import torch
from bare_runs import random_batch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from seq2seq_cli.config.regularization import Consistency
from seq2seq_cli.config.schema import ModelConfig, TrainingConfig
from seq2seq_cli.data.batches import Batch, number_pairs
from seq2seq_cli.model.attention import attention_weights
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import Packed
from seq2seq_cli.model.positions import rotations
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import fused
from seq2seq_cli.native import library as native
from seq2seq_cli.training.losses.consistency import build_loss
from seq2seq_cli.training.step import seed_dropout

SETS = ["avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon"]
EXACTNESS = {torch.float32: 2e-5, torch.bfloat16: 2e-2}  # relative to the greatest number
dtypes = st.sampled_from(sorted(EXACTNESS, key=str))


@pytest.fixture(autouse=True, params=SETS)
def kernels(request):
    """Each instruction set of this machine, and the one that training takes."""
    if not native.choose_kernels(request.param) or not native.has_training_kernels():
        pytest.skip(f"this machine does not run {request.param}")
    yield
    native.choose_kernels(os.environ.get("SEQ2SEQ_CPU_ISA"))


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    scale = max(expected.abs().max().item() if expected.numel() else 0.0, 1e-3)
    difference = (found.double() - expected.double()).abs()
    assert not difference.numel() or difference.max() <= EXACTNESS[dtype] * scale


def differentiate(function, inputs, gradient):
    """The output, and the gradient of each input."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    output.backward(gradient.to(output.dtype))
    return output.detach(), [leaf.grad for leaf in leaves]


def compare(function, reference, inputs, dtype):
    """Output and gradients of `function`, in `dtype`, against those of `reference` in fp64."""
    gradient = torch.randn_like(reference(*[x.double() for x in inputs])).to(dtype)
    ours = differentiate(function, inputs, gradient)
    exact = differentiate(reference, [x.double() for x in inputs], gradient)
    assert_close(ours[0], exact[0], dtype)
    for found, expected in zip(ours[1], exact[1], strict=True):
        assert_close(found, expected, dtype)


def in_training(p: float = 0.0) -> Dropout:
    return Dropout(p).train()


def normed(size: int, dtype: torch.dtype) -> nn.LayerNorm:
    norm = nn.LayerNorm(size).to(dtype)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@given(
    dtypes,
    st.integers(1, 200),
    st.integers(1, 130),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["invertible", "some weights are near 0", "a weight is 0"]),
)
def test_sums_and_norms(dtype, rows, size, has_residual, has_norm, weights):
    torch.manual_seed(rows * size)
    x, y = torch.randn(2, 1, rows, size).mul_(3).to(dtype).unbind()
    norm, exact_norm = normed(size, torch.float32), nn.LayerNorm(size).double()
    with torch.no_grad():
        if weights == "invertible":
            norm.weight += 0.1 * norm.weight.sign()
        elif weights == "a weight is 0":
            norm.weight[0] = norm.bias[0] = 0
    exact_norm.load_state_dict(norm.state_dict())
    if has_residual:
        compare(
            lambda a, b: fused.add(a, b, in_training(), norm if has_norm else None),
            lambda a, b: exact_norm(a + b) if has_norm else a + b,
            [x, y],
            dtype,
        )
    else:
        compare(lambda a: fused.normalize(a, norm), exact_norm, [x], dtype)
    if has_norm or not has_residual:
        for name, parameter in norm.named_parameters():
            expected = getattr(exact_norm, name).grad
            tolerance = EXACTNESS[dtype] * (expected.abs().max() + rows**0.5)
            assert (parameter.grad - expected).abs().max() <= tolerance


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_a_sum_is_kept_only_if_the_norm_cannot_be_inverted(weight):
    """What follows keeps the result of the norm, which is enough for the gradients."""
    x, y = torch.randn(2, 1, 6, 16).unbind()
    norm, kept = nn.LayerNorm(16), []
    nn.init.constant_(norm.weight, weight)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = fused.add(x, y, in_training(), norm)
    (only,) = (tensor for tensor in kept if tensor.shape == x.shape)
    assert (only.data_ptr() == result.data_ptr()) == (weight != 0)
    assert torch.equal(only, result if weight else x + y)


@given(
    dtypes, st.integers(1, 40), st.integers(1, 130), st.sampled_from([nn.ReLU, nn.GELU, nn.SiLU])
)
def test_activations(dtype, rows, size, activation):
    torch.manual_seed(rows * size)
    x = torch.randn(1, rows, size).mul_(4).to(dtype)
    compare(lambda a: fused.activate(a * 1, activation(), in_training()), activation(), [x], dtype)


def rotation_tables(length: int, size: int, base: float):
    cosines, sines = rotations(0, length, size, torch.device("cpu"), base).unbind(-1)
    return cosines.repeat_interleave(2, 1), torch.stack([-sines, sines], -1).flatten(1)


def random_layout(lengths: list[int]) -> Packed:
    is_token_BT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Packed(is_token_BT)


def attention_of_one(q, k, v, heads, scale, base, is_causal):
    """A sentence's attention by `model/attention.py`: LD to LD."""
    q, k, v = (x.unflatten(1, (heads, -1)).transpose(0, 1)[None] for x in (q, k, v))
    if base is not None:
        q, k = (
            torch.view_as_real(
                torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
                * torch.view_as_complex(rotations(0, x.size(2), x.size(3), x.device, base).double())
            ).flatten(-2)
            for x in (q, k)
        )
    mask = torch.ones(q.size(2), k.size(2), dtype=torch.bool).tril()[None, None]
    weights = attention_weights(q * (scale * math.sqrt(q.size(-1))), k, mask if is_causal else None)
    return (weights @ v)[0].transpose(0, 1).flatten(1)


@given(
    dtypes,
    st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from([2, 8, 10, 16, 32, 40]),
    st.sampled_from([None, 100.0]),
    st.sampled_from(["self", "causal", "memory"]),
)
def test_attention(dtype, lengths, heads, size, base, kind):
    torch.manual_seed(len(lengths) * size)
    is_causal, d_model, scale = kind == "causal", heads * size, 0.7
    queries, memory = zip(*lengths, strict=True)
    layouts = (random_layout(list(queries)), random_layout(list(memory)))
    if kind != "memory":
        layouts = (layouts[0], layouts[0])

    def reference(q_1RD, kv_1SD=None):
        out = torch.zeros(*q_1RD.shape[:2], d_model, dtype=torch.float64)
        if kv_1SD is None:
            q_1RD, k, v = q_1RD.split(d_model, dim=-1)
        else:
            k, v = kv_1SD.split(d_model, dim=-1)
        parts = []
        for n in range(len(lengths)):
            rows, of_memory = (
                slice(int(side.starts_B[n]), int(side.starts_B[n] + side.lengths_B[n]))
                for side in layouts
            )
            parts.append(
                attention_of_one(
                    q_1RD[0, rows], k[0, of_memory], v[0, of_memory], heads, scale, base, is_causal
                )
            )
        together = torch.cat(parts)
        return F.pad(together, (0, 0, 0, out.size(1) - len(together)))[None]

    tables = None if base is None else rotation_tables(70, size, base)

    def ours(q_1RD, kv_1SD=None):
        return fused.attend(q_1RD, kv_1SD, layouts, heads, scale, is_causal, tables, in_training())

    rows = [len(side.batch_index_R) for side in layouts]
    widths = [d_model, 2 * d_model] if kind == "memory" else [3 * d_model]
    inputs = [torch.randn(1, r, w).to(dtype) for r, w in zip(rows, widths, strict=False)]
    compare(ours, reference, inputs, dtype)


class Scaled(nn.LayerNorm):
    """A norm of somebody else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.mark.parametrize(
    "module",
    [nn.Tanh(), nn.GELU("tanh"), Scaled(16), nn.RMSNorm(16), nn.LayerNorm(16, bias=False)],
    ids=repr,
)
def test_modules_that_c_does_not_know_are_trained_by_pytorch(module):
    x, dropout = torch.randn(5, 16, requires_grad=True), Dropout(0.0).train()
    if isinstance(module, (nn.Tanh, nn.GELU)):
        found = [fused.activate(x, module, dropout)]
    else:
        found = [fused.normalize(x, module), fused.add(x, 0 * x, dropout, module)]
    assert all(torch.equal(one, module(x)) for one in found)


def test_dropout_is_the_same_forward_and_backward_and_has_the_right_mean():
    x = torch.ones(1, 3_000, 100, requires_grad=True)
    torch.manual_seed(0)
    y = fused.add(torch.zeros_like(x), x, in_training(0.3))
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert y.unique().tolist() == [0.0, pytest.approx(1 / 0.7)]
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    kept = (y > 0).float()
    assert kept.mean(1).std() < 0.05 and kept.mean(2).std() < 0.06
    relu = fused.activate(torch.ones_like(x) * x, nn.ReLU(), in_training(0.3))
    assert relu.mean().item() == pytest.approx(1, abs=0.01)
    assert not torch.equal(relu, y)


def test_dropout_of_attention_weights_is_the_same_forward_and_backward():
    """With values that are a unit matrix, the output is the weights."""
    layout = random_layout([16])
    q, k = torch.randn(2, 1, 64, 16).unbind()
    v = F.pad(torch.eye(16), (0, 0, 0, 48))[None]
    joined = torch.cat([q, k, v], -1).requires_grad_()
    torch.manual_seed(0)
    y = fused.attend(joined, None, (layout, layout), 1, 1.0, False, None, in_training(0.4))
    gradient = torch.randn_like(y)
    y.backward(gradient)
    weights = (q[0, :16] @ k[0, :16].T).softmax(-1)
    assert torch.allclose(
        y[0, :16], torch.where(y[0, :16] > 0, weights / 0.6, 0.0), rtol=1e-4, atol=1e-6
    )
    assert 0.4 < (y[0, :16] > 0).float().mean() < 0.8
    expected_dv = y[0, :16].T @ gradient[0, :16]
    assert torch.allclose(joined.grad[0, :16, 32:], expected_dv, rtol=1e-4, atol=1e-5)


def test_numbers_that_are_not_finite_stay_so():
    layout = random_layout([5, 20])
    for place in (0, 20, 40):  # in queries, keys and values
        for bad in (math.nan, math.inf):
            joined = torch.randn(1, 64, 48)
            joined[0, 7, place] = bad
            joined.requires_grad_()
            y = fused.attend(joined, None, (layout, layout), 2, 1.0, False, None, in_training())
            assert y[0, :5].isfinite().all() and not y[0, 5:].isfinite().all()
            y.sum().backward()
            assert not joined.grad.isfinite().all() or place >= 32
    huge = torch.randn(1, 2, 16) * 1e20  # whose variance is infinite
    assert fused.normalize(huge, nn.LayerNorm(16)).isnan().all()
    x = torch.tensor([[[1.0, math.nan]]], requires_grad=True)
    for activation in (nn.ReLU(), nn.GELU(), nn.SiLU()):
        assert fused.activate(x * 1, activation, in_training())[0, 0, 1].isnan()


def test_result_does_not_depend_on_the_number_of_threads():
    layout = random_layout([3, 50, 17, 1, 33])

    def results() -> list[torch.Tensor]:
        torch.manual_seed(0)
        joined = torch.randn(1, len(layout.batch_index_R), 96, requires_grad=True)
        norm = normed(32, torch.float32)
        tables = rotation_tables(50, 8, 9.0)
        y = fused.attend(joined, None, (layout, layout), 4, 1.0, True, tables, in_training(0.1))
        y = fused.activate(fused.add(y, y, in_training(0.2), norm), nn.GELU(), in_training(0.1))
        y.square().sum().backward()
        last = normed(100, torch.float32)
        fused.normalize(torch.randn(1, 20_000, 100), last).square().sum().backward()
        return [y, joined.grad, *(p.grad for p in (*norm.parameters(), *last.parameters()))]

    one = results()
    torch.set_num_threads(3)
    try:
        three = results()
    finally:
        torch.set_num_threads(1)
    assert all(map(torch.equal, one, three))


@pytest.mark.parametrize("kind", [None, "r_drop", "simcut"])
def test_parts_of_a_batch_drop_what_the_batch_drops(kind):
    """So neither the number of processes nor a split after out of memory changes an update."""
    config = ModelConfig(
        d_model=24,
        heads=3,
        layers=2,
        d_ff=40,
        dropout=0.3,
        attention_dropout=0.2,
        activation_dropout=0.1,
    )
    model = Transformer(config, 30, 30, True, 0)
    consistency = kind and Consistency(kind=kind)
    training = TrainingConfig(consistency=consistency, precision="fp32")
    loss = build_loss(model, training, torch.device("cpu")).train()

    def gradients(batches: list[Batch], step: int = 1) -> torch.Tensor:
        model.zero_grad()
        for rank, batch in enumerate(batches):
            seed_dropout(loss, 1, step, rank)
            loss(batch).total.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    first, second = number_pairs([random_batch(7, seed=1), random_batch(7, seed=1)])
    whole = gradients([first])
    parts = [first.shard(2, 1), *(first.shard(2, 0).shard(3, rank) for rank in range(3))]
    assert_close(gradients(parts), whole, torch.float32)
    for batch, step in ((second, 1), (first, 2)):  # each drops others
        assert (gradients([batch], step) - whole).norm() > 0.05 * whole.norm()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_norm_of_a_model_is_trained_in_c_unless_it_has_hooks(norm):
    """PyTorch's gradients of a norm depend on the number of threads."""
    torch.manual_seed(0)
    config = ModelConfig(d_model=24, heads=3, layers=2, d_ff=40, norm=norm)
    model = Transformer(config, 30, 30, True, 0).train()

    src, tgt = torch.randint(3, 30, (2, 7, 20))

    def states_and_norms_of_pytorch() -> tuple[torch.Tensor, int]:
        torch.manual_seed(1)
        states, _ = model.forward_hidden(src, tgt, Packed)
        found, left = set(), [states.grad_fn]
        while left:
            node = left.pop()
            if node is not None and node not in found:
                found.add(node)
                left.extend(after for after, _ in node.next_functions)
        return states, sum(node.name().startswith("NativeLayerNorm") for node in found)

    states, count = states_and_norms_of_pytorch()
    assert count == 0
    called = []
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    for module in norms:
        module.register_forward_hook(lambda *_: called.append(1))
    states_with_hooks, count = states_and_norms_of_pytorch()
    assert count == len(called) == len(norms) > 0
    assert_close(states_with_hooks, states, torch.float32)  # with the same dropout


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("positions", ["rotary", "sinusoidal"])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_gradients_of_a_model(norm, positions, checkpoints):
    config = ModelConfig(
        d_model=24, heads=3, layers=2, d_ff=40, dropout=0, norm=norm, positions=positions
    )
    torch.manual_seed(1)
    model = Transformer(config, 30, 30, True, 0).train()
    model.checkpoints_activations = checkpoints
    src, tgt = torch.randint(3, 30, (7, 20)), torch.randint(3, 30, (7, 12))
    for ids in (src, tgt):
        for row, length in enumerate((1, 5, ids.size(1), 2, 9, 1, 4)):
            ids[row, length:] = 0

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        states, layout = model.forward_hidden(src, tgt, Packed)
        torch.manual_seed(2)
        gradient = torch.randn_like(states)
        gradient[:, layout.num_tokens :] = 0  # the loss does not see padding
        states.backward(gradient)
        return {
            name: parameter.grad
            for name, parameter in model.named_parameters()
            if parameter.grad is not None and not name.endswith("key.bias")  # which is 0
        }

    fused_gradients = gradients()
    native.choose_kernels("plain")  # which has none for training
    for name, gradient in gradients().items():
        assert_close(fused_gradients[name], gradient, torch.float32)
