"""Given translations under the model: their probability, token by token, and what they look at.

B sentences, S source positions, T target positions, V target vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seq2seq_cli.data.batches import plan_in_order
from seq2seq_cli.decoding.request import Ids
from seq2seq_cli.model.attention import Record
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID


class Forced(NamedTuple):
    """A translation that was given, its end included."""

    log_probs: list[float]  # of every token, EOS at last
    attention_TS: Tensor | None  # of every token over the source, both without EOS; rows sum to 1


@torch.inference_mode()
def force(
    model: Transformer,
    pairs: Sequence[tuple[Ids, Ids]],
    tokens_per_batch: int,
    *,
    with_attention: bool = False,
) -> list[Forced]:
    """Teacher forcing of pairs of source and target ids, without EOS; in fp32.

    Attention is the mean over the heads of the last layer but one, which aligns best (Garg et al.
    2019).
    """
    found: list[Forced] = [Forced([], None)] * len(pairs)
    src_lengths, tgt_lengths = (
        np.array([len(pair[side]) + 1 for pair in pairs], dtype=np.int32) for side in (0, 1)
    )
    for batch in plan_in_order(src_lengths, tgt_lengths, tokens_per_batch):
        src_BS = _padded([[*pairs[i][0], EOS_ID] for i in batch]).to(model.device)
        tgt_BT = _padded([[BOS_ID, *pairs[i][1], EOS_ID] for i in batch]).to(model.device)
        record: Record | None = [] if with_attention else None
        cache = model.start_cache(model.encode(src_BS))
        logits_BTV = model.decode(tgt_BT[:, :-1], cache, record)
        log_probs_BTV = logits_BTV.float().log_softmax(dim=-1)
        log_probs_BT = log_probs_BTV.gather(-1, tgt_BT[:, 1:, None])[..., 0]
        for row, i in enumerate(batch):
            attention_TS = None
            if record:
                cross = record[1::2]
                attention_TS = cross[max(0, len(cross) - 2)][row].mean(dim=0)
                attention_TS = attention_TS[: tgt_lengths[i] - 1, : src_lengths[i] - 1]
                attention_TS = attention_TS / attention_TS.sum(dim=-1, keepdim=True)
            found[i] = Forced(log_probs_BT[row, : tgt_lengths[i]].tolist(), attention_TS)
    return found


def word_attention(attention_TS: Tensor, src: Sequence[str], tgt: Sequence[str]) -> Tensor:
    """From tokens, given as pieces, to words: what a target word's tokens give to a source word's.

    Rows are target words, their tokens' mean; columns are source words; rows sum to 1.
    """
    src_words, tgt_words = words_of(src), words_of(tgt)
    of_words_TS = attention_TS.new_zeros(len(tgt), max(src_words, default=-1) + 1)
    of_words_TS.index_add_(1, torch.tensor(src_words, dtype=torch.int64), attention_TS)
    words = attention_TS.new_zeros(max(tgt_words, default=-1) + 1, of_words_TS.size(1))
    words.index_add_(0, torch.tensor(tgt_words, dtype=torch.int64), of_words_TS)
    return words / torch.bincount(torch.tensor(tgt_words, dtype=torch.int64))[:, None]


def words_of(pieces: Sequence[str]) -> list[int]:
    """The number of the word, counted by spaces, that each piece belongs to."""
    numbers: list[int] = []
    for piece in pieces:
        begins = piece.startswith("▁") or not numbers
        numbers.append((numbers[-1] + 1 if numbers else 0) if begins else numbers[-1])
    return numbers


def _padded(rows: Sequence[Ids]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD_ID] * (longest - len(row)) for row in rows])
