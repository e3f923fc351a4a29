"""Beam search: several hypotheses at once, ranked by normalised log-probability.

B sentences still being decoded, W hypotheses of each, K candidates for their continuation, T
target positions so far, V target vocabulary.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.types import LengthPenalty
from seq2seq_cli.decoding.engines.base import WORTH_LEAVING, Decoder
from seq2seq_cli.decoding.engines.cpu_library import log_sum_exp
from seq2seq_cli.decoding.lexical_constraints import allocate_beam, forbid_end
from seq2seq_cli.decoding.logit_rules import LogitRules
from seq2seq_cli.decoding.requests import Hypothesis, Ids, Request
from seq2seq_cli.decoding.top_k import top_k
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID

_IMPOSSIBLE = -1e4  # score of the empty translation where wishes exclude each other


def length_penalty(formula: LengthPenalty, alpha: float, length: int) -> float:
    """What a log-probability is divided by; `length` counts EOS.

    power: length^α, the mean log-probability for α = 1; gnmt: ((5 + length) / 6)^α (Wu et al.
    2016, eq. 14, without the coverage penalty). 1 for α = 0.
    """
    base: float = length if formula == "power" else (5 + length) / 6
    return math.pow(base, alpha)


class Candidates(NamedTuple):
    """Continuations of hypotheses, the best first, BK."""

    sums: Tensor  # log-probabilities
    origins: Tensor  # the hypothesis that is continued
    tokens: Tensor


class BeamSearch:
    """One batch. Finished translations are kept apart; at most `n_best`, the best.

    A sentence is done when nothing that is still growing can overtake what is kept: log-probability
    only falls, and no translation is divided by more than the longest one.
    """

    def __init__(
        self,
        decoder: Decoder,
        src_BS: Tensor,
        requests: Sequence[Request],
        rules: LogitRules,
        config: DecodingConfig,
        text_of: Callable[[Ids], str] | None = None,
    ) -> None:
        """Translations differ in what `text_of` makes of them; left out, in their tokens."""
        self._text_of: Callable[[Ids], object] = text_of or tuple
        self._states = decoder.start(src_BS)
        self._requests = requests
        self._rules = rules
        self._config = config
        self._is_constrained = any(request.required for request in requests)
        self._finished: list[list[Hypothesis]] = [[] for _ in requests]
        self._spare: list[list[Hypothesis]] = [[] for _ in requests]  # one at most, see _note_ends
        self._texts: list[dict[object, Hypothesis]] = [{} for _ in requests]  # the finished by text
        self._going_on = list(range(len(requests)))
        self._sums_BW = torch.zeros(len(requests), 1, device=src_BS.device)
        self._past_BWT = src_BS.new_zeros(len(requests), 1, 0)
        self._last_BW = src_BS.new_full((len(requests), 1), BOS_ID)

    def run(self) -> list[list[Hypothesis]]:
        while self._going_on:
            logits_BWV = self._states.logits(self._last_BW)
            totals_BW1 = log_sum_exp(logits_BWV)
            self._rules.apply(logits_BWV, self._past_BWT)
            offsets_BW1 = self._sums_BW[:, :, None] - totals_BW1
            if self._is_constrained:
                has_met = [bool(self._finished[n] or self._spare[n]) for n in self._going_on]
                forbid_end(logits_BWV, self._past_BWT, self._running_requests(), has_met)
                self._note_ends(logits_BWV[..., EOS_ID] + offsets_BW1[..., 0])
            self._advance(logits_BWV, offsets_BW1)
            self._drop_finished()
        return [
            found or spare or [Hypothesis([], _IMPOSSIBLE)]
            for found, spare in zip(self._finished, self._spare, strict=True)
        ]

    def _note_ends(self, ends_BW: Tensor) -> None:
        """The best translation that holds all required phrases, should none of them end by itself.

        `ends` are sums of log-probabilities, -inf where a phrase is missing.
        """
        best_B, places_B = ends_BW.max(dim=1)
        penalty = self._penalty(self._past_BWT.size(2) + 1)
        for row, sentence in enumerate(self._going_on):
            if self._requests[sentence].required and best_B[row].isfinite():
                ids = self._past_BWT[row, places_B[row]].tolist()
                one = Hypothesis(ids, best_B[row].item() / penalty)
                spare = self._spare[sentence]
                if not spare or spare[0].score < one.score:
                    self._spare[sentence] = [one]

    def _running_requests(self) -> list[Request]:
        return [self._requests[sentence] for sentence in self._going_on]

    def _advance(self, logits_BWV: Tensor, offsets_BW1: Tensor) -> None:
        """Finish what ends, and go on with the best of what does not.

        `offsets` make logits to sums of log-probabilities.
        """
        groups = self._config.diversity_groups
        width = self._config.beam_size // groups
        used_BK = self._last_BW.new_zeros(len(logits_BWV), 0)
        chosen: list[Candidates] = []
        for group in range(groups):
            first = 0 if logits_BWV.size(1) == 1 else group * width
            own = slice(first, first + width)
            ranked = self._ranked(logits_BWV[:, own], offsets_BW1[:, own], 2 * width, used_BK)
            ranked = ranked._replace(origins=ranked.origins + first)
            self._finish(ranked, width)
            chosen.append(unfinished(ranked, width))
            used_BK = torch.cat([used_BK, chosen[-1].tokens], dim=1)
        self._sums_BW, origins_BW, self._last_BW = (
            torch.cat(parts, dim=1) for parts in zip(*chosen, strict=True)
        )
        self._states.reorder(origins_BW)
        index = origins_BW[:, :, None].expand(-1, -1, self._past_BWT.size(2))
        past_BWT = self._past_BWT.gather(1, index)
        self._past_BWT = torch.cat([past_BWT, self._last_BW[:, :, None]], dim=2)

    def _ranked(
        self, logits_BWV: Tensor, offsets_BW1: Tensor, count: int, used_BK: Tensor
    ) -> Candidates:
        """In the order in which they go on: the best first, or as diversity or constraints ask."""
        if used_BK.size(1):  # what earlier groups took at this step costs (Vijayakumar et al. 2016)
            cost_BV = logits_BWV.new_zeros(len(logits_BWV), logits_BWV.size(2))
            cost_BV.scatter_add_(1, used_BK, torch.ones_like(used_BK, dtype=cost_BV.dtype))
            cost_BV *= self._config.diversity_penalty
            best = best_candidates(logits_BWV - cost_BV[:, None], offsets_BW1, count)
            return best._replace(sums=best.sums + cost_BV.gather(1, best.tokens))
        best = best_candidates(logits_BWV, offsets_BW1, count)
        if not self._is_constrained:
            return best
        shared = [
            [
                part.to(logits_WV.device)
                for part in allocate_beam(
                    of_sentence, logits_WV + offsets_W1, past_WT, request.required
                )
            ]
            if request.required
            else of_sentence
            for *of_sentence, logits_WV, offsets_W1, past_WT, request in zip(
                *best,
                logits_BWV,
                offsets_BW1,
                self._past_BWT,
                self._running_requests(),
                strict=True,
            )
        ]
        return Candidates(*(torch.stack(parts) for parts in zip(*shared, strict=True)))

    def _finish(self, candidates: Candidates, width: int) -> None:
        """Keep the translations that end here, if they are among the `width` best candidates."""
        ends_BK = (candidates.tokens == EOS_ID) & candidates.sums.isfinite()
        ends_BK[:, width:] = False
        penalty = self._penalty(self._past_BWT.size(2) + 1)
        for row, place in ends_BK.nonzero().tolist():
            past_T = self._past_BWT[row, candidates.origins[row, place]]
            score = candidates.sums[row, place].item() / penalty
            kept = self._finished[self._going_on[row]]
            ids = past_T.tolist()
            if len(kept) == self._config.n_best and score <= kept[-1].score:
                continue
            hypothesis, text = Hypothesis(ids, score), self._text_of(ids)
            texts = self._texts[self._going_on[row]]
            if text in texts:  # of another group, or in other tokens
                if score <= texts[text].score:
                    continue
                kept.remove(texts[text])
            texts[text] = hypothesis
            kept.append(hypothesis)
            kept.sort(key=lambda one: -one.score)
            for dropped in kept[self._config.n_best :]:
                del texts[self._text_of(dropped.ids)]
            del kept[self._config.n_best :]

    def _drop_finished(self) -> None:
        """Let done sentences go, when they are many enough for the copying that it costs."""
        best_B = self._sums_BW.amax(dim=1).tolist()
        unfinished = [row for row, best in enumerate(best_B) if not self._is_done(row, best)]
        if unfinished and len(unfinished) > WORTH_LEAVING * len(self._going_on):
            return
        self._going_on = [self._going_on[row] for row in unfinished]
        rows_B = torch.tensor(unfinished, dtype=torch.int64, device=self._sums_BW.device)
        self._sums_BW, self._past_BWT = self._sums_BW[rows_B], self._past_BWT[rows_B]
        self._last_BW = self._last_BW[rows_B]
        if unfinished:
            self._states.keep(rows_B)
            self._rules.keep(unfinished)

    def _is_done(self, row: int, best: float) -> bool:
        """Whether nothing that still grows can become one of the n best."""
        sentence = self._going_on[row]
        if not math.isfinite(best):
            return True
        kept = self._finished[sentence]
        penalty = self._penalty(self._requests[sentence].max_length + 1)
        return len(kept) == self._config.n_best and kept[-1].score >= best / penalty

    def _penalty(self, length: int) -> float:
        """What the log-probability of so many tokens is divided by."""
        formula, alpha = self._config.length_penalty_formula, self._config.length_penalty
        return length_penalty(formula, alpha, length)


def best_candidates(logits_BWV: Tensor, offsets_BW1: Tensor, count: int) -> Candidates:
    """Of all continuations of all hypotheses of a sentence; `offsets` make logits to sums."""
    best = top_k(logits_BWV, count)
    sums_BM = (best.logits + offsets_BW1).flatten(1)
    sums_BK, places_BK = sums_BM.topk(min(count, sums_BM.size(1)))
    return Candidates(
        sums_BK, places_BK // best.tokens.size(2), best.tokens.flatten(1).gather(1, places_BK)
    )


def unfinished(ranked: Candidates, width: int) -> Candidates:
    """The first `width` that do not end; where there are fewer, some of log-probability -inf.

    Of 2 · width candidates at most `width` end, one for every hypothesis.
    """
    ends_BK = ranked.tokens == EOS_ID
    count = ends_BK.size(1)
    if count < width:  # a vocabulary smaller than the beam
        ranked = Candidates(*(part[:, [*range(count), *[0] * (width - count)]] for part in ranked))
        ends_BK = torch.ones_like(ranked.tokens, dtype=torch.bool)
        ends_BK[:, :count] = ranked.tokens[:, :count] == EOS_ID
    order_BK = ends_BK * ends_BK.size(1) + torch.arange(ends_BK.size(1), device=ends_BK.device)
    places_BW = order_BK.argsort(dim=1)[:, :width]
    sums_BK = ranked.sums.masked_fill(ends_BK, -torch.inf)
    tokens_BK = ranked.tokens.masked_fill(sums_BK == -torch.inf, EOS_ID)  # some token of the model
    return Candidates(*(p.gather(1, places_BW) for p in (sums_BK, ranked.origins, tokens_BK)))
