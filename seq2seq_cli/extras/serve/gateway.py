"""What all dialects share: fields and tokens, languages to runs, texts to translations."""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple

from starlette.requests import Request

from seq2seq_cli.config.languages import LanguagePair, language_name
from seq2seq_cli.extras.serve.documents.document import Document
from seq2seq_cli.extras.serve.documents.formats import Reader, words_of
from seq2seq_cli.extras.serve.languages import Detected, detect, find_language
from seq2seq_cli.extras.serve.request_fields import Fields, Limits, check_length
from seq2seq_cli.extras.serve.responses import CLIENT_GONE, RequestError, invalid, is_deepl
from seq2seq_cli.extras.serve.scheduler import Submission
from seq2seq_cli.extras.serve.service import OTHER_LANGUAGES, TranslationService
from seq2seq_cli.extras.serve.text_translation import (
    TextTranslation,
    TranslatedText,
    TranslationOptions,
)

Given = TypeVarTuple("Given")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

_MIN_CONFIDENCE = 50.0  # at which a text is taken to be in the target language already
MAX_WITH_ATTENTION = 1_000  # characters: attention grows with the square of their number
_MAX_AT_ONCE = 2_000  # characters of a request that needs no thread


@dataclass(frozen=True)
class Gateway:
    """The translation service as dialects use it."""

    service: TranslationService
    limits: Limits
    token: str | None  # that requests need
    logs_text: bool

    @property
    def pairs(self) -> list[LanguagePair]:
        """The languages of each run."""
        return [run.languages for run in self.service.runs]

    @property
    def languages(self) -> list[str]:
        """All languages: sources, then those that are targets only."""
        return list(dict.fromkeys(code for side in zip(*self.pairs, strict=True) for code in side))

    async def fields(self, request: Request) -> Fields:
        """Read the fields of a request and check its token; raises RequestError."""
        async with self.in_time():
            fields = await Fields.read(request, self.limits)
        self.check_token(request, fields.text("api_key", ""))
        return fields

    def check_token(self, request: Request, api_key: str = "") -> None:
        """Raise RequestError unless the request has the token, if there is one.

        It may be in the header Authorization, in the query, or in the field api_key.
        """
        if self.token is None:
            return
        _, _, in_header = request.headers.get("authorization", "").partition(" ")
        given = [in_header.strip(), request.query_params.get("token", ""), api_key]
        if not any(given) and not is_deepl(request.scope):
            raise RequestError(400, "Please contact the server operator to get an API key")
        expected, tokens = self.token.encode(), [each.encode("utf-8", "replace") for each in given]
        if not any(hmac.compare_digest(token, expected) for token in tokens):
            raise RequestError(403, "Invalid API key")

    def route(
        self, text: str, read: Reader, source: str, target: str
    ) -> tuple[int | None, Detected | None]:
        """Return the run that translates a text, and its language if `source` is auto.

        The run is None if the text is in the target language. Raises RequestError if no run has the
        languages.
        """

        def known(asked: str, of_pairs: list[str]) -> str:
            found = find_language(asked, of_pairs) or find_language(asked, self.languages)
            if found is None:
                raise RequestError(400, f"{asked} is not supported")
            return found

        tgt = known(target, [pair.tgt for pair in self.pairs])
        sources = [pair.src for pair in self.pairs if pair.tgt == tgt]
        detected: Detected | None = None
        if source.lower() == "auto":
            sources = sources or [pair.src for pair in self.pairs]
            detected, *others = detect(words_of(text, read), dict.fromkeys([*sources, tgt]))
            if detected.language == tgt and detected.confidence < _MIN_CONFIDENCE:
                if not others:
                    message = f"{language_name(tgt)} ({tgt}) is not available as a target language"
                    raise RequestError(400, message)
                detected = others[0]
        src = detected.language if detected else known(source, sources)
        if src == tgt:
            return None, detected
        if (src, tgt) not in self.pairs:
            raise RequestError(
                400,
                f"{language_name(tgt)} ({tgt}) is not available as a target language from "
                f"{language_name(src)} ({src})",
            )
        return self.pairs.index(LanguagePair(src, tgt)), detected

    async def translate(
        self,
        request: Request,
        texts: Sequence[str],
        source: str,
        target: str,
        options: TranslationOptions,
    ) -> list[TranslatedText]:
        """Translate texts in order; stop if the client disconnects. Raises RequestError."""

        async def work() -> list[TranslatedText]:
            read_texts, submission = await self.submit(texts, source, target, options)
            with contextlib.closing(submission):
                results = iter(submission.results)
                translated = []
                for text in read_texts:
                    outputs = [await next(results) for _ in text.sentences]
                    translated.append(await self.in_turn(texts, text.whole, outputs))
                return translated

        async with self.in_time():
            translated = await unless_gone(request, work())
        for text, translation in zip(texts, translated, strict=True):
            self.log_text(source, target, text, translation.text)
        return translated

    async def submit(
        self, texts: Sequence[str], source: str, target: str, options: TranslationOptions
    ) -> tuple[list[TextTranslation], Submission]:
        """Queue the sentences of texts.

        Raises RequestError if the languages are not served, or there is too much text, or the queue
        is full.
        """
        check_length(texts, self.limits)
        if options.search.attention and sum(map(len, texts)) > MAX_WITH_ATTENTION:
            raise invalid(f"attention takes at most {MAX_WITH_ATTENTION} characters")
        runs, pairs = self.service.runs, self.pairs

        def read(text: str) -> TextTranslation:
            run, detected = self.route(text, options.read, source, target)
            if run is None:
                return TextTranslation(Document((text,)), 0, options, detected)
            document = options.read(text, runs[run].splitter)
            return TextTranslation(document, run, options, detected)

        read_texts = [await self.in_turn(texts, read, text) for text in texts]
        if self.pairs != pairs:  # while a thread read the texts
            raise RequestError(503, OTHER_LANGUAGES, retry_after=5)
        sentences = [sentence for text in read_texts for sentence in text.sentences]
        return read_texts, self.service.submit(sentences)

    def log_text(self, source: str, target: str, text: str, translation: str) -> None:
        """Log a text and its translation, if the server logs texts."""
        if self.logs_text:
            logger.info(f"{source} to {target}: {text!r}: {translation!r}")

    async def in_turn(
        self, texts: Sequence[str], work: Callable[[*Given], Result], *args: *Given
    ) -> Result:
        """Call work on one of a request's texts; if they are long, in a thread for all requests.

        Requests take turns there, so that a canceled one works on at most one more text.
        """
        if sum(map(len, texts)) <= _MAX_AT_ONCE:
            return work(*args)
        thread = self.service.long_text_thread
        return await asyncio.get_running_loop().run_in_executor(thread, work, *args)

    @asynccontextmanager
    async def in_time(self, deadline: float | None = None) -> AsyncIterator[None]:
        """Limit the time of a block; raises RequestError when it is over.

        `deadline` is a time of the event loop; the default is `limits.seconds` from now.
        """
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            message = f"Slowdown: no answer within {self.limits.seconds:g} s"
            raise RequestError(503, message, retry_after=5) from None


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result, or cancel the work when the client closes the connection."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.create_task(work), asyncio.create_task(disconnect())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError(CLIENT_GONE, "the client has closed the connection")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
