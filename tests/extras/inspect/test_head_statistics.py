"""What is collected about attention equals its definition, computed sentence by sentence.

L layers, H heads, B sentences, Q query positions, M memory positions, K size of one head,
D d_model, S source positions, T target positions, V target vocabulary.
"""

import copy
import itertools
import math

import pytest
import torch
from small_models import build
from torch import Tensor

from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.inspect.attention_figure import axes
from seq2seq_cli.extras.inspect.attention_files import attention_text
from seq2seq_cli.extras.inspect.attention_page import attention_page
from seq2seq_cli.extras.inspect.attention_study import (
    KINDS,
    attention_modules,
    study_attention,
    value_norms,
)
from seq2seq_cli.extras.inspect.head_statistics import (
    TokenPair,
    batches_of,
    head_importance,
    head_statistics,
    validation_sample,
    weight_statistics,
    zeroed_head,
)
from seq2seq_cli.extras.inspect.trace import trace_sentence
from seq2seq_cli.model.transformer import Transformer, build_model
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, Tokenizer, Tokenizers

CPU = torch.device("cpu")


def pairs_of(*sizes: tuple[int, int]) -> list[TokenPair]:
    torch.manual_seed(5)
    ids = [[torch.randint(4, 12, (size,)).tolist() for size in both] for both in sizes]
    return [TokenPair(Pair("", ""), Segment(src, ""), tgt) for src, tgt in ids]


PAIRS = pairs_of((3, 5), (7, 2), (1, 1), (6, 6))


def alone(pair: TokenPair) -> tuple[Tensor, Tensor]:
    src_ids, tgt_ids = [*pair.source.src_ids, EOS_ID], [BOS_ID, *pair.tgt, EOS_ID]
    return torch.tensor([src_ids]), torch.tensor([tgt_ids])


def naive_loss(model: Transformer) -> float:
    """In nats per token, one sentence at a time."""
    losses: list[float] = []
    for pair in PAIRS:
        src_BS, tgt_BT = alone(pair)
        probs_TV = model(src_BS, tgt_BT[:, :-1])[0].softmax(dim=-1)
        labels = tgt_BT[0, 1:].tolist()
        losses += [-math.log(probs_TV[row, label]) for row, label in enumerate(labels)]
    return sum(losses) / len(losses)


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_importance_is_the_loss_of_a_copy_without_the_head(norm, monkeypatch):
    model = build(seed=1, norm=norm, heads=4, layers={"encoder": 1, "decoder": 2})
    size = 16 // 4
    attention_modules(model)["cross"][1].output.weight[:, size : 2 * size] = 0
    before = copy.deepcopy(model.state_dict())
    monkeypatch.setattr("sys.stderr", None)  # as with pythonw
    importance = head_importance(model, batches_of(PAIRS, CPU))
    loss = naive_loss(model)
    for kind, layers in attention_modules(model).items():
        for layer, attention in enumerate(layers):
            assert importance[kind].shape == (len(layers), 4)
            for head in range(4):
                without = copy.deepcopy(model)
                same = attention_modules(without)[kind][layer]
                for column in range(head * size, (head + 1) * size):
                    same.output.weight[:, column] = 0
                expected = naive_loss(without) - loss
                assert importance[kind][layer, head] == pytest.approx(expected, abs=2e-6)
            assert attention.heads == 4
    assert importance["cross"][1, 1] == 0
    assert importance["cross"].abs().max() > 1e-3
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_zeroed_head_is_restored_after_an_exception():
    attention = attention_modules(build(seed=2))["decoder"][0]
    before_DD = attention.output.weight.detach().clone()
    with pytest.raises(KeyError), zeroed_head(attention, 1):
        assert (attention.output.weight[:, 8:] == 0).all()
        assert torch.equal(attention.output.weight[:, :8], before_DD[:, :8])
        raise KeyError
    assert torch.equal(attention.output.weight, before_DD)
    assert attention.output.weight.requires_grad


@pytest.mark.parametrize("source_eos", [True, False])
@torch.no_grad()
def test_facts_of_a_batch_are_those_of_its_sentences(source_eos):
    model = build(seed=3, heads=2, layers=2, source_eos=source_eos)
    facts = weight_statistics(model, batches_of(PAIRS, CPU))
    for index, kind in enumerate(KINDS):
        for layer in range(2):
            for head in range(2):
                greatest, entropies, offsets = [], [], []
                for pair in PAIRS:
                    src_BS, tgt_BT = alone(pair)
                    weights_QM = model.attention_weights(src_BS, tgt_BT[:, :-1])[index][layer][
                        0, head
                    ]
                    if kind == "encoder" and not source_eos:
                        weights_QM = weights_QM[:-1]
                    words_QM = weights_QM if kind == "decoder" else weights_QM[:, :-1]  # no EOS
                    for query, row in enumerate(words_QM.tolist()):
                        greatest.append(max(row))
                        offsets.append(row.index(max(row)) - query)
                    entropies += [
                        -sum(w * math.log(w) for w in row if w) for row in weights_QM.tolist()
                    ]
                count = len(greatest)
                assert facts[kind].confidence_LH[layer, head] == pytest.approx(
                    sum(greatest) / count
                )
                assert facts[kind].entropy_LH[layer, head] == pytest.approx(sum(entropies) / count)
                most = max(map(offsets.count, offsets))
                assert offsets.count(int(facts[kind].offset_LH[layer, head])) == most
                assert facts[kind].offset_share_LH[layer, head] == pytest.approx(most / count)


@torch.no_grad()
def test_value_norm_is_that_of_what_a_head_adds_to_the_output():
    attention = attention_modules(build(seed=4, heads=4))["cross"][0]
    v_HMK = torch.randn(4, 5, 4)
    norms_HM = value_norms(attention, v_HMK)
    for head in range(4):
        for position in range(5):
            alone_D = torch.zeros(16)
            alone_D[4 * head : 4 * head + 4] = v_HMK[head, position]
            added_D = attention.output(alone_D) - attention.output(torch.zeros(16))
            assert norms_HM[head, position] == pytest.approx(float(added_D.norm()), rel=1e-5)


def translator(**model: object) -> Translator:
    """A random model whose tokens are characters."""
    lines = ["the red fox", "a hen, a cat.", "den roten Fuchs", "東京に行く"]
    tokenizer = Tokenizer.fit(lines, TokenizerConfig(kind="char", vocab_size=100))
    shape = {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 16, "dropout": 0.0} | model
    given = {"data": {"train": {"src": "x", "tgt": "y"}, "max_length": 30}, "model": shape}
    config = Config.model_validate(given)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    torch.manual_seed(6)
    return Translator(build_model(config.model, tokenizers).eval(), tokenizers, config)


SENTENCES = [("the fox", "den Fuchs"), ("a hen, a cat.", "東京 に x行く"), ("cat", "")]


@pytest.mark.parametrize(("source", "target"), SENTENCES)
@torch.no_grad()
def test_study_holds_what_the_model_computes(source, target):
    ours = translator(norm="post", embedding_scale=False)
    (study,) = study_attention(ours, source, target)
    src, tgt = (ours.tokenizers.src.to_ids(text) for text in (source, target))
    src_BS, tgt_BT = alone(TokenPair(Pair("", ""), Segment(src, ""), tgt))
    shown = ours.model.attention_weights(src_BS, tgt_BT[:, :-1])
    for maps, layers in zip((study.encoder, study.decoder, study.cross), shown, strict=True):
        assert torch.allclose(maps.weights_LHQM, torch.cat(layers), atol=1e-7)
        assert torch.allclose(maps.weights_LHQM.sum(dim=-1), torch.ones(()))
        assert maps.weights_LHQM.shape[2:] == (len(maps.queries), len(maps.memory))
        assert maps.value_norms_LHM.shape == (2, 2, len(maps.memory))
    pieces = tuple(ours.tokenizers.tgt.pieces_of(tgt_BT[0].tolist()))
    assert (study.decoder.memory, study.decoder.queries) == (pieces[:-1], pieces[1:])
    assert study.cross.queries == study.target.tokens == pieces[1:]
    assert study.cross.memory == study.encoder.memory == study.source.tokens
    (scored,) = ours.score([(source, target)])
    assert study.log_prob == pytest.approx(scored.log_prob, abs=1e-4)
    logits_TV = ours.model(src_BS, tgt_BT[:, :-1])[0]
    for row, prediction in enumerate(study.predictions):
        vocabulary = ours.tokenizers.tgt.pieces()
        probs = dict(zip(vocabulary, logits_TV[row].softmax(-1).tolist(), strict=True))
        assert prediction.probability == pytest.approx(probs.pop(pieces[1 + row]), rel=1e-4)
        others = sorted(probs, key=lambda token: -probs[token])
        assert [token for token, _ in prediction.alternatives] == others[:5]
        assert prediction.entropy == pytest.approx(
            float(torch.distributions.Categorical(logits=logits_TV[row]).entropy()), rel=1e-4
        )


@pytest.mark.parametrize("source_eos", [True, False])
def test_a_trace_has_what_the_encoder_gets(source_eos):
    ours = translator(source_eos=source_eos)
    trace = trace_sentence(ours, "a hen", "東京")
    src_ids, tgt_ids = (ours.tokenizers.src.to_ids(text) for text in ("a hen", "東京"))
    assert trace.source == (*ours.tokenizers.src.pieces_of(src_ids), *["</s>"] * source_eos)
    tensors = {tensor.name: tensor.values for tensor in trace.tensors}
    assert tensors["src_ids"].shape == (1, len(trace.source))
    logits_BTV = ours.model(torch.tensor([[*src_ids, EOS_ID]]), torch.tensor([[BOS_ID, *tgt_ids]]))
    torch.testing.assert_close(tensors["logits"], logits_BTV)


def test_words_and_punctuation_of_a_study():
    (study,) = study_attention(translator(), "a hen, a cat.", "東京 に x行く")
    source, target = study.source, study.target
    assert source.words == ("a", "hen,", "a", "cat.")
    words = [source.words[word] for word in source.word_of_token[:-1] if word is not None]
    for token, word in zip(source.tokens[:-1], words, strict=True):
        assert token.strip("▁") in word
    marked = zip(source.tokens, source.is_punctuation, strict=True)
    punctuation = [token for token, is_punctuation in marked if is_punctuation]
    assert set(punctuation) == {"▁", ",", ".", "</s>"}
    assert target.words == ("東", "京", "に", "x", "行", "く")
    assert {target for _, target in study.alignment} == set(range(6))


@torch.no_grad()
def always(piece: str) -> Translator:
    """A model that always predicts the same token."""
    ours = translator(tie_embeddings=False)
    norm, (token,) = ours.model.decoder_norm, ours.tokenizers.tgt.ids_of([piece])
    norm.weight.zero_()  # type: ignore[operator]
    norm.bias.fill_(1.0)  # type: ignore[operator]
    ours.model.projection.weight.zero_()
    ours.model.projection.weight[token] = 100.0
    return Translator(ours.model, ours.tokenizers, ours.config)


def test_translation_of_tokens_without_text_has_no_words():
    (study,) = study_attention(always("▁"), "the fox")
    target = study.target
    assert target.text == "" and set(target.tokens[:-1]) == {"▁"} and target.words == ()
    assert target.word_of_token == (None,) * len(target.tokens)
    assert target.is_punctuation == (True,) * len(target.tokens)
    assert study.alignment == ()
    for kind in KINDS:
        for axis in axes(study, kind):
            assert len(axis.word_of_token) == len(axis.tokens)


def test_improbable_target_has_a_finite_log_probability():
    ours = always("▁")
    (study,) = study_attention(ours, "the fox", "fox")
    assert study.predictions[1].probability == 0.0
    assert study.predictions[1].log_prob == pytest.approx(-1600)  # 16 states of 1, times 100
    (scored,) = ours.score([("the fox", "fox")])
    assert study.log_prob == pytest.approx(scored.log_prob)


def test_text_that_is_not_utf8_is_studied_as_it_is_translated():
    (study,) = study_attention(translator(), "the\udcff  fox", "den\udcff Fuchs", run="runs/\udcff")
    assert (study.source.text, study.target.text) == ("the? fox", "den? Fuchs")
    assert study.run == "runs/\\udcff"
    attention_text(study).encode("utf-8")
    attention_page([study]).encode("utf-8")


def test_models_that_compute_infinity_are_refused():
    ours = translator()
    with torch.no_grad():
        ours.model.projection.weight.fill_(3e38)
    with pytest.raises(UserError, match="NaN or infinity"):
        study_attention(ours, "the fox", "den Fuchs")
    with pytest.raises(UserError, match="NaN or infinity"):
        head_statistics(ours, [Pair("the fox", "den Fuchs")])


@pytest.mark.parametrize(("count", "chosen"), [(100, 100), (4, 4), (1, 1), (500, 150)])
def test_validation_sample_is_spread_over_the_text(tmp_path, count, chosen):
    (tmp_path / "valid.tsv").write_text("".join(f"{n}\tx\n" for n in range(150)))
    ours = translator()
    data = {"train": {"src": "x", "tgt": "y"}, "valid": {"pairs": tmp_path / "valid.tsv"}}
    ours.config = Config.model_validate({"data": data})
    places = [int(pair.src) for pair in validation_sample(ours, count)]
    assert len(places) == chosen and places[0] == 0
    steps = {after - before for before, after in itertools.pairwise([*places, 150])}
    assert steps <= {150 // chosen, -(-150 // chosen)}


def test_the_only_head_agrees_with_the_alignment_of_the_model():
    ours = translator(heads=1, layers=1)
    sample = [Pair(*pair) for pair in SENTENCES] + [Pair("a " * 40, "a")]
    facts = head_statistics(ours, sample)  # the last two are left out: empty, and too long
    assert facts["cross"].agreement_LH.tolist() == [[1.0]]
    assert facts["encoder"].agreement_LH is None
    fewer = head_statistics(ours, sample[:2])
    assert torch.equal(fewer["cross"].importance_LH, facts["cross"].importance_LH)
    assert head_statistics(ours, sample[2:]) is None
