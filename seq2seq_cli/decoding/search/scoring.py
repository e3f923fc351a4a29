"""Given translations under the model: log-probability and attention of every token.

B sentences, S source positions, T target positions, V target vocabulary.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.data.batch_plan import bucket_by_length, pad_rows
from seq2seq_cli.decoding.given_score import NOT_SCORED, GivenScore, without_eos
from seq2seq_cli.decoding.requests import Ids, not_finite
from seq2seq_cli.model.attention import AttentionLog, AttentionRecord
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID


@torch.inference_mode()
def score_given(
    models: Sequence[Transformer],
    pairs: Sequence[tuple[Ids, Ids]],
    tokens_per_batch: int,
    *,
    with_attention: bool = False,
) -> list[GivenScore]:
    """Score pairs of source and target ids, given without EOS, by teacher forcing in fp32.

    Several models give the mean of their probabilities and attention. A model's attention is the
    mean over the heads of the `aligning_layer`. Raises NotFiniteError for NaN and infinity.
    """
    scores = [NOT_SCORED] * len(pairs)
    src_lengths, tgt_lengths = ([len(pair[side]) + 1 for pair in pairs] for side in (0, 1))
    for batch in bucket_by_length(src_lengths, tgt_lengths, tokens_per_batch):
        src_BS = padded_ids([[*pairs[i][0], EOS_ID] for i in batch]).to(models[0].device)
        tgt_BT = padded_ids([[BOS_ID, *pairs[i][1], EOS_ID] for i in batch]).to(models[0].device)
        of_models, attentions = [], []
        for model in models:
            log: AttentionLog | None = [] if with_attention else None
            logits_BTV = model.decode(tgt_BT[:, :-1], model.start_cache(model.encode(src_BS)), log)
            log_probs_BTV = logits_BTV.float().log_softmax(dim=-1)
            of_models.append(log_probs_BTV.gather(-1, tgt_BT[:, 1:, None])[..., 0])
            if log is not None:
                attentions.append(aligning_layer(log[1::2]).weights_BHQM.mean(dim=1))
        log_probs_BT = torch.stack(of_models).logsumexp(dim=0) - math.log(len(models))
        attention_BTS = torch.stack(attentions).mean(dim=0) if attentions else None
        for row, i in enumerate(batch):
            attention_TS = None
            if attention_BTS is not None:
                attention_TS = without_eos(
                    attention_BTS[row, : tgt_lengths[i], : src_lengths[i]].cpu().numpy()
                )
            log_probs = log_probs_BT[row, : tgt_lengths[i]].tolist()
            if not math.isfinite(sum(log_probs)):
                raise not_finite()
            scores[i] = GivenScore(log_probs, attention_TS)
    return scores


def aligning_layer(cross: AttentionLog) -> AttentionRecord:
    """Return the cross-attention that aligns best: the last but one (Garg et al. 2019)."""
    return cross[max(0, len(cross) - 2)]


def padded_ids(rows: Sequence[Ids]) -> Tensor:
    """Return rows of ids side by side, BT, padded at their ends."""
    return torch.from_numpy(pad_rows(rows, PAD_ID))
