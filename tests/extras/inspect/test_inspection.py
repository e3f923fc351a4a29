"""What inspect computes: counts equal PyTorch's, traced tensors equal a plain recomputation.

B sentences, S source positions, T target positions, D d_model, H heads, Q query positions, M memory
positions, K size of one head, V vocabulary.
"""

import copy
import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from seq2seq_cli.config.schema import ModelConfig, TrainingConfig
from seq2seq_cli.config.types import AttentionScale, OptimizerName
from seq2seq_cli.extras.inspect.costs import (
    count_flops,
    measure_memory,
    training_factor,
    update_flops,
)
from seq2seq_cli.extras.inspect.parameters import (
    NamedTensor,
    count_parts,
    summarize,
    table,
    tabulate_parameters,
)
from seq2seq_cli.extras.inspect.trace import trace_tensors
from seq2seq_cli.model.parameters import count_parameters, freeze
from seq2seq_cli.model.positions import sinusoidal_positions
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import PAD_ID
from seq2seq_cli.training.optimizers.optimizer import build_optimizer

SHAPE = {"d_model": 16, "heads": 2, "layers": {"encoder": 3, "decoder": 2}, "d_ff": 24}
SRC_BS = torch.tensor([[5, 6, 7, 8, 9, 10, 3]])
TGT_BT = torch.tensor([[2, 5, 6, 7, 4]])
VARIANTS = {
    "shared, tied, pre": {"shared": True},
    "shared, untied, post": {"shared": True, "tie_embeddings": False, "norm": "post"},
    "separate, tied, gelu": {"activation": "gelu", "embedding_scale": False},
    "separate, untied, without biases": {"tie_embeddings": False, "attention_bias": False},
    **{f"scale {name}": {"attention_scale": name} for name in get_args(AttentionScale)},
}


def build(shared: bool = False, num_features: int = 0, **options: object) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig.model_validate(SHAPE | options)
    sizes = (13 if shared else 11, 13, shared)
    model = Transformer(config, *sizes, PAD_ID, num_features).eval()
    for parameter in model.parameters():  # biases and norms too: zeros and ones hide mistakes
        if parameter.dim() == 1:
            nn.init.normal_(parameter.data, mean=0.5, std=0.5)
    return model


@pytest.fixture(params=VARIANTS.values(), ids=VARIANTS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return build(**request.param)


def test_flops_of_a_forward_pass_are_those_that_pytorch_counts(model):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(SRC_BS, TGT_BT)
    flops = count_flops(model)
    assert flops.forward(SRC_BS.size(1), TGT_BT.size(1)) == counter.get_total_flops()


def test_flops_of_forward_and_backward_pass_are_those_that_pytorch_counts(model):
    with FlopCounterMode(display=False) as counter:
        model(SRC_BS, TGT_BT).sum().backward()
    factor = training_factor(TrainingConfig())
    assert factor * count_flops(model).forward(7, 5) == counter.get_total_flops()
    assert training_factor(TrainingConfig(consistency={"kind": "r_drop"})) == 2 * factor


@pytest.mark.parametrize("frozen", [[], ["encoder"], ["embeddings", "encoder"], ["decoder"]])
def test_flops_of_an_update_are_those_of_the_products_that_pytorch_computes(model, frozen):
    model = copy.deepcopy(model)
    freeze(model, frozen)
    with FlopCounterMode(display=False) as counter:
        model(SRC_BS, TGT_BT).sum().backward()
    counts = counter.get_flop_counts()["Global"]
    products = sum(n for op, n in counts.items() if op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    by_token = update_flops(model)
    expected = by_token["src"] * SRC_BS.numel() + by_token["tgt"] * TGT_BT.numel()
    tolerance = 0.04 if "embeddings" in frozen and model.config.norm == "post" else 0.0
    assert products == pytest.approx(expected, rel=tolerance)


def test_flops_of_a_step_with_a_cache_are_those_of_a_token_at_that_length(model):
    flops = count_flops(model)
    with torch.no_grad():
        cache = model.start_cache(model.encode(SRC_BS))
        for length in range(1, 6):
            with FlopCounterMode(display=False) as counter:
                model.decode(TGT_BT[:, length - 1 : length], cache)
            assert counter.get_total_flops() == (
                flops.target_token
                + flops.target_token_by_target_length * length
                + flops.target_token_by_source_length * SRC_BS.size(1)
            )


def test_flops_follow_the_modules_and_are_not_guessed():
    """A wider feed-forward layer is counted; a layer of another kind is not known."""
    model, flops = build(), count_flops(build())
    model.encoder[0].feed_forward.expand = nn.Linear(16, 48)
    assert count_flops(model).source_token - flops.source_token == 2 * 16 * (48 - 24)
    model = build()
    cache = measure_memory(model, TrainingConfig()).cache(7, 5)
    model.encoder[1], model.decoder[1] = model.encoder[0], model.decoder[0]  # tied, but computed
    assert count_flops(model) == flops
    assert measure_memory(model, TrainingConfig()).cache(7, 5) == cache
    model.decoder[1] = nn.TransformerDecoderLayer(16, 2)
    assert count_flops(model) is None
    model = build()
    model.encoder_norm = nn.Bilinear(16, 16, 16)
    assert count_flops(model) is None


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_parts_sum_to_all_parameters_and_tied_names_are_one_tensor(options):
    model = build(**options)
    is_tied = options.get("tie_embeddings", True)
    tied = {"projection.weight"} if is_tied else set()
    tied |= {"src_embedding.weight"} if is_tied and "shared" in options else set()
    parts, expected = count_parts(model), count_parameters(model)
    assert parts.total == sum(p.numel() for p in model.parameters()) == sum(expected.values())
    assert parts.num_embeddings == expected["embeddings"]
    assert parts.projection == expected["projection"]
    assert {name: sum(kinds.values()) for name, kinds in parts.stacks.items()} == {
        name: expected[name] for name in ("encoder", "decoder")
    }
    assert set(parts.ties) == tied
    for name, first in parts.ties.items():
        assert model.get_parameter(name) is model.get_parameter(first)
    kinds = parts.stacks["decoder"]
    attention = 4 * 16 * 16 + 4 * 16 * model.config.attention_bias
    attention += 2 * (model.config.attention_scale == "temperature")  # one per head
    assert kinds["self_attention"] == kinds["cross_attention"] == 2 * attention
    tensors = tabulate_parameters(model).summaries
    assert [t.name for t in tensors] == [name for name, _ in model.named_parameters()]
    assert sum(math.prod(t.shape) for t in tensors) == parts.total


def test_parameters_that_someone_has_added_are_counted():
    model = build()
    model.gate = nn.Parameter(torch.tensor(1.0))
    model.encoder[0].gate = nn.Parameter(torch.ones(3))
    model.decoder[0].self_attention.table = nn.Parameter(torch.ones(2, 3, 4))
    parts, expected = count_parts(model), count_parameters(model)
    assert parts.total == sum(p.numel() for p in model.parameters()) == sum(expected.values())
    assert parts.other == expected["other"] == parts.report()["other"] == 1
    assert parts.stacks["encoder"]["other"] == 3
    assert sum(parts.stacks["decoder"].values()) == expected["decoder"]
    assert "  other" in dict(parts.rows())


@pytest.mark.parametrize("name", get_args(OptimizerName))
def test_memory_counts_bytes_of_real_tensors(model, name):
    model.requires_grad_(True)
    model.encoder.requires_grad_(False)
    config = TrainingConfig(optimizer=name)
    optimizer = build_optimizer(model, config)
    model.zero_grad()
    model(SRC_BS, TGT_BT).sum().backward()
    optimizer.step()
    memory = measure_memory(model, config)
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    states = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    assert memory.weights_fp32 == sum(p.nbytes for p in parameters)
    assert memory.weights_bf16 == sum(p.bfloat16().nbytes for p in parameters)
    assert memory.training == sum(t.nbytes for t in (*parameters, *gradients, *states))
    with_ema = measure_memory(model, TrainingConfig(ema_decay=0.9))
    without = measure_memory(model, TrainingConfig())
    assert with_ema.training - without.training == memory.weights_fp32
    with torch.no_grad():
        cache = model.start_cache(model.encode(SRC_BS))
        model.decode(TGT_BT, cache)
    keys_and_values = [
        states for layer in cache.layers for pair in (layer.memory, layer.past) for states in pair
    ]
    assert memory.cache(7, 5) == sum(states.nbytes for states in keys_and_values)


def plain_tensors(model: Transformer, src_BS: Tensor, tgt_BT: Tensor) -> dict[str, Tensor]:
    """Every traced tensor by its name, computed from the weights with PyTorch's functions."""
    found: dict[str, Tensor] = {}
    config, weights = model.config, model.state_dict()

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        module = f"{name}.norm" if f"{name}.norm.weight" in weights else name
        size = (config.d_model,)
        normed = F.layer_norm(x, size, weights[f"{module}.weight"], weights[f"{module}.bias"])
        found[module] = normed
        return normed

    def attend(name: str, x: Tensor, memory: Tensor, is_causal: bool) -> Tensor:
        def heads(part: str, states: Tensor) -> Tensor:
            return linear(f"{name}.{part}", states).unflatten(-1, (config.heads, -1)).mT.mT

        q, k, v = (
            heads(part, states).transpose(1, 2)
            for part, states in (("query", x), ("key", memory), ("value", memory))
        )
        visible = torch.ones(q.size(2), k.size(2), dtype=torch.bool)
        visible = visible.tril() if is_causal else visible
        learned = weights.get(f"{name}.scale.inverse_temperature_H", torch.ones(2))[:, None, None]
        products, root = q @ k.mT, math.sqrt(q.size(-1))
        scores = {
            "sqrt": products / root,
            "none": products,
            "temperature": learned * products / root,
        }[config.attention_scale]
        scores = scores.masked_fill(~visible, -torch.inf)
        parts = {"q": q, "k": k, "v": v, "scores": scores, "weights": scores.softmax(-1)}
        parts["heads"] = parts["weights"] @ v
        parts["output"] = linear(f"{name}.output", parts["heads"].transpose(1, 2).flatten(2))
        found.update({f"{name}.{part}": values for part, values in parts.items()})
        return parts["output"]

    def feed_forward(name: str, x: Tensor) -> Tensor:
        found[f"{name}.expand"] = linear(f"{name}.expand", x)
        activation = {"relu": F.relu, "gelu": F.gelu}[config.activation]
        found[f"{name}.activation"] = activation(found[f"{name}.expand"])
        found[f"{name}.contract"] = linear(f"{name}.contract", found[f"{name}.activation"])
        return found[f"{name}.contract"]

    def sublayer(name: str, x: Tensor, function) -> Tensor:
        is_pre = config.norm == "pre"
        given = norm(f"{name}_residual", x) if is_pre else x
        added = found[f"{name}_residual.sum"] = x + function(name, given)
        return added if is_pre else norm(f"{name}_residual", added)

    def embed(side: str, stack: str, ids: Tensor) -> Tensor:
        vectors = weights[f"{side}_embedding.weight"][ids]
        positions = sinusoidal_positions(0, ids.size(1), config.d_model)
        scale = math.sqrt(config.d_model) if config.embedding_scale else 1
        found[f"{side}_ids"], found[f"{side}_embedding"] = ids, vectors
        found[f"{side}_positions"] = positions
        found[f"{stack}.input"] = scale * vectors + positions
        return found[f"{stack}.input"]

    x = embed("src", "encoder", src_BS)
    for i in range(config.layers.encoder):
        x = sublayer(f"encoder.{i}.self_attention", x, lambda n, y: attend(n, y, y, False))
        x = sublayer(f"encoder.{i}.feed_forward", x, feed_forward)
    memory = norm("encoder_norm", x) if config.norm == "pre" else x
    x = embed("tgt", "decoder", tgt_BT)
    for i in range(config.layers.decoder):
        x = sublayer(f"decoder.{i}.self_attention", x, lambda n, y: attend(n, y, y, True))
        x = sublayer(f"decoder.{i}.cross_attention", x, lambda n, y: attend(n, y, memory, False))
        x = sublayer(f"decoder.{i}.feed_forward", x, feed_forward)
    found["logits"] = linear("projection", norm("decoder_norm", x) if config.norm == "pre" else x)
    found["probabilities"] = found["logits"].softmax(-1)
    return found


def test_traced_tensors_equal_a_plain_recomputation(model):
    expected = plain_tensors(model, SRC_BS, TGT_BT)
    traced = {tensor.name: tensor for tensor in trace_tensors(model, SRC_BS, TGT_BT)}
    assert list(traced) == list(expected)
    for name, tensor in traced.items():
        torch.testing.assert_close(tensor.values, expected[name], atol=1e-5, rtol=1e-5)
        sizes = dict(zip("BSTDFHKV", (1, 7, 5, 16, 24, 2, 8, 13), strict=True))
        letters = dict(zip(tensor.dimensions, tensor.values.shape, strict=True))
        assert {k: v for k, v in letters.items() if k not in "QM"}.items() <= sizes.items(), name


def test_traced_positions_are_those_of_features_and_text():
    model = build(feature_positions=False, num_features=3)  # SRC_BS begins with two of them
    traced = {tensor.name: tensor.values for tensor in trace_tensors(model, SRC_BS, TGT_BT)}
    vectors_SD = sinusoidal_positions(0, 7, SHAPE["d_model"])
    assert traced["src_positions"].equal(vectors_SD[[0, 0, 1, 2, 3, 4, 5]])
    assert traced["tgt_positions"].equal(vectors_SD[:5])


def test_traced_ngrams_are_what_the_embeddings_lack():
    model = build(ngrams=3, positions="rotary")
    with torch.no_grad():
        model.src_ngrams.embedding.weight.normal_()
    traced = {tensor.name: tensor.values for tensor in trace_tensors(model, SRC_BS, TGT_BT)}
    sums_BSD = traced["src_embedding"] + traced["src_ngrams"]
    torch.testing.assert_close(sums_BSD * model.scale, traced["encoder.input"])


def test_tracing_leaves_the_model_as_it_is(model):
    with torch.inference_mode():
        logits_BTV = model(SRC_BS, TGT_BT)
        weights = {name: p.clone() for name, p in model.named_parameters()}
        *_, logits, _ = trace_tensors(model, SRC_BS, TGT_BT)
        assert logits.values.equal(logits_BTV)
        assert model(SRC_BS, TGT_BT).equal(logits_BTV)
    assert all(p.equal(weights[name]) for name, p in model.named_parameters())
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_hooks_are_removed_after_an_error(model):
    with pytest.raises(IndexError):
        trace_tensors(model, SRC_BS + 100, TGT_BT)
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_statistics_are_those_of_the_finite_numbers():
    values = torch.tensor([[0.0, 1.0, 3.0], [-torch.inf, 4.0, torch.nan]])
    summary = summarize(NamedTensor("x", "QM", values))
    assert (summary.mean, summary.min, summary.max) == (2.0, 0.0, 4.0)
    assert summary.std == pytest.approx(math.sqrt((4 + 1 + 1 + 4) / 4))
    assert summary.zeros == pytest.approx(1 / 6)
    assert summary.non_finite == pytest.approx(2 / 6)
    lost = summarize(NamedTensor("lost", "", torch.full((2,), torch.nan)))
    assert lost.mean is None and lost.non_finite == 1
    ids = summarize(NamedTensor("ids", "BS", SRC_BS))
    header, *lines = table([summary, lost, ids]).splitlines()
    assert header.split() == ["tensor", "shape", "mean", "std", "min", "max", "zeros", "non-finite"]
    assert lines[0].split() == ["x", "Q2", "M3", "2", "1.581", "0", "4", "16.7%", "33.3%"]
    assert lines[1].split() == ["lost", "2", "0.0%", "100.0%"]
    assert lines[2].split() == ["ids", "B1", "S7"]
