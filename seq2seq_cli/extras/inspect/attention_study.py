"""What a model attends to in one pair of sentences, under teacher forcing in fp32.

L layers, H heads, Q query positions, M memory positions (attended to), K size of one head,
D d_model, B sentences, S source positions, T target positions, V target vocabulary.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor

from seq2seq_cli.console import printable
from seq2seq_cli.decoding.given_score import GivenScore, without_eos
from seq2seq_cli.decoding.lines.alignment import Placed, align, source_words
from seq2seq_cli.decoding.lines.merging import SegmentResult, write_segments
from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.requests import Ids, not_finite
from seq2seq_cli.decoding.search.scoring import aligning_layer
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.quoting import normalize_spaces
from seq2seq_cli.text.words import split_words, words_of_spans
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, Tokenizer

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
_ALTERNATIVES = 5


@dataclass(frozen=True)
class AttentionMaps:
    """One kind of attention (encoder, decoder or cross) in all layers and heads."""

    weights_LHQM: Tensor  # rows sum to 1
    value_norms_LHM: Tensor  # ‖v Wᴼ‖ of each memory position (Kobayashi et al. 2020)
    queries: tuple[str, ...]  # tokens
    memory: tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """One side of the pair, in tokens and in words."""

    text: str
    tokens: tuple[str, ...]  # EOS last
    words: tuple[str, ...]  # as alignments number them
    word_of_token: tuple[int | None, ...]  # None for EOS and tags
    is_punctuation: tuple[bool, ...]  # of tokens: EOS, and any without a letter, number or mark


@dataclass(frozen=True)
class Prediction:
    """The model's prediction of one target token under teacher forcing."""

    token: str
    probability: float  # 0 if it underflows
    log_prob: float  # in nats
    entropy: float  # of the whole distribution, in nats
    alternatives: tuple[tuple[str, float], ...]  # the five most probable other tokens


@dataclass(frozen=True)
class HeadStatistics:
    """Statistics of the heads of one kind of attention on a sample of text, LH."""

    confidence_LH: Tensor  # mean of the greatest weight, EOS left out (Voita et al. 2019)
    entropy_LH: Tensor  # mean entropy of the weights, in nats
    offset_LH: Tensor  # most frequent distance from the query to the greatest weight
    offset_share_LH: Tensor  # its share of the queries: positional heads are near 1
    importance_LH: Tensor | None = None  # nats per token that the loss rises with the head zeroed
    agreement_LH: Tensor | None = None  # cross: share of words aligned as `--align` does

    def measured(self) -> dict[str, Tensor]:
        """Return the statistics that were measured, by name without `_LH`."""
        values = vars(self).items()
        return {name.removesuffix("_LH"): value for name, value in values if value is not None}


@dataclass(frozen=True)
class AttentionStudy:
    """What one model attends to in one sentence pair."""

    run: str
    source: Sentence
    target: Sentence
    encoder: AttentionMaps
    decoder: AttentionMaps  # its memory is the decoder's input, which starts with BOS
    cross: AttentionMaps
    predictions: tuple[Prediction, ...]  # of the target's tokens
    alignment: tuple[tuple[int, int], ...]  # source and target words, by number
    head_statistics: Mapping[Kind, HeadStatistics] | None = None  # by kind

    def maps(self, kind: Kind) -> AttentionMaps:
        return {"encoder": self.encoder, "decoder": self.decoder, "cross": self.cross}[kind]

    @property
    def log_prob(self) -> float:
        """The log-probability of the target, in nats."""
        return sum(prediction.log_prob for prediction in self.predictions)


def attention_modules(model: Transformer) -> dict[Kind, list[MultiHeadAttention]]:
    """Return the attentions of a model, layer by layer."""
    decoder = cast(list[DecoderLayer], model.decoder)
    return {
        "encoder": [layer.self_attention for layer in cast(list[EncoderLayer], model.encoder)],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.cross_attention for layer in decoder],
    }


def value_norms(attention: MultiHeadAttention, v_HMK: Tensor) -> Tensor:
    """Return ‖v Wᴼ‖ of heads and memory positions, HM, without bias (Kobayashi et al. 2020, 3)."""
    weight_DHK = attention.output.weight.view(-1, attention.heads, v_HMK.size(-1))
    outputs_HMD = torch.einsum("hmk,dhk->hmd", v_HMK, weight_DHK)
    return torch.linalg.vector_norm(outputs_HMD, dim=-1)


def require_finite(logits_BTV: Tensor) -> None:
    """Raise UserError for a model whose numbers overflow, which no page and no JSON can show."""
    if not logits_BTV.isfinite().all():
        raise not_finite()


@torch.inference_mode()
def study_attention(
    translator: Translator,
    source: str,
    target: str | None = None,
    *,
    tag: str | None = None,
    run: str = "",
    head_statistics: Mapping[Kind, HeadStatistics] | None = None,
) -> list[AttentionStudy]:
    """Study each of the `decoding.n_best` translations that the model finds, or the given target.

    `tag` replaces `decoding.tag`; `run` is the name in the studies. Raises UserError for what
    `source_and_targets` refuses, and for a model that computes NaN or infinity.
    """
    target = None if target is None else normalize_spaces(target)
    segment, targets = source_and_targets(translator, source, target, tag)
    run = printable(run)
    return [_study(translator, segment, ids, target, run, head_statistics) for ids in targets]


def _study(
    translator: Translator,
    segment: Segment,
    ids: Ids,
    forced: str | None,
    run: str,
    head_statistics: Mapping[Kind, HeadStatistics] | None,
) -> AttentionStudy:
    model, tokenizers = translator.model, translator.tokenizers
    num_control = len(segment.control_ids)
    src_BS = torch.tensor([[*segment.src_ids, EOS_ID]], device=model.device)
    tgt_BT = torch.tensor([[BOS_ID, *ids, EOS_ID]], device=model.device)
    recorded = model.record_attention(src_BS, tgt_BT[:, :-1])
    require_finite(recorded.logits_BTV)
    attention = recorded.attention
    attention_TS = aligning_layer(attention["cross"]).weights_BHQM[0].mean(dim=0).cpu().numpy()
    given = GivenScore([], without_eos(attention_TS)).without_control_tokens(num_control)
    if forced is None:
        text, (placed,) = write_segments([SegmentResult(segment, ids, 0.0, given)], tokenizers)
    else:
        assert given.attention_TS is not None
        text, spans = tokenizers.tgt.spans(forced)
        placed = Placed(segment, given.attention_TS, spans, {})
    src_pieces = tokenizers.src.pieces_of(src_BS[0].tolist())
    tgt_pieces = tokenizers.tgt.pieces_of(tgt_BT[0].tolist())
    src_words = source_words(segment, tokenizers.src)
    source = _sentence(segment.sentence, src_pieces, src_words, num_control)
    tgt_words = words_of_spans(text, placed.spans) if ids and text else []
    target = _sentence(text, tgt_pieces[1:], tgt_words)
    modules = attention_modules(model)

    def maps(kind: Kind, queries: Sequence[str], memory: Sequence[str]) -> AttentionMaps:
        records = list(zip(modules[kind], attention[kind], strict=True))
        weights_LHQM = torch.stack([record.weights_BHQM[0].float() for _, record in records]).cpu()
        norms = [value_norms(module, record.v_BHMK[0].float()) for module, record in records]
        return AttentionMaps(weights_LHQM, torch.stack(norms).cpu(), tuple(queries), tuple(memory))

    return AttentionStudy(
        run=run,
        source=source,
        target=target,
        encoder=maps("encoder", source.tokens, source.tokens),
        decoder=maps("decoder", target.tokens, tgt_pieces[:-1]),
        cross=maps("cross", target.tokens, source.tokens),
        predictions=(*_predictions(recorded.logits_BTV[0], tgt_BT[0, 1:], tokenizers.tgt),),
        alignment=align(segment.sentence, text, [placed], tokenizers.src)[0],
        head_statistics=head_statistics,
    )


def _sentence(
    text: str, tokens: Sequence[str], words: Sequence[range], num_control: int = 0
) -> Sentence:
    """Describe a side, whose first tokens may be a tag and features.

    `words` has the words of each other token but EOS, or is empty without text.
    """
    *ordinary, _ = tokens
    starts: Sequence[int | None] = [token_words.start for token_words in words]
    starts = [*[None] * num_control, *starts] if starts else [None] * len(ordinary)
    kinds = [{unicodedata.category(c)[0] for c in token} for token in ordinary]
    return Sentence(
        text=" ".join(text.split()),
        tokens=tuple(tokens),
        words=tuple(split_words(text)),
        word_of_token=(*starts, None),
        is_punctuation=(*(kind.isdisjoint("LNM") for kind in kinds), True),
    )


def _predictions(logits_TV: Tensor, labels_T: Tensor, tokenizer: Tokenizer) -> list[Prediction]:
    """Return the predictions of the target's tokens, computed in double precision."""
    log_probs_TV = logits_TV.double().log_softmax(dim=-1)
    probs_TV = log_probs_TV.exp()
    entropy_T = -(probs_TV * log_probs_TV).sum(dim=-1)
    best = probs_TV.topk(min(_ALTERNATIVES + 1, probs_TV.size(-1)))
    pieces = tokenizer.pieces()
    predictions = []
    for row, label in enumerate(labels_T.tolist()):
        ranked = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        alternatives = [(pieces[token], share) for token, share in ranked if token != label]
        predictions.append(
            Prediction(
                token=pieces[label],
                probability=float(probs_TV[row, label]),
                log_prob=float(log_probs_TV[row, label]),
                entropy=float(entropy_T[row]),
                alternatives=tuple(alternatives[:_ALTERNATIVES]),
            )
        )
    return predictions


def source_and_targets(
    translator: Translator, source: str, target: str | None, tag: str | None = None
) -> tuple[Segment, list[Ids]]:
    """Return the source and the ids of its targets, without BOS and EOS.

    The targets are the `decoding.n_best` translations with the tokens that the search found, or the
    given target as the tokenizer splits it. `tag` replaces `decoding.tag`. Raises UserError for a
    source that is empty, too long, or would be translated in several parts, and for a target that
    is too long.
    """
    tokenizers = translator.tokenizers
    source = source.encode("utf-8", "replace").decode("utf-8")  # without lone surrogates
    if target is not None:
        limit = translator.config.data.max_length
        text, control_ids = translator.source_of(TranslationInput(source, tag=tag))
        ids = tokenizers.src.to_ids(text)
        segment = Segment(ids, normalize_spaces(text), control_ids=control_ids)
        targets = [tokenizers.tgt.to_ids(target)]
        for side, ids in (("source", segment.ids), ("target", targets[0])):
            if len(ids) > limit:
                raise UserError(
                    f"the {side} has {len(ids):,} tokens, more than data.max_length ({limit:,})"
                )
    else:
        line = TranslationInput(source, tag=tag)
        ((*segments,),), _ = translator.cut([line])
        if len(segments) > 1:
            raise UserError(
                f"this line would be translated in {len(segments):,} parts: give one sentence at a "
                "time, or a target for the whole line"
            )
        segment = segments[0] if segments else Segment([], source)
        found = translator.search([line])[0] if segments else []
        targets = [tokenizers.tgt.ids_of(translation.tokens) for translation in found]
    if not segment.ids:
        raise UserError("the sentence is empty: give one that has text")
    return segment, targets
