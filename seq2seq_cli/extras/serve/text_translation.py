"""Texts of a request: taken apart into sentences, translated together, and put together again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from seq2seq_cli.extras.serve.documents.document import Document, Sentence, SentenceTranslation
from seq2seq_cli.extras.serve.documents.document_writer import DocumentWriter
from seq2seq_cli.extras.serve.documents.formats import READERS, FormatName
from seq2seq_cli.extras.serve.glossary import Glossary
from seq2seq_cli.extras.serve.messages import SearchOptions, SentenceInput, SentenceOutput
from seq2seq_cli.extras.serve.scheduler import Outputs, SentenceToTranslate
from seq2seq_cli.extras.serve.service import PendingTranslations, TranslationService
from seq2seq_cli.extras.serve.turns import Turns
from seq2seq_cli.text.words import word_spans


@dataclass(frozen=True)
class Wanted:
    """What a request asks for beside the translation."""

    format: FormatName = "text"
    alternatives: int = 0
    glossary: Glossary | None = None
    alignments: bool = False
    attention: bool = False
    log_probs: bool = False

    @property
    def has_details(self) -> bool:
        return self.alignments or self.attention or self.log_probs

    def of(self, sentence: Sentence, run: int) -> SentenceToTranslate:
        """Return a sentence with what is asked of the search."""
        required = self.glossary.required_in(sentence.text) if self.glossary else ()
        options = SearchOptions(
            n_best=1 + self.alternatives,
            with_constraints=bool(required),
            alignment=self.alignments or sentence.needs_alignment,
            attention=self.attention,
            log_probs=self.log_probs,
        )
        return SentenceToTranslate(run, SentenceInput(sentence.text, required), options)


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
        finite = [number if math.isfinite(number) else None for number in output.log_probs]
        details |= {"tokens": output.tokens, "logProbs": finite}
    return details


class TranslatedText(NamedTuple):
    """A text's translation; an alternative has that of every sentence."""

    text: str
    alternatives: list[str]
    sentences: list[TranslatedSentence]


class TextTranslation:
    """One text on its way through one run; without a run it stays as it is."""

    def __init__(self, text: str, run: int | None, document: Document, wanted: Wanted) -> None:
        self._text = text
        self._document = document
        self._wanted = wanted
        self._writer = DocumentWriter(document)
        self._places = iter(zip(document.sentences, document.sentence_starts(), strict=True))
        self._length = 0  # of the translation so far
        self.sentences = (
            [] if run is None else [wanted.of(sentence, run) for sentence in document.sentences]
        )

    @classmethod
    def read(cls, service: TranslationService, text: str, run: int | None, wanted: Wanted) -> Self:
        """Take a text apart."""
        if run is None:
            return cls(text, None, Document((text,)), wanted)
        document = READERS[wanted.format](text, service.runs[run].splitter)
        return cls(text, run, document, wanted)

    def add(self, outputs: Outputs) -> TranslatedSentence:
        """Add the n best translations of the next sentence."""
        sentence, start = next(self._places)
        best = outputs[0]
        new_text = self._writer.add(SentenceTranslation(best.text, best.alignment))
        self._length += len(new_text)
        return TranslatedSentence(sentence, outputs, new_text, start, self._length - len(best.text))

    def rest(self) -> str:
        """Return the end of the translated text, after all sentences."""
        return self._writer.rest()

    def whole(self, outputs: Sequence[Outputs]) -> TranslatedText:
        """Return the translation, given the n best translations of all sentences."""
        sentences = [self.add(each) for each in outputs]
        text = "".join(sentence.new_text for sentence in sentences) + self.rest()
        alternatives = [
            self._alternative(sentences, n) for n in range(1, 1 + self._wanted.alternatives)
        ]
        unique = [other for other in dict.fromkeys(alternatives) if other != text]
        return TranslatedText(text, unique, list(sentences))

    def _alternative(self, sentences: Sequence[TranslatedSentence], number: int) -> str:
        writer, text = DocumentWriter(self._document), ""
        for sentence in sentences:
            output = sentence.outputs[min(number, len(sentence.outputs) - 1)]
            text += writer.add(SentenceTranslation(output.text, output.alignment))
        return text + writer.rest()


class RequestTranslation:
    """The texts of a request, whose sentences have been accepted; `close` gives them up."""

    def __init__(
        self, texts: Sequence[TextTranslation], pending: PendingTranslations, turns: Turns
    ) -> None:
        self._texts = texts
        self._pending = pending
        self._turns = turns

    @classmethod
    async def submit(
        cls,
        service: TranslationService,
        texts: Sequence[tuple[str, int | None]],
        wanted: Wanted,
        turns: Turns,
    ) -> Self:
        """Take texts apart, each for a run or none, and let their sentences wait.

        Raises OverloadedError if the queue is full.
        """
        read = [
            await turns.call(TextTranslation.read, service, text, run, wanted)
            for text, run in texts
        ]
        sentences = [sentence for text in read for sentence in text.sentences]
        return cls(read, service.submit(sentences), turns)

    async def whole(self) -> list[TranslatedText]:
        """Return the translations of all texts.

        Raises what `PendingTranslations.next` raises.
        """
        translated = []
        for text in self._texts:
            outputs = [await self._pending.next() for _ in text.sentences]
            translated.append(await self._turns.call(text.whole, outputs))
        return translated

    @property
    def num_sentences(self) -> int:
        return sum(len(text.sentences) for text in self._texts)

    async def next_sentence(self) -> TranslatedSentence:
        """Return the next sentence of the only text."""
        (text,) = self._texts
        return text.add(await self._pending.next())

    def rest(self) -> str:
        """Return the end of the only text's translation."""
        (text,) = self._texts
        return text.rest()

    def close(self) -> None:
        """Let the sentences that are not translated yet leave the queue."""
        self._pending.close()
