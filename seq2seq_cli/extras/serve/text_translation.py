"""Texts of a request: split into sentences, translated together, and put together again."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from seq2seq_cli.extras.serve.documents.document import Document, Sentence
from seq2seq_cli.extras.serve.documents.document_writer import DocumentWriter
from seq2seq_cli.extras.serve.documents.formats import Reader, read_plain_text
from seq2seq_cli.extras.serve.glossary import Glossary
from seq2seq_cli.extras.serve.languages import Detected
from seq2seq_cli.extras.serve.messages import SearchOptions, SentenceInput, SentenceOutput
from seq2seq_cli.extras.serve.scheduler import Outputs, SentenceToTranslate
from seq2seq_cli.text.words import word_spans


class TranslationOptions(NamedTuple):
    """What reads a request's texts, its terms, and the requested details."""

    read: Reader = read_plain_text
    glossary: Glossary = Glossary({})
    search: SearchOptions = SearchOptions()


class TranslatedSentence(NamedTuple):
    """A sentence of a text, its n best translations, and its positions."""

    source: Sentence
    outputs: Outputs
    new_text: str  # the best translation, with the text between it and the sentence before
    source_start: int  # in the text, if that is plain text
    target_start: int  # in the translated text

    def report(self, options: TranslationOptions) -> dict[str, Any]:
        """Return the requested details for JSON; positions count code points."""
        search = options.search
        has_words = search.alignment or search.attention

        def report_output(output: SentenceOutput) -> dict[str, Any]:
            details: dict[str, Any] = {"target": output.text}
            if has_words:
                details["targetWords"] = word_spans(output.text)
            if search.alignment:
                details["alignment"] = output.alignment
            if search.attention:
                details["attention"] = output.attention
            if search.log_probs:
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
        if search.n_best > 1:
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
        self._n_best = options.search.n_best
        self._document = document
        self._positions = iter(zip(document.sentences, document.sentence_starts(), strict=True))
        self.writer = DocumentWriter(document)
        self._length = 0  # of the translation so far
        self.sentences: list[SentenceToTranslate] = []
        for sentence in document.sentences:
            required = options.glossary.required_in(sentence.text)
            search = options.search._replace(
                with_constraints=bool(required),
                alignment=options.search.alignment or sentence.needs_alignment,
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
        for number in range(1, self._n_best):
            writer, other = DocumentWriter(self._document), ""
            for outputs in all_outputs:
                other += writer.add(outputs[min(number, len(outputs) - 1)])
            alternatives[other + writer.rest()] = None
        alternatives.pop(text, None)
        return TranslatedText(text, [*alternatives], sentences, self.detected)
