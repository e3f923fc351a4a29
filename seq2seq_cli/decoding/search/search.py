"""The search for translations, step by step: logits, a choice of tokens, sentences that leave."""

from collections.abc import Callable, Sequence

import torch

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.data.batch_plan import bucket_by_length
from seq2seq_cli.decoding.engines.base import Decoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.requests import Hypothesis, Ids, Request
from seq2seq_cli.decoding.search import native_search
from seq2seq_cli.decoding.search.active_batch import ActiveBatch
from seq2seq_cli.decoding.search.banned_words import BannedWords
from seq2seq_cli.decoding.search.beam import BeamSearch
from seq2seq_cli.decoding.search.greedy import GreedySearch
from seq2seq_cli.decoding.search.logit_rules import LogitRules


@torch.inference_mode()
def search(
    decoder: Decoder,
    requests: Sequence[Request],
    config: DecodingConfig,
    word_rules: Sequence[BannedWords] = (),
    text_of: Callable[[Ids], object] = tuple,
) -> list[list[Hypothesis]]:
    """Return up to `n_best` translations of every request, the best first.

    Apart from rounding, they do not depend on the other requests in a batch. In a beam, they differ
    in what `text_of` makes of them. Raises NotFiniteError if the model computes NaN or infinity.
    """
    if isinstance(decoder, CpuDecoder) and native_search.can_search(requests, config):
        threads = torch.get_num_threads()
        return native_search.search([decoder.native_model], requests, config, text_of, threads)
    width = config.n_best if config.sampling else config.width
    lengths = [len(request.src) for request in requests]
    results: list[list[Hypothesis]] = [[] for _ in requests]
    for numbers in bucket_by_length(lengths, lengths, config.tokens_per_batch // width):
        batch_requests = [requests[i] for i in numbers]
        rules = LogitRules(batch_requests, config, word_rules, decoder.device)
        batch = ActiveBatch(decoder, batch_requests, rules)
        strategy: BeamSearch | GreedySearch
        if config.width > 1:
            strategy = BeamSearch(batch, config, text_of)
        else:
            strategy = GreedySearch(batch, config, decoder.vocab_size)
        while batch.active:
            strategy.advance(batch.state.logits(batch.last_BW))
            batch.drop(strategy.finished())
        for i, hypotheses in zip(numbers, strategy.hypotheses(), strict=True):
            results[i] = hypotheses
    return results
