"""Lexical constraints: phrases that the translation must contain.

Beam search with dynamic beam allocation (Post and Vilar 2018). In addition to the best
continuations, the tokens that a constraint needs are candidates (where a phrase ends inside a word,
the most probable token that ends the word). The beam is divided by the number of constraint tokens
that candidates have met, so that a rare word is not pruned before the hypothesis can profit.

B sentences still being decoded, W hypotheses of each, K candidates, T positions, V vocabulary.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.decoding.requests import Ids, Phrase, Request
from seq2seq_cli.decoding.search.logit_rules import force
from seq2seq_cli.tokenizers.tokenizer import EOS_ID

Candidate = tuple[float, int, int]  # sum of log-probabilities, hypothesis, token


def missing_tokens(past: Ids, phrases: Sequence[Phrase]) -> tuple[int, list[int]]:
    """Return how many tokens of the phrases are missing, and which of them may come next.

    A phrase is met if the past contains it, also at its end, where the word may still continue. Of
    an unmet phrase in which the past ends, the rest is missing and comes next; else any may begin.
    """
    unmet = [  # the tokens of a phrase differ at the beginning of a translation
        phrase.first if tuple(past) == phrase.first[: len(past)] else phrase.inner
        for phrase in phrases
        if not _is_met(past, phrase)
    ]
    furthest, form = max(((_progress(past, form), form) for form in unmet), default=(0, ()))
    missing = sum(map(len, unmet)) - furthest
    if furthest:
        return missing, [form[furthest]]
    return missing, [form[0] for form in unmet]


def restrict(
    logits_BWV: Tensor,
    past_BWT: Tensor,
    requests: Sequence[Request],
    has_met: Sequence[bool],
) -> None:
    """Allow EOS only if every phrase is met, or at the maximum length if none has been met.

    Within a character of a phrase, allow only its next byte.
    """
    rows = zip(logits_BWV, past_BWT, requests, has_met, strict=True)
    for logits_WV, past_WT, request, is_met in rows:
        if not request.required:
            continue
        missing = [missing_tokens(past, request.required) for past in past_WT.tolist()]
        lacks = [count > 0 for count, _ in missing]
        is_full = past_WT.size(1) >= request.max_length
        if not is_full or is_met or not all(lacks):
            logits_WV[torch.tensor(lacks, device=logits_WV.device), EOS_ID] = -torch.inf
        inner_bytes = frozenset().union(*(phrase.inner_bytes for phrase in request.required))
        for logits_V, (_, needed) in zip(logits_WV, missing, strict=True):
            if not is_full and inner_bytes.intersection(needed):
                logit = logits_V[needed[0]].nan_to_num(neginf=-1e4)  # a rule may forbid it
                force(logits_V, needed[0], logit)


def allocate_beam(
    candidates: Sequence[Tensor], sums_WV: Tensor, past_WT: Tensor, phrases: Sequence[Phrase]
) -> list[Tensor]:
    """Return a sentence's candidates (sums, origins, tokens; K each) by priority."""
    pasts = past_WT.tolist()
    pool: set[Candidate] = set(zip(*(part.tolist() for part in candidates), strict=True))
    for row, past in enumerate(pasts):
        needed = missing_tokens(past, phrases)[1]
        for phrase in phrases:
            has_just_ended = any(tuple(past[-len(form) :]) == form for form in phrase[:2])
            if phrase.word_ends is not None and has_just_ended:
                ends_N = torch.tensor(phrase.word_ends.ids, device=sums_WV.device)
                needed.append(int(ends_N[sums_WV[row, ends_N].argmax()]))
        pool.update((sums_WV[row, token].item(), row, token) for token in needed)
    alive = [candidate for candidate in pool if candidate[0] > -torch.inf]
    banks: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in sorted(alive, reverse=True):
        _, row, token = candidate
        banks[missing_tokens([*pasts[row], token], phrases)[0]].append(candidate)
    ordered: list[Candidate] = []
    while any(banks.values()):  # round-robin, beginning with the bank that misses least
        ordered += [banks[missing].pop(0) for missing in sorted(banks) if banks[missing]]
    count = len(candidates[0])
    ordered = ordered[:count]
    ordered += [(-torch.inf, 0, 0)] * (count - len(ordered))
    parts = zip(candidates, zip(*ordered, strict=True), strict=True)
    return [torch.tensor(values, dtype=p.dtype, device=p.device) for p, values in parts]


def _is_met(past: Ids, phrase: Phrase) -> bool:
    """Whether the past contains the phrase, and no word continues at its end."""
    for form in {phrase.inner, phrase.first}:
        for end in range(len(form), len(past) + 1):
            if tuple(past[end - len(form) : end]) != form:
                continue
            following = past[end : end + 1]
            if not following or phrase.word_ends is None or following[0] in phrase.word_ends.tokens:
                return True
    return phrase.is_in is not None and phrase.is_in(past)


def _progress(past: Ids, form: tuple[int, ...]) -> int:
    """Return the number of first tokens of the phrase with which the past ends."""
    for size in range(min(len(form) - 1, len(past)), 0, -1):
        if tuple(past[-size:]) == form[:size]:
            return size
    return 0
