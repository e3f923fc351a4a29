"""Texts of a request: taken apart into sentences, translated, and put together again."""

import functools
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from seq2seq_cli.documents.document import Sentence, SentenceTranslation
from seq2seq_cli.documents.document_writer import DocumentWriter
from seq2seq_cli.documents.formats import READERS, FormatName
from seq2seq_cli.serving.messages import SearchOptions, SentenceInput, SentenceOutput
from seq2seq_cli.serving.scheduler import Outputs
from seq2seq_cli.serving.service import TranslationService
from seq2seq_cli.text.words import continues_word, word_spans


@dataclass(frozen=True)
class Wanted:
    """What a request asks for beside the translation."""

    format: FormatName = "text"
    alternatives: int = 0
    glossary: tuple[tuple[str, str], ...] = ()  # terms, and what they are translated as
    alignments: bool = False
    attention: bool = False
    log_probs: bool = False

    @property
    def has_details(self) -> bool:
        return self.alignments or self.attention or self.log_probs

    def input_of(self, sentence: Sentence) -> tuple[SentenceInput, SearchOptions]:
        """Return a sentence with what is asked of the search."""
        required = tuple(
            translation
            for term, translation in self.glossary
            if _term_pattern(term).search(sentence.text)
        )
        options = SearchOptions(
            n_best=1 + self.alternatives,
            with_constraints=bool(required),
            alignment=self.alignments or sentence.needs_alignment,
            attention=self.attention,
            log_probs=self.log_probs,
        )
        return SentenceInput(sentence.text, required), options


@functools.lru_cache(maxsize=1_000)
def _term_pattern(term: str) -> re.Pattern[str]:
    """Return what finds a term as whole words, where spaces separate words."""
    term = " ".join(term.split())
    before = r"(?<!\w)" if continues_word(term[0]) else ""
    after = r"(?!\w)" if continues_word(term[-1]) else ""
    return re.compile(before + re.escape(term).replace(r"\ ", r"\s+") + after, re.IGNORECASE)


class TranslatedSentence(NamedTuple):
    """A sentence of a text, its n best translations, and where they stand."""

    source: Sentence
    outputs: Outputs
    new_text: str  # what the best one adds to the translated text, with what is before it
    source_start: int  # in the text, if that is plain text
    target_start: int  # in the translated text

    def report(self, wanted: Wanted) -> dict[str, Any]:
        """Return the details that are asked for, for JSON; positions count code points."""
        source, (best, *others) = self.source.text, self.outputs
        details: dict[str, Any] = {"source": source}
        if wanted.format == "text":
            details |= {"sourceStart": self.source_start, "targetStart": self.target_start}
        if wanted.alignments or wanted.attention:
            details["sourceWords"] = word_spans(source)
        details |= _output_details(best, wanted)
        if wanted.alternatives:
            details["alternatives"] = [_output_details(other, wanted) for other in others]
        return details


def _output_details(output: SentenceOutput, wanted: Wanted) -> dict[str, Any]:
    details: dict[str, Any] = {"target": output.text}
    if wanted.alignments or wanted.attention:
        details["targetWords"] = word_spans(output.text)
    if wanted.alignments:
        details["alignment"] = output.alignment
    if wanted.attention:
        details["attention"] = output.attention
    if wanted.log_probs:
        details |= {"tokens": output.tokens, "logProbs": output.log_probs}
    return details


class TranslatedText(NamedTuple):
    """A text's translation; an alternative has that of every sentence."""

    text: str
    alternatives: list[str]
    sentences: list[TranslatedSentence]


class TextTranslation:
    """One text on its way through one run."""

    def __init__(self, service: TranslationService, run: int, text: str, wanted: Wanted) -> None:
        self._service = service
        self._run = run
        self._wanted = wanted
        self._document = READERS[wanted.format](text, service.runs[run].splitter)
        self._writer = DocumentWriter(self._document)

    async def sentences(self) -> AsyncIterator[TranslatedSentence]:
        """Yield one sentence after the other as they are translated.

        Raises what `TranslationService.stream` raises.
        """
        sentences = self._document.sentences
        inputs = [self._wanted.input_of(sentence) for sentence in sentences]
        places = iter(zip(sentences, self._document.sentence_starts(), strict=True))
        length = 0
        async for outputs in self._service.stream(self._run, inputs):
            sentence, start = next(places)
            best = outputs[0]
            new_text = self._writer.add(SentenceTranslation(best.text, best.alignment))
            length += len(new_text)
            yield TranslatedSentence(sentence, outputs, new_text, start, length - len(best.text))

    def rest(self) -> str:
        """Return the end of the translated text, after all sentences."""
        return self._writer.rest()

    async def whole(self) -> TranslatedText:
        """Return the text's translation when all its sentences are translated."""
        sentences = [sentence async for sentence in self.sentences()]
        text = "".join(sentence.new_text for sentence in sentences) + self.rest()
        alternatives = [
            self._alternative(sentences, n) for n in range(1, 1 + self._wanted.alternatives)
        ]
        unique = [other for other in dict.fromkeys(alternatives) if other != text]
        return TranslatedText(text, unique, sentences)

    def _alternative(self, sentences: list[TranslatedSentence], number: int) -> str:
        writer, text = DocumentWriter(self._document), ""
        for sentence in sentences:
            output = sentence.outputs[min(number, len(sentence.outputs) - 1)]
            text += writer.add(SentenceTranslation(output.text, output.alignment))
        return text + writer.rest()
