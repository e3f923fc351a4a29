"""Collects what a model's attention does in one pair of sentences: under teacher forcing, in fp32.

L layers, H heads, Q query positions, M memory positions, K size of one head, D d_model,
B sentences, S source positions, T target positions, V target vocabulary.
"""

import unicodedata
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from seq2seq_cli.console import printable
from seq2seq_cli.decoding.lines.alignment import Placed, align, source_words
from seq2seq_cli.decoding.lines.merging import SegmentResult, write_segments
from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.requests import Ids, not_finite
from seq2seq_cli.decoding.search.scoring import GivenScore, aligning_layer, without_eos
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.extras.inspect.attention_study import (
    AttentionMaps,
    AttentionStudy,
    HeadFacts,
    Prediction,
    Sentence,
)
from seq2seq_cli.extras.inspect.attention_views import Kind
from seq2seq_cli.extras.inspect.sentence_pair import source_and_targets
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.quoting import normalize_spaces
from seq2seq_cli.text.words import split_words, words_of_spans
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, Tokenizer, Tokenizers

KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
_RIVALS = 5


def attention_modules(model: Transformer) -> dict[Kind, list[MultiHeadAttention]]:
    """Return the attentions of a model, layer by layer."""
    encoder, decoder = (
        cast(list[EncoderLayer], model.encoder),
        cast(list[DecoderLayer], model.decoder),
    )
    return {
        "encoder": [layer.self_attention for layer in encoder],
        "decoder": [layer.self_attention for layer in decoder],
        "cross": [layer.cross_attention for layer in decoder],
    }


def value_norms(attention: MultiHeadAttention, v_HMK: Tensor) -> Tensor:
    """Return ‖v Wᴼ‖ of each head and memory position, HM (Kobayashi et al. 2020, section 3).

    The head's part of Wᴼ is meant; the bias, which all heads share, is left out.
    """
    weight_DHK = attention.output.weight.view(-1, attention.heads, v_HMK.size(-1))
    outputs_HMD = torch.einsum("hmk,dhk->hmd", v_HMK, weight_DHK)
    norms_HM: Tensor = torch.linalg.vector_norm(outputs_HMD, dim=-1)
    return norms_HM


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
    head_facts: dict[str, HeadFacts] | None = None,
) -> list[AttentionStudy]:
    """Study each of the `decoding.n_best` translations that the model finds, or the given target.

    `tag` is that of the source, by default `decoding.tag`; `run` is the name that the studies bear.
    Raises UserError for what `source_and_targets` refuses,
    and for a model that computes NaN or infinity.
    """
    target = None if target is None else normalize_spaces(target)
    segment, targets = source_and_targets(translator, source, target, tag)
    return [
        _study(
            translator.model,
            translator.tokenizers,
            segment,
            ids,
            target,
            printable(run),
            head_facts,
        )
        for ids in targets
    ]


def _study(
    model: Transformer,
    tokenizers: Tokenizers,
    segment: Segment,
    ids: Ids,
    forced: str | None,
    run: str,
    head_facts: dict[str, HeadFacts] | None,
) -> AttentionStudy:
    src_BS = torch.tensor([[*segment.src_ids, EOS_ID]], device=model.device)
    tgt_BT = torch.tensor([[BOS_ID, *ids, EOS_ID]], device=model.device)
    recorded = model.record_attention(src_BS, tgt_BT[:, :-1])
    require_finite(recorded.logits_BTV)
    attention = recorded.attention
    attention_TS = aligning_layer(attention["cross"]).weights_BHQM[0].mean(dim=0).cpu()
    given = GivenScore([], without_eos(attention_TS)).without_control_tokens(
        len(segment.control_ids)
    )
    text, placed = _place(tokenizers, segment, ids, forced, given)
    source = _sentence(
        segment.sentence,
        tokenizers.src.pieces_of(src_BS[0].tolist()),
        source_words(segment, tokenizers.src),
        num_control=len(segment.control_ids),
    )
    tgt_words = words_of_spans(text, placed.spans) if ids and text else []
    pieces = tokenizers.tgt.pieces_of(tgt_BT[0].tolist())
    target = _sentence(text, pieces[1:], tgt_words)
    modules = attention_modules(model)

    def maps(kind: Kind, queries: Sequence[str], memory: Sequence[str]) -> AttentionMaps:
        records = attention[kind]
        norms = [
            value_norms(module, record.v_BHMK[0].float())
            for module, record in zip(modules[kind], records, strict=True)
        ]
        weights = [record.weights_BHQM[0].float() for record in records]
        return AttentionMaps(
            torch.stack(weights).cpu(), torch.stack(norms).cpu(), tuple(queries), tuple(memory)
        )

    return AttentionStudy(
        run=run,
        source=source,
        target=target,
        encoder=maps("encoder", source.tokens, source.tokens),
        decoder=maps("decoder", target.tokens, pieces[:-1]),
        cross=maps("cross", target.tokens, source.tokens),
        predictions=_predictions(recorded.logits_BTV[0], tgt_BT[0, 1:], tokenizers.tgt),
        alignment=align(segment.sentence, text, [placed], tokenizers.src)[0],
        head_facts=head_facts,
    )


def _place(
    tokenizers: Tokenizers, segment: Segment, ids: Ids, forced: str | None, given: GivenScore
) -> tuple[str, Placed]:
    """Return the text of the target, and the places of its tokens in it."""
    if forced is not None:
        assert given.attention_TS is not None
        text, spans = tokenizers.tgt.spans(forced)
        return text, Placed(segment, given.attention_TS, spans, {})
    result = SegmentResult(segment, ids, None, given)
    text, (placed,) = write_segments([result], tokenizers)
    return text, placed


def _sentence(
    text: str, tokens: Sequence[str], words: Sequence[range], num_control: int = 0
) -> Sentence:
    """Describe a side, whose first tokens may be a tag and features.

    `words` are those of each other token but the last, EOS, or none without text.
    """
    *ordinary, _ = tokens
    starts: Sequence[int | None] = [token_words.start for token_words in words]
    starts = [*[None] * num_control, *starts] if starts else [None] * len(ordinary)
    return Sentence(
        text=" ".join(text.split()),
        tokens=tuple(tokens),
        words=tuple(split_words(text)),
        word_of_token=(*starts, None),
        is_punctuation=(
            *(not any(unicodedata.category(c)[0] in "LNM" for c in token) for token in ordinary),
            True,
        ),
    )


def _predictions(
    logits_TV: Tensor, labels_T: Tensor, tokenizer: Tokenizer
) -> tuple[Prediction, ...]:
    """Return the predictions of the target's tokens, computed in double precision."""
    log_probs_TV = logits_TV.double().log_softmax(dim=-1)
    probs_TV = log_probs_TV.exp()
    entropy_T = -(probs_TV * log_probs_TV).sum(dim=-1)
    best = probs_TV.topk(min(_RIVALS + 1, probs_TV.size(-1)))
    pieces = tokenizer.pieces()
    predictions = []
    for row, label in enumerate(labels_T.tolist()):
        ranked = zip(best.indices[row].tolist(), best.values[row].tolist(), strict=True)
        rivals = [(pieces[token], share) for token, share in ranked if token != label]
        predictions.append(
            Prediction(
                token=pieces[label],
                probability=float(probs_TV[row, label]),
                log_prob=float(log_probs_TV[row, label]),
                entropy=float(entropy_T[row]),
                rivals=tuple(rivals[:_RIVALS]),
            )
        )
    return tuple(predictions)
