"""Statistics of attention heads on a sample of text, such as entropy and importance.

L layers, H heads, B sentences, Q query positions, M memory positions, N queries of a sample,
S source positions, T target positions.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from seq2seq_cli.console import is_stderr_watched
from seq2seq_cli.data.batch_plan import bucket_by_length
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch, padded_batch
from seq2seq_cli.decoding.given_score import normalized_rows, without_eos
from seq2seq_cli.decoding.lines.alignment import Placed, align
from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.decoding.search.scoring import aligning_layer
from seq2seq_cli.decoding.translator import Translator, input_of
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import located
from seq2seq_cli.extras.inspect import attention_study
from seq2seq_cli.extras.inspect.attention_study import KINDS, HeadStatistics, Kind
from seq2seq_cli.model.attention import AttentionLog, MultiHeadAttention
from seq2seq_cli.model.layers import Memory
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.corpus import Pair, read_pairs, readable_pairs
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, PAD_ID, Tokenizers

logger = logging.getLogger(__name__)

Statistics = dict[Kind, HeadStatistics]
_TOKENS_PER_BATCH = 1_024  # few, as all attention weights of a batch are held at once


class TokenPair(NamedTuple):
    """A pair of the sample with its ids, without BOS and EOS."""

    text: Pair
    source: Segment
    tgt: Ids


class SampleBatch(NamedTuple):
    """Some pairs of the sample, and their padded ids."""

    pairs: list[TokenPair]
    ids: Batch


Batches = Sequence[SampleBatch]


def validation_sample(translator: Translator, count: int, run_dir: Path = Path()) -> list[Pair]:
    """Return up to `count` pairs of the run's validation text, at equal distances.

    Relative paths are looked for here and in the folders around `run_dir`. There are none, and a
    warning, if the run has no such text or its files are gone or damaged.
    """
    text, on_bad_line = translator.config.valid_text, translator.config.data.on_bad_line
    if text is None:
        logger.warning("no head statistics: the run has no validation text")
        return []
    if (found := located(text, run_dir)) is None:
        name = text.files[0]
        logger.warning(f"no head statistics: the run's validation text {name} does not exist")
        return []
    try:  # reads twice: memory does not grow with the text
        total = sum(1 for _ in readable_pairs(found, on_bad_line))
        chosen = min(count, total)
        places = {number * total // chosen for number in range(chosen)}
        pairs = (pair for pair in read_pairs(found, on_bad_line) if pair is not None)
        return [pair for place, pair in enumerate(pairs) if place in places]
    except (UserError, OSError) as error:
        logger.warning(f"no head statistics: {error}")
        return []


@torch.inference_mode()
def head_statistics(translator: Translator, pairs: Sequence[Pair]) -> Statistics | None:
    """Return what every head does, by kind of attention, measured on the given pairs.

    Pairs with an empty side, or with one of more than `data.max_length` tokens, are left out; None
    if none is left. Importance takes a forward pass for each head: through the whole model for a
    head of the encoder, through the decoder for the others. Raises UserError for a model that
    computes NaN or infinity.
    """
    model, tokenizers = translator.model, translator.tokenizers
    batches = batches_of(token_pairs(translator, pairs), model.device)
    if not batches:
        return None
    importance = head_importance(model, batches)
    statistics = {
        kind: replace(of_weights, importance_LH=importance[kind])
        for kind, of_weights in weight_statistics(model, batches).items()
    }
    agreement_LH = _agreement(model, batches, tokenizers)
    return statistics | {"cross": replace(statistics["cross"], agreement_LH=agreement_LH)}


def token_pairs(translator: Translator, pairs: Sequence[Pair]) -> list[TokenPair]:
    """Return pairs with their ids; without pairs that `head_statistics` skips."""
    tokenizers, limit = translator.tokenizers, translator.config.data.max_length
    sources = [translator.source_of(input_of(pair)) for pair in pairs]
    src_ids = tokenizers.src.to_ids_batch([text for text, _ in sources])
    tgt_ids = tokenizers.tgt.to_ids_batch([pair.tgt for pair in pairs])
    return [
        TokenPair(pair, Segment(src, line, control_ids=control_ids), tgt)
        for pair, (line, control_ids), src, tgt in zip(
            pairs, sources, src_ids, tgt_ids, strict=True
        )
        if 0 < len(src) <= limit and 0 < len(tgt) <= limit
    ]


def batches_of(pairs: Sequence[TokenPair], device: torch.device) -> list[SampleBatch]:
    """Return the pairs in batches of similar length."""
    src_lengths = [len(pair.source.src_ids) + 1 for pair in pairs]
    tgt_lengths = [len(pair.tgt) + 1 for pair in pairs]
    batches = []
    for indices in bucket_by_length(src_lengths, tgt_lengths, _TOKENS_PER_BATCH):
        chosen = [pairs[i] for i in indices]
        src = [np.array([*pair.source.src_ids, EOS_ID], np.int32) for pair in chosen]
        tgt = [np.array([*pair.tgt, EOS_ID], np.int32) for pair in chosen]
        batches.append(SampleBatch(chosen, padded_batch(src, tgt).to(device)))
    return batches


@torch.inference_mode()
def weight_statistics(model: Transformer, batches: Batches) -> Statistics:
    """Return what the attention weights alone say about each head.

    Confidence is the mean of the greatest weight over the queries, EOS left out (Voita et al.
    2019); the offset is the most frequent distance from the query to the position of that weight.
    """
    queries: dict[Kind, list[Tensor]] = {kind: [] for kind in KINDS}
    for _, ids in batches:
        attention, logits_BTV = model.record_attention(ids.src_BS, ids.tgt_in_BT)
        attention_study.require_finite(logits_BTV)
        is_src_BS, is_tgt_BT = ids.src_BS != PAD_ID, ids.labels_BT != IGNORE_INDEX
        if not model.config.source_eos:  # the encoder has padding in its place
            is_src_BS &= ids.src_BS != EOS_ID
        sides: dict[Kind, tuple[Tensor, Tensor]] = {
            "encoder": (is_src_BS, ids.src_BS),
            "decoder": (is_tgt_BT, ids.tgt_in_BT),
            "cross": (is_tgt_BT, ids.src_BS),
        }
        for kind, (is_query_BQ, memory_BM) in sides.items():
            is_eos_BM = memory_BM == EOS_ID
            queries[kind].append(_query_statistics(attention[kind], is_query_BQ, is_eos_BM))
    statistics: Statistics = {}
    for kind, parts in queries.items():
        confidence_LNH, entropy_LNH, offset_LNH = torch.cat(parts, dim=2).cpu()
        offset_LH = offset_LNH.mode(dim=1).values
        share_LH = (offset_LNH == offset_LH[:, None]).float().mean(dim=1)
        statistics[kind] = HeadStatistics(
            confidence_LNH.mean(dim=1), entropy_LNH.mean(dim=1), offset_LH.long(), share_LH
        )
    return statistics


def _query_statistics(log: AttentionLog, is_query_BQ: Tensor, is_eos_BM: Tensor) -> Tensor:
    """Return greatest weight, entropy and offset of each query, 3LNH."""
    is_eos_B1QM = is_eos_BM[:, None, None].expand(-1, 1, is_query_BQ.size(1), -1)
    is_eos_N1M = is_eos_B1QM.transpose(1, 2)[is_query_BQ]
    position_N1 = is_query_BQ.nonzero()[:, 1:]
    layers = []
    for record in log:
        weights_NHM = record.weights_BHQM.float().transpose(1, 2)[is_query_BQ]
        greatest_NH, place_NH = weights_NHM.masked_fill(is_eos_N1M, -1.0).max(dim=-1)
        entropy_NH = torch.special.entr(weights_NHM).sum(dim=-1)
        layers.append(torch.stack([greatest_NH, entropy_NH, place_NH - position_N1]))
    return torch.stack(layers, dim=1)


def _agreement(model: Transformer, batches: Batches, tokenizers: Tokenizers) -> Tensor:
    """Return the share of words that each head of cross-attention aligns as `--align`: LH."""
    agreeing_LH = torch.zeros(len(model.decoder), model.config.heads)
    num_words = 0
    for pairs, ids in batches:
        cross = model.record_attention(ids.src_BS, ids.tgt_in_BT).attention["cross"]
        mean_BTS = aligning_layer(cross).weights_BHQM.mean(dim=1).cpu()
        weights_LBHTS = torch.stack([record.weights_BHQM for record in cross]).cpu()
        for row, pair in enumerate(pairs):
            expected = _links(mean_BTS[row], pair, tokenizers)
            num_words += len(expected)
            for layer, head in np.ndindex(*agreeing_LH.shape):
                links = _links(weights_LBHTS[layer, row, head], pair, tokenizers)
                agreeing_LH[layer, head] += len(expected & links)
    return agreeing_LH / num_words


def _links(weights_TS: Tensor, pair: TokenPair, tokenizers: Tokenizers) -> set[tuple[int, int]]:
    """Align the words of a pair by padded attention."""
    source = pair.source
    of_words_TS = weights_TS[: len(pair.tgt) + 1, : len(source.src_ids) + 1].numpy()
    attention_TS = normalized_rows(without_eos(of_words_TS)[:, len(source.control_ids) :])
    text, spans = tokenizers.tgt.spans(pair.text.tgt)
    placed = Placed(source, attention_TS, spans, {})
    return set(align(source.sentence, text, [placed], tokenizers.src)[0])


@torch.inference_mode()
def head_importance(model: Transformer, batches: Batches) -> dict[Kind, Tensor]:
    """Return the increase of the loss with each head zeroed, LH, in nats per target token.

    Michel et al. 2019, section 3. The loss is the validation loss, without label smoothing.
    """
    memories = [model.encode(ids.src_BS) for _, ids in batches]
    loss = _loss(model, batches, memories)
    modules = attention_study.attention_modules(model)
    count = sum(len(layers) * model.config.heads for layers in modules.values())
    importance: dict[Kind, Tensor] = {}
    with tqdm(total=count, unit=" heads", leave=False, disable=not is_stderr_watched()) as bar:
        for kind, layers in modules.items():
            importance[kind] = torch.zeros(len(layers), model.config.heads)
            for layer, head in np.ndindex(*importance[kind].shape):
                with zeroed_head(layers[layer], head):
                    known = None if kind == "encoder" else memories
                    importance[kind][layer, head] = _loss(model, batches, known) - loss
                bar.update()
    return importance


@contextmanager
def zeroed_head(attention: MultiHeadAttention, head: int) -> Iterator[None]:
    """Let a head contribute nothing while the block runs: its columns of Wᴼ are zero."""
    weight = attention.output.weight.detach()
    weight_DK = weight.view(len(weight), attention.heads, -1)[:, head]
    before_DK = weight_DK.clone()
    weight_DK.zero_()
    try:
        yield
    finally:
        weight_DK.copy_(before_DK)


def _loss(model: Transformer, batches: Batches, memories: Sequence[Memory] | None) -> float:
    """Return the loss per target token; without `memories` the sources are encoded too."""
    loss, num_tokens = 0.0, 0
    for number, (_, ids) in enumerate(batches):
        memory = model.encode(ids.src_BS) if memories is None else memories[number]
        logits_BTV = model.decode(ids.tgt_in_BT, memory)
        labels = ids.labels_BT.flatten()
        loss += float(F.cross_entropy(logits_BTV.flatten(0, 1), labels, reduction="sum"))
        num_tokens += ids.num_tokens
    return loss / num_tokens
