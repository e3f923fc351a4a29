"""Beam search: several hypotheses at once, ranked by normalized log-probability.

B sentences still being decoded, W hypotheses of each in G groups, K candidates to continue them, T
target positions so far, V target vocabulary.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.types import LengthPenalty
from seq2seq_cli.decoding.requests import IMPOSSIBLE, Hypothesis, Ids
from seq2seq_cli.decoding.search.active_batch import ActiveBatch
from seq2seq_cli.decoding.search.lexical_constraints import allocate_beam, restrict
from seq2seq_cli.decoding.search.top_k import top_k
from seq2seq_cli.tokenizers.tokenizer import EOS_ID


def length_penalty(formula: LengthPenalty, alpha: float, length: int) -> float:
    """Return the divisor of the log-probability of `length` tokens, EOS included.

    power: length^α, which for α = 1 gives the mean log-probability; gnmt: ((5 + length) / 6)^α (Wu
    et al. 2016, eq. 14, without the coverage penalty). 1 for α = 0.
    """
    base: float = length if formula == "power" else (5 + length) / 6
    return math.pow(base, alpha)


class Candidates(NamedTuple):
    """Continuations of hypotheses, the best first, BK."""

    sums: Tensor  # log-probabilities
    origins: Tensor  # the hypothesis that is continued
    tokens: Tensor


class FinishedTranslations:
    """The best finished translations of a sentence, with different texts."""

    def __init__(
        self, n_best: int, text_of: Callable[[Ids], object], num_groups: int = 1, width: int = 1
    ) -> None:
        """One of several groups contributes at most `width` translations, its hypotheses."""
        self._n_best = n_best
        self._text_of = text_of
        self._most = n_best if num_groups == 1 else min(n_best, width)  # of a group
        self._by_text: dict[object, tuple[int, Hypothesis]] = {}  # with the number of the group

    @property
    def best(self) -> list[Hypothesis]:
        """The n best of all groups, in falling order."""
        ordered = sorted(self._by_text.values(), key=lambda found: (-found[1].score, found[0]))
        return [hypothesis for _, hypothesis in ordered[: self._n_best]]

    def are_all_better_than(self, score: float, group: int) -> bool:
        """Whether the group's list is full, and no hypothesis of that score would enter it."""
        scores = [one.score for number, one in self._by_text.values() if number == group]
        return len(scores) == self._most and min(scores) >= score

    def add(self, ids: Ids, score: float, group: int = 0) -> None:
        """Add a translation of a group; one whose text another group has already stays there."""
        if self.are_all_better_than(score, group):
            return
        text = self._text_of(ids)
        if text in self._by_text:  # in other tokens, or from another group
            group, same = self._by_text[text]
            if score <= same.score:
                return
            del self._by_text[text]  # so that the better one comes after all others
        self._by_text[text] = group, Hypothesis(ids, score)
        texts = [key for key, (number, _) in self._by_text.items() if number == group]
        if len(texts) > self._most:  # of equally bad ones the last
            del self._by_text[min(reversed(texts), key=lambda key: self._by_text[key][1].score)]


class BeamSearch:
    """The beams of a batch, and the translations that have come out of them.

    A sentence is finished when no growing hypothesis can overtake its group's finished ones:
    log-probability only falls, and no translation is divided by more than the longest one.
    """

    def __init__(
        self, batch: ActiveBatch, config: DecodingConfig, text_of: Callable[[Ids], object]
    ) -> None:
        """Translations differ in what `text_of` makes of them."""
        self._batch = batch
        self._config = config
        self._num_groups = config.diversity_groups
        self._width = config.width // self._num_groups  # of a group
        self._is_constrained = any(request.required for request in batch.requests)
        self._finished = [
            FinishedTranslations(config.n_best, text_of, self._num_groups, self._width)
            for _ in batch.requests
        ]
        # The best with all required phrases, should no hypothesis that has them end by itself.
        self._spare = [FinishedTranslations(1, tuple) for _ in batch.requests]

    def advance(self, logits_BWV: Tensor) -> None:
        """Choose the hypotheses of the next step, and keep the translations that end here."""
        batch = self._batch
        totals_BW1 = logits_BWV.logsumexp(dim=-1, keepdim=True)
        batch.check_finite(totals_BW1)
        batch.rules.apply(logits_BWV, batch.past_BWT)
        score_offsets_BW1 = batch.sums_BW[:, :, None] - totals_BW1
        if self._is_constrained:
            self._forbid_ends(logits_BWV, score_offsets_BW1)
        batch.sums_BW, origins_BW, tokens_BW = self._continuations(logits_BWV, score_offsets_BW1)
        batch.reorder(origins_BW)
        batch.append(tokens_BW)

    def finished(self) -> set[int]:
        """Return the rows in which no growing hypothesis can become one of the n best."""
        sums_BW = self._batch.sums_BW
        best_BG = sums_BW.view(len(sums_BW), self._num_groups, self._width).amax(dim=2).tolist()
        rows = set()
        for row, best_G in enumerate(best_BG):
            finished = self._finished[self._batch.active[row]]
            penalty = self._penalty(self._batch.requests[row].max_length + 1)
            if all(
                not math.isfinite(best) or finished.are_all_better_than(best / penalty, group)
                for group, best in enumerate(best_G)
            ):
                rows.add(row)
        return rows

    def hypotheses(self) -> list[list[Hypothesis]]:
        return [
            finished.best or spare.best or [Hypothesis([], IMPOSSIBLE)]
            for finished, spare in zip(self._finished, self._spare, strict=True)
        ]

    def _forbid_ends(self, logits_BWV: Tensor, score_offsets_BW1: Tensor) -> None:
        """Let no hypothesis end before it has all required phrases; note the best that may."""
        batch = self._batch
        has_met = [bool(self._finished[n].best or self._spare[n].best) for n in batch.active]
        restrict(logits_BWV, batch.past_BWT, batch.requests, has_met)
        ends_BW = logits_BWV[..., EOS_ID] + score_offsets_BW1[..., 0]
        best_B, places_B = ends_BW.max(dim=1)
        penalty = self._penalty(batch.length + 1)
        for row, request in enumerate(batch.requests):
            if request.required and best_B[row].isfinite():
                ids = batch.past_BWT[row, places_B[row]].tolist()
                self._spare[batch.active[row]].add(ids, best_B[row].item() / penalty)

    def _continuations(self, logits_BWV: Tensor, score_offsets_BW1: Tensor) -> Candidates:
        """Return the hypotheses of the next step, group by group, and finish what ends."""
        batch, width = self._batch, self._width
        chosen: list[Candidates] = []
        for first in range(0, self._config.width, width):
            start = 0 if logits_BWV.size(1) == 1 else first  # all groups begin alike
            hypotheses = slice(start, start + width)
            group = logits_BWV[:, hypotheses], score_offsets_BW1[:, hypotheses]
            if chosen:
                best = self._diverse_candidates(*group, torch.cat([c.tokens for c in chosen], 1))
            else:
                best = best_candidates(*group, 2 * width)
            if self._is_constrained:
                self._allocate(best, *group)
            best = best._replace(origins=best.origins + start)
            # Keep translations that end here, if in the better half of the group's candidates.
            ends_BK = (best.tokens == EOS_ID) & best.sums.isfinite()
            ends_BK[:, width:] = False
            for row, place in ends_BK.nonzero().tolist():
                ids = batch.past_BWT[row, best.origins[row, place]].tolist()
                score = best.sums[row, place].item() / self._penalty(batch.length + 1)
                self._finished[batch.active[row]].add(ids, score, first // width)
            chosen.append(unfinished(best, width))
        return Candidates(*(torch.cat(parts, dim=1) for parts in zip(*chosen, strict=True)))

    def _diverse_candidates(
        self, logits_BWV: Tensor, score_offsets_BW1: Tensor, used_BK: Tensor
    ) -> Candidates:
        """Charge for tokens that earlier groups took at this step (Vijayakumar et al. 2016)."""
        cost_BV = logits_BWV.new_zeros(len(logits_BWV), logits_BWV.size(2))
        cost_BV.scatter_add_(1, used_BK, torch.ones_like(used_BK, dtype=cost_BV.dtype))
        cost_BV *= self._config.diversity_penalty
        best = best_candidates(logits_BWV - cost_BV[:, None], score_offsets_BW1, 2 * self._width)
        return best._replace(sums=best.sums + cost_BV.gather(1, best.tokens))

    def _allocate(self, best: Candidates, logits_BWV: Tensor, score_offsets_BW1: Tensor) -> None:
        """Order the candidates of sentences with required phrases by what they have met."""
        for row, request in enumerate(self._batch.requests):
            if request.required:
                candidates, past_WT = [part[row] for part in best], self._batch.past_BWT[row]
                sums_WV = logits_BWV[row] + score_offsets_BW1[row]
                ordered = allocate_beam(candidates, sums_WV, past_WT, request.required)
                for part, values_K in zip(best, ordered, strict=True):
                    part[row] = values_K

    def _penalty(self, length: int) -> float:
        formula, alpha = self._config.length_penalty_formula, self._config.alpha
        return length_penalty(formula, alpha, length)


def best_candidates(logits_BWV: Tensor, score_offsets_BW1: Tensor, count: int) -> Candidates:
    """Return the best continuations; `score_offsets` turn logits into sums of log-probabilities."""
    best_BWk, tokens_BWk = top_k(logits_BWV, count)
    sums_BM = (best_BWk + score_offsets_BW1).flatten(1)
    sums_BK, places_BK = sums_BM.topk(min(count, sums_BM.size(1)))
    tokens_BK = tokens_BWk.flatten(1).gather(1, places_BK)
    return Candidates(sums_BK, places_BK // tokens_BWk.size(2), tokens_BK)


def unfinished(ranked: Candidates, width: int) -> Candidates:
    """Return the first `width` that do not end, filled up with some of log-probability -inf.

    Of 2 · width candidates at most `width` end, one for every hypothesis.
    """
    if (missing := width - ranked.tokens.size(1)) > 0:  # in a vocabulary smaller than the beam
        parts = zip(ranked, (-torch.inf, 0, EOS_ID), strict=True)
        ranked = Candidates(*(nn.functional.pad(p, (0, missing), value=v) for p, v in parts))
    ends_BK = ranked.tokens == EOS_ID
    places_BW = ends_BK.int().argsort(dim=1, stable=True)[:, :width]
    sums_BK = ranked.sums.masked_fill(ends_BK, -torch.inf)
    tokens_BK = ranked.tokens.masked_fill(sums_BK == -torch.inf, EOS_ID)  # some token of the model
    return Candidates(*(p.gather(1, places_BW) for p in (sums_BK, ranked.origins, tokens_BK)))
