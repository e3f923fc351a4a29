"""Segments of lines through a search: what is asked for each of them, and what is found."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.data.batches import bucket_by_length
from seq2seq_cli.decoding.engines.base import Decoder
from seq2seq_cli.decoding.merging import Outputs, SegmentResult, merge_segments
from seq2seq_cli.decoding.requests import Hypothesis, Phrase, Request
from seq2seq_cli.decoding.scoring import GivenScore, score_given
from seq2seq_cli.decoding.search import search
from seq2seq_cli.decoding.segmentation import Segment
from seq2seq_cli.decoding.translation import Sentence, Translation
from seq2seq_cli.decoding.word_rules import BannedWords, TargetWords
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.tokenizer import EOS_ID, Tokenizers


class SegmentSearch:
    """A way to search, and all that it needs of a run."""

    def __init__(
        self,
        decoder: Decoder,
        models: Sequence[Transformer],
        tokenizers: Tokenizers,
        options: DecodingConfig,
    ) -> None:
        """`models`, which the decoder was made of, tell log-probabilities and alignments."""
        self._decoder = decoder
        self._models = models
        self._tokenizers = tokenizers
        self._options = options
        self._is_ranked = options.beam_size > 1
        self._banned = (
            BannedWords(options.banned_words, tokenizers.tgt) if options.banned_words else None
        )

    def translations(
        self,
        sentences: Sequence[Sentence],
        segments: Sequence[Sequence[Segment]],
        wanted: Outputs,
        first_number: int,
    ) -> list[list[Translation]]:
        """Of every line, given with its segments, up to `n_best`, the best first, at least one."""
        requests: list[Request] = []
        for line, (sentence, of_line) in enumerate(zip(sentences, segments, strict=True)):
            requests += self._requests(sentence, of_line, first_number + line)
        outputs = self._search(requests)
        found = self._found(list(itertools.chain.from_iterable(segments)), outputs, wanted)
        return [
            merge_segments(
                sentence.text,
                [next(found) for _ in of_line],
                self._tokenizers,
                wanted,
                is_ranked=self._is_ranked,
            )
            for sentence, of_line in zip(sentences, segments, strict=True)
        ]

    def longest(self, src_length: int) -> int:
        """Tokens that a translation of so many source tokens may have."""
        return int(self._options.max_len_factor * src_length) + self._options.max_len_extra

    def shortest(self, src_length: int) -> int:
        """Tokens that it must have."""
        return int(self._options.min_len_factor * src_length) + self._options.min_len_extra

    @functools.cached_property
    def _words(self) -> TargetWords:
        return TargetWords(self._tokenizers.tgt)

    def _requests(
        self, sentence: Sentence, segments: Sequence[Segment], number: int
    ) -> list[Request]:
        """For the segments of a line. A prefix belongs to the first of them."""
        phrases = [self._words.phrase(text) for text in sentence.required if text.strip()]
        if phrases and (not self._is_ranked or self._options.diversity_groups > 1):
            raise UserError("required words need a beam search (--beam-size 5) without groups")
        requests = []
        for place, segment in enumerate(segments):
            longest = self.longest(len(segment.ids))
            request = Request(
                src=[*segment.ids, EOS_ID],
                max_length=longest,
                min_length=min(longest, self.shortest(len(segment.ids))),
                number=number,
                segment=place,
            )
            if place == 0 and sentence.prefix:
                prefix, after_prefix = self._words.prefix(sentence.prefix)
                room = max(longest, len(prefix))
                request = replace(
                    request, prefix=prefix, after_prefix=after_prefix, max_length=room
                )
            requests.append(request)
        if not phrases or not requests:
            return requests
        if len(requests) == 1:
            return [_requiring(requests[0], phrases)]
        return self._share(phrases, requests)

    def _share(self, phrases: Sequence[Phrase], requests: Sequence[Request]) -> list[Request]:
        """Each phrase is required in the segment whose score loses least by it."""
        free = [hypotheses[0].score for hypotheses in self._search(requests)]
        of_pieces: list[list[Phrase]] = [[] for _ in requests]
        for phrase in phrases:
            found = self._search([_requiring(request, [phrase]) for request in requests])
            losses = [score - one[0].score for score, one in zip(free, found, strict=True)]
            of_pieces[losses.index(min(losses))].append(phrase)
        return [_requiring(*both) for both in zip(requests, of_pieces, strict=True)]

    def _search(self, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """In batches of like length; results in the order of the requests."""
        options = self._options
        outputs: list[list[Hypothesis]] = [[] for _ in requests]
        lengths = np.array([len(request.src) for request in requests], dtype=np.int32)
        width = options.n_best if options.sampling else options.beam_size
        text_of = self._tokenizers.tgt.to_text if options.n_best > 1 else None
        for batch in bucket_by_length(lengths, lengths, options.tokens_per_batch // width):
            asked = [requests[i] for i in batch]
            found = search(self._decoder, asked, options, self._banned, text_of)
            for i, hypotheses in zip(batch, found, strict=True):
                outputs[i] = hypotheses
        return outputs

    def _found(
        self, segments: Sequence[Segment], outputs: Sequence[Sequence[Hypothesis]], wanted: Outputs
    ) -> Iterator[list[SegmentResult]]:
        """The translations of each segment, with what else is wanted of them."""
        options = self._options
        forced: Iterator[GivenScore | None] = itertools.repeat(None)
        if any(wanted) or options.replace_unk:
            pairs = [
                (segment.ids, one.ids)
                for segment, hypotheses in zip(segments, outputs, strict=True)
                for one in hypotheses
            ]
            aligned = wanted.alignment or options.replace_unk
            limit = options.tokens_per_batch
            forced = iter(score_given(self._models, pairs, limit, with_attention=aligned))
        for segment, hypotheses in zip(segments, outputs, strict=True):
            yield [
                SegmentResult(
                    segment, one.ids, one.score if self._is_ranked else None, next(forced)
                )
                for one in hypotheses
            ]


def _requiring(request: Request, phrases: Sequence[Phrase]) -> Request:
    needed = len(request.prefix) + sum(phrase.length for phrase in phrases)
    return replace(request, required=tuple(phrases), max_length=max(request.max_length, needed))
