"""Requests for a search, made of lines that have been cut into segments."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.decoding.backends import banned_words
from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.requests import Hypothesis, Phrase, Request, WordEnds
from seq2seq_cli.decoding.target_words import TargetWords
from seq2seq_cli.decoding.translation import TranslationInput, naming_line
from seq2seq_cli.errors import UserError
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, Tokenizer

Search = Callable[[Sequence[Request]], list[list[Hypothesis]]]


class RequestBuilder:
    """Makes a request of each segment: ids, length limits, prefix, required phrases."""

    def __init__(self, tokenizer: Tokenizer, options: DecodingConfig, search: Search) -> None:
        """`tokenizer` is the target's; `search` shows which segment a phrase costs least."""
        self._tokenizer = tokenizer
        self._options = options
        self._search = search

    def build(
        self,
        inputs: Sequence[TranslationInput],
        segments: Sequence[Sequence[Segment]],
        first_number: int,
    ) -> list[Request]:
        """Return the requests of all segments in order; `segments`: of each input."""
        requests: list[Request] = []
        options = self._options
        # An error in requirements names its line, unless all lines have the same ones.
        differ = len({(line.prefix, line.required) for line in inputs}) > 1
        for number, (line, of_line) in enumerate(zip(inputs, segments, strict=True), first_number):
            new: list[Request] = []
            for place, segment in enumerate(of_line):
                src = [*segment.src_ids, EOS_ID]
                most = options.max_length(len(segment.src_ids))
                least = int(options.min_len_factor * len(segment.src_ids)) + options.min_len_extra
                new.append(Request(src, most, min(least, most), number=number, segment=place))
            with naming_line(number if differ else None):
                phrases = [self._phrase(text) for text in line.required if text.strip()]
                if phrases and (options.width == 1 or options.diversity_groups > 1):
                    raise UserError(
                        "required words need a beam search (--beam-size 5) without groups"
                    )
                if new and line.prefix:  # the translation of the first segment begins with it
                    prefix, after = self._words.prefix(line.prefix)
                    self._refuse_banned(line.prefix, {prefix}, after)
                    room = max(new[0].max_length, len(prefix))
                    new[0] = replace(new[0], prefix=prefix, after_prefix=after, max_length=room)
                requests += self._with_phrases(new, phrases) if phrases else new
        return requests

    @functools.cached_property
    def _words(self) -> TargetWords:
        return TargetWords(self._tokenizer)

    def _phrase(self, text: str) -> Phrase:
        phrase = self._words.phrase(text)
        self._refuse_banned(text, {phrase.first, phrase.inner}, phrase.word_ends)
        return phrase

    def _refuse_banned(
        self, text: str, spellings: set[tuple[int, ...]], word_ends: WordEnds | None
    ) -> None:
        """Raise UserError if a text must occur, but the search forbids each of its spellings."""
        if not self._options.banned_words:
            return
        rule = banned_words(tuple(self._options.banned_words), self._tokenizer)
        end = [EOS_ID] if word_ends else []  # the word may not continue
        if not any(rule.allows([*ids, *end]) for ids in spellings):
            raise UserError(f"{text!r} is required, but contains a banned word")

    def _with_phrases(
        self, requests: Sequence[Request], phrases: Sequence[Phrase]
    ) -> list[Request]:
        """Require each phrase in the segment whose score it lowers least."""
        if len(requests) < 2:
            return [_requiring(request, phrases) for request in requests]
        free = [hypotheses[0].score for hypotheses in self._search(requests)]
        required: list[list[Phrase]] = [[] for _ in requests]
        for phrase in phrases:
            results = self._search([_requiring(request, [phrase]) for request in requests])
            losses = [score - best.score for score, (best, *_) in zip(free, results, strict=True)]
            required[losses.index(min(losses))].append(phrase)
        return [_requiring(*pair) for pair in zip(requests, required, strict=True)]


def _requiring(request: Request, phrases: Sequence[Phrase]) -> Request:
    needed = sum(max(len(phrase.first), len(phrase.inner)) for phrase in phrases)
    needed += len(request.prefix)
    return replace(request, required=tuple(phrases), max_length=max(request.max_length, needed))
