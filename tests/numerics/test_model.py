import math
from itertools import product
from typing import get_args

import numpy as np
import pytest
import torch
from literal_transformer import transformer as literal_transformer
from small_models import pytorch_attention
from torch import nn
from torch.nn import functional as F

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.config.types import AttentionScale
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.attention import (
    MultiHeadAttention,
    attention_weights,
    causal_mask,
    padding_mask,
    rotate,
    rotations,
)
from seq2seq_cli.model.device import choose_bf16
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import Packed, Padded
from seq2seq_cli.model.parameters import check_tensors, count_parameters, unique_parameters
from seq2seq_cli.model.positions import sinusoidal_positions, source_positions
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import load_weights, read_facts, read_tensors, save_tensors
from seq2seq_cli.training.losses.cross_entropy import BatchLoss

PAD = 0
KINDS = [{"attention_scale": scale} for scale in get_args(AttentionScale)] + [
    {"positions": "rotary"},
    {"positions": "rotary", "rotary_cross_attention": True},
    {"positions": "rotary", "attention_scale": "temperature"},
]
each_kind = pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: "-".join(str(value) for value in kind.values())
)
TINY = {"d_model": 16, "heads": 4, "layers": 2, "d_ff": 24, "dropout": 0.0}


def build(src_vocab=11, tgt_vocab=13, shared=False, num_features=0, **options) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig.model_validate(TINY | options)
    model = Transformer(config, src_vocab, tgt_vocab, shared, PAD, num_features).eval()
    for parameter in model.parameters():  # biases and norms too: zeros and ones hide mistakes
        if parameter.dim() == 1:
            nn.init.normal_(parameter.data, mean=0.5, std=0.5)
    return model


@pytest.fixture(params=["pre", "post"])
def model(request) -> Transformer:
    return build(norm=request.param)


PADDED = Padded(torch.ones(0, 0, dtype=torch.bool))
SRC_BS = torch.tensor([[5, 6, 7, 8, 3], [9, 4, 3, PAD, PAD]])
TGT_BT = torch.tensor([[2, 5, 6, 7], [2, 9, 10, PAD]])


@each_kind
def test_model_matches_the_literal_transformer(kind):
    model = build(
        **kind,
        norm="post",
        attention_bias=False,
        embedding_scale=False,
        tie_embeddings=False,
        layers={"encoder": 3, "decoder": 2},
    )
    weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    logits_BTV = model(SRC_BS, TGT_BT)
    shown = model.attention_weights(SRC_BS, TGT_BT)
    for row in range(2):
        src = [i for i in SRC_BS[row].tolist() if i != PAD]
        tgt = [i for i in TGT_BT[row].tolist() if i != PAD]
        expected, attentions = literal_transformer(weights, src, tgt, 4, 3, 2, **kind)
        actual = logits_BTV[row, : len(tgt)].detach().numpy()
        np.testing.assert_allclose(actual, expected, atol=1e-5, rtol=0)
        sizes = {"encoder": (len(src),) * 2, "decoder": (len(tgt),) * 2}
        for part, layers in attentions.items():
            queries, memory = sizes.get(part, (len(tgt), len(src)))
            for weights_BHQM, expected_HQM in zip(getattr(shown, part), layers, strict=True):
                actual_HQM = weights_BHQM[row, :, :queries, :memory].detach().numpy()
                np.testing.assert_allclose(actual_HQM, expected_HQM, atol=1e-5, rtol=0)


def test_future_tokens_do_not_change_past_logits(model):
    changed = TGT_BT.clone()
    changed[:, 2:] = 11
    before, after = model(SRC_BS, TGT_BT), model(SRC_BS, changed)
    torch.testing.assert_close(before[:, :2], after[:, :2], atol=1e-6, rtol=0)
    assert not torch.allclose(before[:, 2:], after[:, 2:])


def test_padding_does_not_change_logits(model):
    alone = model(SRC_BS[1:, :3], TGT_BT[1:, :3])
    padded = model(SRC_BS, TGT_BT)[1:, :3]
    torch.testing.assert_close(alone, padded, atol=1e-5, rtol=0)


def test_batch_order_does_not_change_logits(model):
    turned = torch.tensor([1, 0])
    torch.testing.assert_close(
        model(SRC_BS, TGT_BT)[turned], model(SRC_BS[turned], TGT_BT[turned]), atol=1e-6, rtol=0
    )


def test_cached_decoding_matches_teacher_forcing(model):
    cache = model.start_cache(model.encode(SRC_BS))
    steps = [model.decode(TGT_BT[:, i : i + 1], cache) for i in range(3)]
    at_once = model(SRC_BS, TGT_BT[:, :3])
    torch.testing.assert_close(torch.cat(steps, dim=1), at_once, atol=1e-5, rtol=0)


@each_kind
def test_every_kind_decodes_step_by_step_as_in_training(kind):
    model = build(**kind)
    cache = model.start_cache(model.encode(SRC_BS))
    steps = [model.decode(TGT_BT[:, t : t + 1], cache) for t in range(TGT_BT.size(1))]
    expected = model(SRC_BS, TGT_BT)
    is_token = TGT_BT != PAD
    torch.testing.assert_close(torch.cat(steps, 1)[is_token], expected[is_token], atol=1e-5, rtol=0)


@each_kind
def test_every_kind_gives_packed_batches_the_loss_and_gradients_of_padded_ones(kind):
    model = build(**kind)
    labels = torch.where(TGT_BT == PAD, IGNORE_INDEX, TGT_BT)
    found = []
    for layout in (Padded, Packed):
        model.zero_grad()
        states, of_target = model.forward_hidden(SRC_BS, TGT_BT, layout)
        ids = of_target.pack_ids(labels, IGNORE_INDEX)
        loss = F.cross_entropy(model.projection(states).flatten(0, 1), ids.flatten())
        loss.backward()
        found.append([loss, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-4)


@each_kind
def test_every_kind_trains_in_bf16_as_in_fp32(kind):
    model = build(**kind, d_model=64, d_ff=128).train()
    labels = torch.where(TGT_BT == PAD, IGNORE_INDEX, TGT_BT)
    batch = Batch(SRC_BS, TGT_BT, labels, num_tokens=7, num_src_tokens=8)
    found = []
    for use_bf16 in (False, True):
        model.zero_grad()
        BatchLoss(model, label_smoothing=0.1, use_bf16=use_bf16)(batch).total.backward()
        found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    exact, close = found
    assert 0 < (close - exact).norm() < 0.05 * exact.norm()


def test_rotated_products_depend_on_the_distance_of_positions_only():
    q, k = torch.randn(2, 1, 1, 12, 8)
    q[:], k[:] = q[:, :, :1], k[:, :, :1]  # the same vector at every position
    near, far = (rotations(start, start + 12, 8, q.device) for start in (0, 100))
    products = rotate(q, near) @ rotate(k, near).mT
    for distance in range(-11, 12):
        diagonal = products[0, 0].diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    shifted = rotate(q, far) @ rotate(k, far).mT
    torch.testing.assert_close(shifted, products, atol=1e-4, rtol=0)
    torch.testing.assert_close(rotate(q, near).norm(dim=-1), q.norm(dim=-1))
    assert not torch.allclose(products[0, 0, 0], products[0, 0, 0, 0])


def test_features_have_the_position_before_the_text():
    src_BS = torch.tensor([[5, 4, 6, 9, 9, 3], [9, 9, 3, PAD, PAD, PAD], [8, 4, 9, 3, PAD, PAD]])
    expected = [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 4]]
    assert source_positions(src_BS, range(4, 7)).tolist() == expected
    unknown_BS = torch.tensor([[1, 4, 9, 3], [4, 1, 9, 3]])  # the second stands after the last one
    assert source_positions(unknown_BS, range(4, 7)).tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]
    assert build(num_features=3).source_positions(src_BS) is None
    assert build(feature_positions=False).source_positions(src_BS) is None


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_the_order_of_features_that_share_a_position_says_nothing(positions):
    placed, unplaced = (
        build(num_features=3, positions=positions, feature_positions=is_placed)
        for is_placed in (True, False)
    )
    one_BS = torch.tensor([[4, 5, 9, 8, 7, 3]])
    other_BS = one_BS[:, [1, 0, 2, 3, 4, 5]]
    tgt_BT = TGT_BT[:1]
    torch.testing.assert_close(unplaced(one_BS, tgt_BT), unplaced(other_BS, tgt_BT))
    assert not torch.allclose(placed(one_BS, tgt_BT), placed(other_BS, tgt_BT), atol=1e-3)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_features_that_share_a_position_are_the_same_in_packed_batches(positions):
    model = build(num_features=3, positions=positions, feature_positions=False)
    src_BS = torch.tensor([[4, 5, 9, 8, 7, 3], [6, 8, 7, 3, PAD, PAD]])
    packed = model.encode(src_BS, Packed)
    states_BHSD = packed.layout.split_heads(packed.states_BSD, 1)
    expected_BSD = model.encode(src_BS).states_BSD
    for row, length in enumerate((6, 4)):
        torch.testing.assert_close(states_BHSD[row, 0, :length], expected_BSD[row, :length])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_joined_projections_match_separate_ones(bias, training):
    attention = MultiHeadAttention(16, 4, bias, dropout=0.0).train(training)
    if bias:
        for layer in (attention.query, attention.key, attention.value):
            nn.init.normal_(layer.bias)
    x = torch.randn(2, 5, 16)
    separate = [
        layer(x).view(2, 5, 4, 4).transpose(1, 2)
        for layer in (attention.query, attention.key, attention.value)
    ]
    q, (k, v) = attention.queries_keys_values(x, PADDED)
    torch.testing.assert_close([q, k, v], separate)
    torch.testing.assert_close(list(attention.keys_values(x, PADDED)), separate[1:])
    torch.testing.assert_close(attention.queries(x, PADDED), separate[0])


def test_selected_cache_rows_decode_like_those_rows(model):
    cache = model.start_cache(model.encode(SRC_BS))
    model.decode(TGT_BT[:, :2], cache)
    rows = torch.tensor([1])
    step = model.decode(TGT_BT[rows, 2:3], cache.select(rows))
    torch.testing.assert_close(step, model(SRC_BS, TGT_BT)[rows, 2:3], atol=1e-5, rtol=0)


def test_recording_attention_weights_changes_no_logits(model):
    record = []
    memory = model.encode(SRC_BS, attention_log=record)
    logits = model.decode(TGT_BT, model.start_cache(memory), record)
    torch.testing.assert_close(logits, model(SRC_BS, TGT_BT), atol=1e-5, rtol=0)
    assert len(record) == 2 + 2 * 2
    for weights_BHQM, *_ in record:
        torch.testing.assert_close(weights_BHQM.sum(-1), torch.ones(weights_BHQM.shape[:3]))


def test_long_source_gives_finite_logits(model):
    long_BS = torch.full((1, 1_500), 5)
    assert model(long_BS, TGT_BT[:1]).isfinite().all()


def test_tensors_that_checkpoints_cannot_hold_are_refused():
    model = build(src_vocab=13)
    check_tensors(model)
    model.encoder.register_buffer("computed", torch.ones(2), persistent=False)
    model.encoder.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
    check_tensors(model)
    model.encoder.register_buffer("counter", torch.ones(2))
    with pytest.raises(UserError, match=r"not encoder\.counter"):
        check_tensors(model)
    del model.encoder.counter
    for values in (torch.ones(2) / 0, torch.ones(2).bool(), torch.ones(2).cfloat()):
        model.encoder.frozen = nn.Parameter(values, requires_grad=False)
        with pytest.raises(UserError, match=r"not encoder\.frozen"):
            check_tensors(model)
    check_tensors(build(src_vocab=13).to("meta"))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_one_tensor(shared, tied):
    model = build(src_vocab=13, shared=shared, tie_embeddings=tied)
    assert (model.projection.weight is model.tgt_embedding.weight) == tied
    assert (model.src_embedding.weight is model.tgt_embedding.weight) == (tied and shared)
    assert sum(count_parameters(model).values()) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("shared", [True, False])
def test_weights_loaded_into_a_meta_model_stay_tied(shared, tmp_path):
    model = build(src_vocab=13, shared=shared)
    save_tensors(unique_parameters(model), tmp_path / "weights")
    with torch.device("meta"):
        loaded = build(src_vocab=13, shared=shared)
    load_weights(loaded, tmp_path / "weights")
    assert loaded.projection.weight is loaded.tgt_embedding.weight
    assert torch.equal(loaded.eval()(SRC_BS, TGT_BT), model(SRC_BS, TGT_BT))


def test_facts_in_a_file_of_weights_are_read_and_hashed(tmp_path):
    """The bytes are the same every time, and a changed fact is damage."""
    path, facts = tmp_path / "weights", {"model": "step 5", "scores": {"loss": 0.25}}
    weights = unique_parameters(build())
    save_tensors(weights, path, facts)
    first = path.read_bytes()
    save_tensors(weights, path, facts)
    assert path.read_bytes() == first
    assert read_facts(path) == facts
    assert read_tensors(path).keys() == weights.keys()
    path.write_bytes(first.replace(b"0.25", b"0.24"))
    with pytest.raises(UserError, match="does not match its hash"):
        read_tensors(path)
    path.write_bytes(first.replace(b"sha256", b"sha257"))
    with pytest.raises(UserError, match="is not a JSON object with a hash"):
        read_tensors(path)


def test_encoder_and_decoder_may_differ_in_depth():
    model = build(layers={"encoder": 3, "decoder": 1})
    assert (len(model.encoder), len(model.decoder)) == (3, 1)


@pytest.mark.parametrize(
    ("norm", "scaled", "tied"), list(product(["pre", "post"], [True, False], [True, False]))
)
def test_initial_embeddings_and_logits_have_unit_variance(norm, scaled, tied):
    """Otherwise positions would drown out the tokens."""
    torch.manual_seed(1)
    options = TINY | {"d_model": 64, "norm": norm, "embedding_scale": scaled}
    config = ModelConfig.model_validate(options | {"tie_embeddings": tied})
    model = Transformer(config, 500, 500, True, PAD)
    for embedding in (model.src_embedding, model.tgt_embedding):
        vectors = embedding.weight[PAD + 1 :] * model.scale
        assert vectors.std().item() == pytest.approx(1, abs=0.02)
    ids = torch.randint(4, 500, (20, 12))
    expected = 1 if tied else (2 * 64 / (64 + 500)) ** 0.5  # that of Glorot's weights
    assert model(ids, ids).std().item() == pytest.approx(expected, rel=0.1)


def test_every_parameter_gets_a_gradient(model):
    model(SRC_BS, TGT_BT).logsumexp(-1).sum().backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_attention_matches_pytorch():
    torch.manual_seed(2)
    ours, theirs = pytorch_attention(16, 4)
    query, memory = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    keep = padding_mask(SRC_BS, PAD)
    record = []
    queries, keys_values = ours.queries(query, PADDED), ours.keys_values(memory, PADDED)
    expected, weights = theirs(
        query, memory, memory, key_padding_mask=~keep[:, 0, 0], average_attn_weights=False
    )
    torch.testing.assert_close(
        ours.attend(queries, keys_values, keep, PADDED), expected, atol=1e-5, rtol=0
    )
    recorded = ours.attend(queries, keys_values, keep, PADDED, record)
    torch.testing.assert_close(recorded, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(record[0].weights_BHQM, weights, atol=1e-6, rtol=0)


@pytest.mark.parametrize("length", [3, 300], ids=["short", "long"])
def test_attention_dropout_drops_weights_in_training_only(length):
    attention = MultiHeadAttention(16, 4, bias=True, dropout=0.5)
    x = torch.randn(2, length, 16)
    q, keys_values = attention.queries_keys_values(x, PADDED)
    first, second = (attention.attend(q, keys_values, None, PADDED) for _ in range(2))
    assert not torch.equal(first, second)
    attention.eval()
    first, second = (attention.attend(q, keys_values, None, PADDED) for _ in range(2))
    assert torch.equal(first, second)


def test_dropout_options_reach_their_modules():
    model = build(dropout=0.1, attention_dropout=0.2, activation_dropout=0.3)
    found = {name: m.p for name, m in model.named_modules() if isinstance(m, Dropout)}
    inner = {"self_attention": 0.2, "cross_attention": 0.2, "feed_forward": 0.3}
    assert found == {name: inner.get(name.split(".")[-2:][0], 0.1) for name in found}
    assert len(found) == 2 + 2 * 4 + 2 * 6  # embeddings, encoder layers, decoder layers


@pytest.mark.parametrize("has_bias", [True, False])
def test_attention_bias_option(has_bias):
    names = {name for name, _ in build(attention_bias=has_bias).named_parameters()}
    for projection in ("query", "key", "value", "output"):
        for attention in ("encoder.0.self", "decoder.0.self", "decoder.1.cross"):
            assert (f"{attention}_attention.{projection}.bias" in names) == has_bias


@pytest.mark.parametrize("length", [1, 2, 3, 8, 15, 16, 17, 30])
def test_attention_weights_of_short_rows_match_softmax(length):
    q_BHQK = torch.randn(3, 2, 4, 8, requires_grad=True)
    k_BHMK = torch.randn(3, 2, length, 8, requires_grad=True)
    mask_B1QM = torch.rand(3, 1, 4, length) < 0.7
    mask_B1QM[..., 0] = True
    scores_BHQM = (q_BHQK @ k_BHMK.mT / math.sqrt(8)).masked_fill(~mask_B1QM, -torch.inf)
    expected_BHQM, gradient_BHQM = scores_BHQM.softmax(-1), torch.randn_like(scores_BHQM)
    actual_BHQM = attention_weights(q_BHQK, k_BHMK, mask_B1QM)
    torch.testing.assert_close(actual_BHQM, expected_BHQM)
    for weights_BHQM in (expected_BHQM, actual_BHQM):
        weights_BHQM.backward(gradient_BHQM, retain_graph=True)
        if weights_BHQM is expected_BHQM:
            expected = [x.grad.clone() for x in (q_BHQK, k_BHMK)]
            q_BHQK.grad = k_BHMK.grad = None
    torch.testing.assert_close([q_BHQK.grad, k_BHMK.grad], expected, atol=1e-5, rtol=1e-4)
    enormous_BHQM = attention_weights(1e4 * q_BHQK, k_BHMK, mask_B1QM)
    assert enormous_BHQM.isfinite().all()


def test_padding_and_causal_masks():
    assert padding_mask(SRC_BS, PAD)[1, 0, 0].tolist() == [True, True, True, False, False]
    assert causal_mask(3, 3, torch.device("cpu"))[0, 0].int().tolist() == [
        [1, 0, 0],
        [1, 1, 0],
        [1, 1, 1],
    ]
    assert causal_mask(1, 3, torch.device("cpu"))[0, 0].int().tolist() == [[1, 1, 1]]
    uniform = attention_weights(
        torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, 5, 4), padding_mask(SRC_BS, PAD)
    )
    torch.testing.assert_close(uniform[1, 0, 0], torch.tensor([1 / 3] * 3 + [0.0] * 2))


def test_sinusoidal_positions_match_the_paper_at_any_length():
    assert torch.equal(sinusoidal_positions(0, 50, 8), sinusoidal_positions(0, 50, 8, base=1e4))
    for base in (10_000, 500):
        check_sinusoids(sinusoidal_positions(0, 50, 8, base=base), base)
    torch.testing.assert_close(sinusoidal_positions(40, 50, 8), sinusoidal_positions(0, 50, 8)[40:])


def check_sinusoids(positions: torch.Tensor, base: float) -> None:
    for position, i in product((0, 1, 49), range(4)):
        angle = position / base ** (2 * i / 8)
        assert positions[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert positions[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_positions_start_at_the_offset_and_have_the_base_of_the_config():
    model = build(position_offset=2, position_base=300.0)
    expected = sinusoidal_positions(5, 9, model.config.d_model, base=300.0)
    assert torch.equal(model.position_vectors(3, 7), expected)


def test_dropout_keeps_the_mean_and_drops_independently():
    """It holds for each position in a word of random bits, and for the gradient."""
    torch.manual_seed(6)
    x = torch.ones(8, 40_000, requires_grad=True)
    for p in (0.1, 0.3, 0.5):
        dropped = Dropout(p)(x.T.contiguous())
        values = dropped.unique().tolist()
        assert len(values) == 2
        assert values[0] == 0.0
        shares = (dropped == 0).float().mean(0)
        torch.testing.assert_close(shares, torch.full((8,), p), atol=0.012, rtol=0)
        assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)
        (gradient,) = torch.autograd.grad(dropped.sum(), x)
        assert torch.equal(gradient.T, dropped)


def test_dropout_of_any_size_and_probability():
    assert torch.equal(Dropout(0.5).eval()(torch.ones(3)), torch.ones(3))
    for p, size in ((0.0001, 1), (0.9999, 7), (0.5, 0)):
        assert Dropout(p)(torch.ones(size)).shape == (size,)
        assert Dropout(p)(torch.ones(size)).isfinite().all()


@pytest.mark.parametrize("p", [0.0005, 0.001, 0.1, 0.9])
def test_dropout_rate_is_exact_on_average(p):
    """The rate need not be a multiple of 1/256: it is exact in the mean of many calls."""
    torch.manual_seed(8)
    dropout, ones = Dropout(p), torch.ones(1_000)
    values = torch.stack([dropout(ones) for _ in range(2_000)])
    assert (values == 0).float().mean().item() == pytest.approx(p, rel=0.02, abs=2e-4)
    assert values.mean().item() == pytest.approx(1.0, abs=0.01)


def test_fused_attention_of_long_sentences_matches_the_explicit_computation(model):
    """Recording attention weights forces the explicit computation."""
    src, tgt = torch.randint(4, 10, (2, 2, 300)).unbind()
    src[1, 150:] = PAD
    record = []
    explicit = model.decode(tgt, model.start_cache(model.encode(src, attention_log=record)), record)
    assert len(record) == 6
    fused = model(src, tgt)
    torch.testing.assert_close(fused, explicit, atol=1e-4, rtol=0)
    assert not torch.equal(fused, explicit)  # two computations indeed


def test_auto_precision_is_bf16_on_cpus_that_support_it(monkeypatch):
    cpu = torch.device("cpu")
    for has_it in (True, False):
        for test in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
            monkeypatch.setattr(torch.cpu, test, lambda has_it=has_it: has_it, raising=False)
        assert choose_bf16("auto", cpu) == has_it
    assert (choose_bf16("bf16", cpu), choose_bf16("fp32", cpu)) == (True, False)
    for test in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, test)
    assert not choose_bf16("auto", cpu), "as in a PyTorch that cannot tell"
