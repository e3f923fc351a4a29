"""Searches for translations: greedy, sampling, and beam search.

B sentences still being decoded, W hypotheses of each, K candidates looked at, T target positions
so far, V target vocabulary.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.beam import BeamSearch
from seq2seq_cli.decoding.engines import cpu_library
from seq2seq_cli.decoding.engines.base import WORTH_LEAVING, Decoder, GreedyDecodingState
from seq2seq_cli.decoding.logit_rules import LogitRules
from seq2seq_cli.decoding.requests import Hypothesis, Ids, Request
from seq2seq_cli.decoding.top_k import top_k
from seq2seq_cli.decoding.word_rules import BannedWords
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID

_SEGMENTS_APART = 0x9E3779B97F4A7C15  # far more than a text has lines

Choose = Callable[[Tensor, Sequence[int]], Tensor]


@torch.inference_mode()
def search(
    decoder: Decoder,
    requests: Sequence[Request],
    config: DecodingConfig,
    banned: BannedWords | None = None,
    text_of: Callable[[Ids], str] | None = None,
) -> list[list[Hypothesis]]:
    """For every sentence up to `n_best` translations, the best first.

    What a sentence gets does not depend on the sentences beside it, but for rounding. With
    `text_of`, those of a beam differ in their texts, not only in their tokens.
    """
    length = max(len(request.src) for request in requests)
    src_BS = torch.tensor(
        [request.src + [PAD_ID] * (length - len(request.src)) for request in requests],
        device=decoder.device,
    )
    rules = LogitRules(requests, config, banned, decoder.device)
    if config.sampling:
        return follow(
            decoder,
            src_BS,
            requests,
            rules,
            Sampling(config, requests, decoder.vocab_size),
            config.n_best,
        )
    if config.beam_size == 1:
        return follow(decoder, src_BS, requests, rules, argmax_token, 1)
    return BeamSearch(decoder, src_BS, requests, rules, config, text_of).run()


def follow(
    decoder: Decoder,
    src_BS: Tensor,
    requests: Sequence[Request],
    rules: LogitRules,
    choose: Choose,
    width: int,
) -> list[list[Hypothesis]]:
    """One token after another, each chosen for good; `width` independent translations of each."""
    outputs: list[list[Ids]] = [[[] for _ in range(width)] for _ in requests]
    states = decoder.start(src_BS)
    greedy = states if choose is argmax_token and isinstance(states, GreedyDecodingState) else None
    going_on = list(range(len(requests)))
    growing = [set(range(width)) for _ in requests]
    last_BW = src_BS.new_full((len(requests), 1), BOS_ID)
    chosen: list[Tensor] = []  # at every step, BW
    while going_on:
        forbidden_N = rules.forbidden(len(chosen))
        if greedy is not None and forbidden_N is not None:
            last_BW = greedy.argmax_token(last_BW, forbidden_N)
            if full := rules.full(len(chosen)):
                last_BW[full] = EOS_ID
        else:
            logits_BWV = states.logits(last_BW)
            if logits_BWV.size(1) < width:  # the first step: all begin alike
                states.reorder(last_BW.new_zeros(len(going_on), width))
                logits_BWV = logits_BWV.expand(-1, width, -1).contiguous()
            rules.apply(logits_BWV, _past(chosen, logits_BWV))
            last_BW = choose(logits_BWV, going_on)
        chosen.append(last_BW)
        for of_sentence, tokens in zip(growing, last_BW.tolist(), strict=True):
            if EOS_ID in tokens:
                of_sentence -= {w for w, token in enumerate(tokens) if token == EOS_ID}
        over = {row for row, of_sentence in enumerate(growing) if not of_sentence}
        over.update(rules.full(len(chosen)))
        unfinished = [row for row in range(len(going_on)) if row not in over]
        if unfinished and len(unfinished) > WORTH_LEAVING * len(going_on):
            continue
        past_BWT = torch.stack(chosen, dim=2)
        for row in over:
            outputs[going_on[row]] = [until_end(ids) for ids in past_BWT[row].tolist()]
        going_on = [going_on[row] for row in unfinished]
        growing = [growing[row] for row in unfinished]
        rows_B = torch.tensor(unfinished, dtype=torch.int64, device=src_BS.device)
        last_BW, chosen = last_BW[rows_B], list(past_BWT[rows_B].unbind(2))
        if going_on:
            states.keep(rows_B)
            rules.keep(unfinished)
    return [[Hypothesis(ids, 0.0) for ids in of_sentence] for of_sentence in outputs]


def _past(chosen: Sequence[Tensor], logits_BWV: Tensor) -> Tensor:
    """BWT."""
    if not chosen:
        return torch.empty(*logits_BWV.shape[:-1], 0, dtype=torch.int64, device=logits_BWV.device)
    return torch.stack(tuple(chosen), dim=2)


def until_end(ids: Ids) -> Ids:
    """Without EOS and what follows it."""
    return ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids


def argmax_token(logits_BWV: Tensor, sentences: Sequence[int]) -> Tensor:
    """The choice of greedy search, BW; the end where the rules leave nothing."""
    if cpu_library.can_read(logits_BWV):
        return cpu_library.argmax_token(logits_BWV, EOS_ID)
    best = top_k(logits_BWV, 1)
    return best.tokens.masked_fill(best.logits == -torch.inf, EOS_ID)[..., 0]


class Sampling:
    """A token by chance: softmax of logits over a temperature, of the k or the p likeliest only.

    Chance depends on the seed, the numbers of line and segment and the position, and nothing else.
    """

    def __init__(
        self, config: DecodingConfig, requests: Sequence[Request], vocab_size: int
    ) -> None:
        self._config = config
        self._vocab_size = vocab_size
        self._generators = [
            torch.Generator().manual_seed(
                (config.seed * 1_000_003 + request.number + request.segment * _SEGMENTS_APART)
                % 2**63
            )
            for request in requests
        ]

    def __call__(self, logits_BWV: Tensor, sentences: Sequence[int]) -> Tensor:
        logits_BWV = logits_BWV[..., : self._vocab_size] / self._config.temperature
        if self._config.top_k is not None:
            least = logits_BWV.topk(min(self._config.top_k, logits_BWV.size(-1))).values[..., -1:]
            logits_BWV = logits_BWV.masked_fill(logits_BWV < least, -torch.inf)
        if self._config.top_p < 1:
            logits_BWV = _nucleus(logits_BWV, self._config.top_p)
        size = logits_BWV.shape[1:]
        noise_BWV = torch.stack(  # the greatest of logits and Gumbel noise is a fair draw
            [torch.empty(size).exponential_(generator=self._generators[b]) for b in sentences]
        )
        gumbel_BWV = -noise_BWV.clamp_(min=1e-20).log_().to(logits_BWV.device)
        return (logits_BWV + gumbel_BWV).argmax(dim=-1)


def _nucleus(logits_BWV: Tensor, share: float) -> Tensor:
    """The likeliest tokens that have the share together (Holtzman et al. 2020); at least one."""
    ordered, index = logits_BWV.sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    is_beyond = probabilities.cumsum(dim=-1) - probabilities >= share
    return logits_BWV.scatter(-1, index, ordered.masked_fill(is_beyond, -torch.inf))
