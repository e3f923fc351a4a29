"""Lexical constraints: pieces of text that must stand in the translation.

Beam search with dynamic beam allocation (Post and Vilar 2018): next to the likeliest continuations
those that a constraint needs are candidates too, and the beam is shared among candidates that have
met like many tokens of the constraints, so that a rare word is not pushed out before its time.

B sentences still being decoded, W hypotheses of each, K candidates, T positions, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.decoding.request import Ids, Request
from seq2seq_cli.text.tokenizer import EOS_ID

Phrases = Sequence[tuple[int, ...]]
Candidate = tuple[float, int, int]  # sum of log-probabilities, hypothesis, token


def missing_tokens(past: Ids, phrases: Phrases) -> tuple[int, list[int]]:
    """How many tokens of the phrases are not met yet, and which of them may come next.

    A phrase that stands in the past is met. Of the others, the one that the past ends in the middle
    of counts as far as it is; it should go on, or else any of them may begin.
    """
    unmet = [phrase for phrase in phrases if not _contains(past, phrase)]
    begun = max(((_progress(past, phrase), phrase) for phrase in unmet), default=(0, ()))
    missing = sum(map(len, unmet)) - begun[0]
    if begun[0]:
        return missing, [begun[1][begun[0]]]
    return missing, [phrase[0] for phrase in unmet]


def forbid_end(
    logits_BWV: Tensor,
    past_BWT: Tensor,
    requests: Sequence[Request],
    has_finished: Sequence[bool],
) -> None:
    """EOS only where every phrase is met; or, at the greatest length, where none is anywhere."""
    rows = zip(logits_BWV, past_BWT, requests, has_finished, strict=True)
    for logits_WV, past_WT, request, has_one in rows:
        if not request.required:
            continue
        lacks = [missing_tokens(past, request.required)[0] > 0 for past in past_WT.tolist()]
        if past_WT.size(1) < request.max_length or has_one or not all(lacks):
            logits_WV[torch.tensor(lacks), EOS_ID] = -torch.inf


def share_beam(
    candidates: Sequence[Tensor], sums_WV: Tensor, past_WT: Tensor, phrases: Phrases
) -> tuple[Tensor, Tensor, Tensor]:
    """The candidates of one sentence (sums, origins, tokens; K each) in the order of priority.

    `sums_WV` are those of all continuations.
    """
    pasts = past_WT.tolist()
    pool: set[Candidate] = set(zip(*(part.tolist() for part in candidates), strict=True))
    for row, past in enumerate(pasts):
        for token in missing_tokens(past, phrases)[1]:
            pool.add((sums_WV[row, token].item(), row, token))
    alive = [candidate for candidate in pool if candidate[0] > -torch.inf]
    banks: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in sorted(alive, reverse=True):
        _, row, token = candidate
        banks[missing_tokens([*pasts[row], token], phrases)[0]].append(candidate)
    ordered: list[Candidate] = []
    while any(banks.values()):  # in turn from every bank, beginning with that which has most
        ordered += [banks[missing].pop(0) for missing in sorted(banks) if banks[missing]]
    count = len(candidates[0])
    ordered = ordered[:count]
    ordered += [(-torch.inf, 0, 0)] * (count - len(ordered))
    sums, origins, tokens = zip(*ordered, strict=True)
    return torch.tensor(sums), torch.tensor(origins), torch.tensor(tokens)


def _contains(past: Ids, phrase: tuple[int, ...]) -> bool:
    size = len(phrase)
    return any(tuple(past[i : i + size]) == phrase for i in range(len(past) - size + 1))


def _progress(past: Ids, phrase: tuple[int, ...]) -> int:
    """Of how many first tokens of the phrase the past ends in."""
    for size in range(min(len(phrase) - 1, len(past)), 0, -1):
        if tuple(past[-size:]) == phrase[:size]:
            return size
    return 0
