"""The search for translations, step by step: logits, a choice of tokens, sentences that leave."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.data.batch_plan import bucket_by_length
from seq2seq_cli.decoding.engines.base import Decoder, GreedyDecodingState
from seq2seq_cli.decoding.requests import Hypothesis, Ids, Request
from seq2seq_cli.decoding.search.active_batch import ActiveBatch
from seq2seq_cli.decoding.search.beam import BeamSearch
from seq2seq_cli.decoding.search.greedy import GreedySearch
from seq2seq_cli.decoding.search.logit_rules import LogitRules
from seq2seq_cli.decoding.search.word_rules import BannedWords
from seq2seq_cli.tokenizers.tokenizer import EOS_ID


@torch.inference_mode()
def search(
    decoder: Decoder,
    requests: Sequence[Request],
    config: DecodingConfig,
    word_rules: Sequence[BannedWords] = (),
    text_of: Callable[[Ids], object] = tuple,
) -> list[list[Hypothesis]]:
    """Return up to `n_best` translations of every request, the best first.

    Requests are batched by length. Apart from rounding, results do not depend on the other requests
    in a batch. The translations of a beam differ in what `text_of` makes of them. Raises
    NotFiniteError if the model computes NaN or infinity.
    """
    is_greedy = config.beam_size == 1 and not config.sampling
    width = config.n_best if config.sampling else config.beam_size
    lengths = np.array([len(request.src) for request in requests], dtype=np.int32)
    results: list[list[Hypothesis]] = [[] for _ in requests]
    for numbers in bucket_by_length(lengths, lengths, config.tokens_per_batch // width):
        batch_requests = [requests[i] for i in numbers]
        rules = LogitRules(batch_requests, config, word_rules, decoder.device)
        batch = ActiveBatch(decoder, batch_requests, rules)
        strategy: BeamSearch | GreedySearch
        if config.beam_size > 1:
            strategy = BeamSearch(batch, config, text_of)
        else:
            strategy = GreedySearch(batch, config, decoder.vocab_size)
        state = batch.state
        greedy = state if is_greedy and isinstance(state, GreedyDecodingState) else None
        while batch.active:
            if greedy and (forbidden_N := rules.forbidden(batch.length)) is not None:
                tokens_BW = greedy.argmax_token(batch.last_BW, forbidden_N)
                if rows := rules.at_max_length(batch.length):
                    tokens_BW[rows] = EOS_ID
                batch.append(tokens_BW)
            else:
                strategy.advance(state.logits(batch.last_BW))
            batch.drop(strategy.finished())
        for i, hypotheses in zip(numbers, strategy.hypotheses(), strict=True):
            results[i] = hypotheses
    return results
