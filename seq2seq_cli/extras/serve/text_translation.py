"""Texts of a request: split into sentences, translated together, and put together again."""

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

from seq2seq_cli.extras.serve.documents.document import Document, Sentence
from seq2seq_cli.extras.serve.documents.document_writer import DocumentWriter
from seq2seq_cli.extras.serve.documents.formats import Reader, read_plain_text
from seq2seq_cli.extras.serve.glossary import Glossary
from seq2seq_cli.extras.serve.languages import Detected
from seq2seq_cli.extras.serve.messages import SearchOptions, SentenceInput, SentenceOutput
from seq2seq_cli.extras.serve.scheduler import Outputs, SentenceToTranslate
from seq2seq_cli.text.words import word_spans

Given = TypeVarTuple("Given")
Result = TypeVar("Result")

_MAX_OUTSIDE = 2_000  # characters of a request that works outside of the thread


@dataclass(frozen=True)
class TranslationOptions:
    """What reads a request's texts, and the requested details."""

    read: Reader = read_plain_text
    alternatives: int = 0
    glossary: Glossary | None = None
    alignments: bool = False
    attention: bool = False
    log_probs: bool = False

    @property
    def has_details(self) -> bool:
        return self.alignments or self.attention or self.log_probs


class TranslatedSentence(NamedTuple):
    """A sentence of a text, its n best translations, and its positions."""

    source: Sentence
    outputs: Outputs
    new_text: str  # the best translation, with the text between it and the sentence before
    source_start: int  # in the text, if that is plain text
    target_start: int  # in the translated text

    def report(self, options: TranslationOptions) -> dict[str, Any]:
        """Return the requested details for JSON; positions count code points."""
        has_words = options.alignments or options.attention

        def report_output(output: SentenceOutput) -> dict[str, Any]:
            details: dict[str, Any] = {"target": output.text}
            if has_words:
                details["targetWords"] = word_spans(output.text)
            if options.alignments:
                details["alignment"] = output.alignment
            if options.attention:
                details["attention"] = output.attention
            if options.log_probs:
                finite = [number if math.isfinite(number) else None for number in output.log_probs]
                details |= {"tokens": output.tokens, "logProbs": finite}
            return details

        source, (best, *others) = self.source.text, self.outputs
        details: dict[str, Any] = {"source": source}
        if options.read is read_plain_text:
            details |= {"sourceStart": self.source_start, "targetStart": self.target_start}
        if has_words:
            details["sourceWords"] = best.source_words
        details |= report_output(best)
        if options.alternatives:
            details["alternatives"] = [report_output(other) for other in others]
        return details


class TranslatedText(NamedTuple):
    """A text's translation; an alternative combines the alternatives of every sentence."""

    text: str
    alternatives: list[str]
    sentences: list[TranslatedSentence]
    detected: Detected | None  # if the source language was not given


class TextTranslation:
    """One text, whose sentences are translated by one run."""

    def __init__(
        self, document: Document, run: int, options: TranslationOptions, detected: Detected | None
    ) -> None:
        """`run` is a number."""
        self.detected = detected
        self._num_alternatives = options.alternatives
        self._document = document
        self._positions = iter(zip(document.sentences, document.sentence_starts(), strict=True))
        self.writer = DocumentWriter(document)
        self._length = 0  # of the translation so far
        self.sentences: list[SentenceToTranslate] = []
        for sentence in document.sentences:
            required = options.glossary.required_in(sentence.text) if options.glossary else ()
            search = SearchOptions(
                n_best=1 + options.alternatives,
                with_constraints=bool(required),
                alignment=options.alignments or sentence.needs_alignment,
                attention=options.attention,
                log_probs=options.log_probs,
            )
            source = SentenceInput(sentence.text, required)
            self.sentences.append(SentenceToTranslate(run, source, search))

    def add(self, outputs: Outputs) -> TranslatedSentence:
        """Add the n best translations of the next sentence."""
        sentence, start = next(self._positions)
        best = outputs[0]
        new_text = self.writer.add(best)
        self._length += len(new_text)
        return TranslatedSentence(sentence, outputs, new_text, start, self._length - len(best.text))

    def whole(self, all_outputs: Sequence[Outputs]) -> TranslatedText:
        """Return the translation, given the n best translations of all sentences."""
        sentences = [self.add(outputs) for outputs in all_outputs]
        text = "".join(sentence.new_text for sentence in sentences) + self.writer.rest()
        alternatives: dict[str, None] = {}
        for number in range(1, 1 + self._num_alternatives):
            writer, other = DocumentWriter(self._document), ""
            for outputs in all_outputs:
                other += writer.add(outputs[min(number, len(outputs) - 1)])
            alternatives[other + writer.rest()] = None
        alternatives.pop(text, None)
        return TranslatedText(text, [*alternatives], sentences, self.detected)


class Turns:
    """The turns of a request in the thread for long texts, one text of each request in turn.

    A canceled request has no further turn, so it works on at most one more text.
    """

    def __init__(self, thread: Executor, num_characters: int) -> None:
        """Short requests do without turns."""
        self._thread = thread if num_characters > _MAX_OUTSIDE else None

    async def call(self, work: Callable[[*Given], Result], *args: *Given) -> Result:
        """Call work on one text in the next turn of this request."""
        if self._thread is None:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *args)
