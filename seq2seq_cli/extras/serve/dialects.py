"""What all interfaces of the server share: languages, tokens, texts to translations."""

import asyncio
import contextlib
import hmac
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from starlette.requests import Request

from seq2seq_cli.config.languages import LanguagePair, language_name
from seq2seq_cli.extras.serve.language_codes import find_language
from seq2seq_cli.extras.serve.language_detection import Detected, detect
from seq2seq_cli.extras.serve.request_errors import CLIENT_GONE, RequestError, invalid
from seq2seq_cli.extras.serve.request_fields import Fields, Limits, check_length
from seq2seq_cli.extras.serve.scheduler import (
    OverloadedError,
    TranslationLostError,
    UntranslatableError,
)
from seq2seq_cli.extras.serve.service import TranslationService
from seq2seq_cli.extras.serve.text_translation import RequestTranslation, TranslatedText, Wanted
from seq2seq_cli.extras.serve.turns import Turns

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

_SURE = 50.0  # confidence from which on a text is taken to be in the target language already
_MOST_WITH_ATTENTION = 1_000  # characters: attention grows with the square of their number


class Route(NamedTuple):
    """The run that a text goes through (None: none, it is in the target language), and why."""

    run: int | None
    detected: Detected | None = None  # if the source language was not given


@dataclass
class Translations:
    """The translations of a request's texts, in order."""

    texts: list[TranslatedText]
    detected: list[Detected | None]


class Dialects:
    """The service as HTTP interfaces use it."""

    def __init__(
        self,
        service: TranslationService,
        limits: Limits,
        token: str | None = None,
        *,
        logs_text: bool = False,
    ) -> None:
        self.service = service
        self.limits = limits
        self.token = token
        self._logs_text = logs_text

    @property
    def pairs(self) -> list[LanguagePair]:
        """The languages of each run."""
        return [run.languages for run in self.service.runs]

    @property
    def sources(self) -> list[str]:
        return list(dict.fromkeys(pair.src for pair in self.pairs))

    @property
    def languages(self) -> list[str]:
        """All languages: sources, and those that are targets only."""
        return list(dict.fromkeys([*self.sources, *(pair.tgt for pair in self.pairs)]))

    def check_token(self, request: Request, fields: Fields | None = None) -> None:
        """Raise RequestError unless the request has the token, if there is one.

        It may be in the header Authorization, in the query, or in the field api_key.
        """
        if self.token is None:
            return
        _, _, of_header = request.headers.get("authorization", "").partition(" ")
        given = [of_header.strip(), request.query_params.get("token", "")]
        if fields is not None:
            given.append(fields.text("api_key", ""))
        if not any(given):
            raise RequestError(400, "Please contact the server operator to get an API key")
        wanted = self.token.encode()
        if not any(hmac.compare_digest(each.encode("utf-8", "replace"), wanted) for each in given):
            raise RequestError(403, "Invalid API key")

    def route(self, text: str, source: str, target: str) -> Route:
        """Return the first run of a pair of languages; the source may be `auto`.

        Raises RequestError for languages that no run has.
        """
        tgt = find_language(target, self.languages)
        if tgt is None:
            raise RequestError(400, f"{target} is not supported")
        if source.lower() == "auto":
            return self._detected_route(text, tgt)
        src = find_language(source, self.languages)
        if src is None:
            raise RequestError(400, f"{source} is not supported")
        return Route(None if src == tgt else self._run_of(src, tgt))

    def _detected_route(self, text: str, tgt: str) -> Route:
        """Return the most probable source; text that is surely in the target language stays."""
        sources = [pair.src for pair in self.pairs if pair.tgt == tgt] or self.sources
        found = detect(text, dict.fromkeys([*sources, tgt]))
        if found[0].language == tgt and found[0].confidence >= _SURE:
            return Route(None, found[0])
        best = next(each for each in found if each.language != tgt)
        return Route(self._run_of(best.language, tgt), best)

    def _run_of(self, src: str, tgt: str) -> int:
        for number, pair in enumerate(self.pairs):
            if (pair.src, pair.tgt) == (src, tgt):
                return number
        raise RequestError(
            400,
            f"{language_name(tgt)} ({tgt}) is not available as a target language from "
            f"{language_name(src)} ({src})",
        )

    async def translate(
        self, request: Request, texts: Sequence[str], source: str, target: str, wanted: Wanted
    ) -> Translations:
        """Translate the texts of a request; leave if its client does.

        Raises RequestError.
        """
        async with self.in_time():
            routes, translated = await unless_gone(
                request, self._translated(texts, source, target, wanted)
            )
        if self._logs_text:
            for text, (translation_of_text, *_) in zip(texts, translated, strict=True):
                logger.info(f"{source} to {target}: {text!r}: {translation_of_text!r}")
        return Translations(translated, [route.detected for route in routes])

    async def _translated(
        self, texts: Sequence[str], source: str, target: str, wanted: Wanted
    ) -> tuple[list[Route], list[TranslatedText]]:
        routes, translation = await self.submit(texts, source, target, wanted)
        with contextlib.closing(translation):
            return routes, await translation.whole()

    async def submit(
        self, texts: Sequence[str], source: str, target: str, wanted: Wanted
    ) -> tuple[list[Route], RequestTranslation]:
        """Let the texts of a request wait for their translation.

        Raises RequestError for what is not served and for too much text, OverloadedError if the
        queue is full.
        """
        check_length(texts, self.limits)
        num_characters = sum(map(len, texts))
        if wanted.attention and num_characters > _MOST_WITH_ATTENTION:
            raise invalid(f"attention takes at most {_MOST_WITH_ATTENTION} characters")
        turns = Turns(self.service.long_text_thread, num_characters)
        routes = [await turns.call(self.route, text, source, target) for text in texts]
        runs = [(text, route.run) for text, route in zip(texts, routes, strict=True)]
        return routes, await RequestTranslation.submit(self.service, runs, wanted, turns)

    @asynccontextmanager
    async def in_time(self, deadline: float | None = None) -> AsyncIterator[None]:
        """Limit the time of a block, and raise RequestError where the service refuses or fails.

        `deadline` is one of the event loop's time, if it is not `limits.seconds` from now.
        """
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + self.limits.seconds
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            message = f"Slowdown: no answer within {self.limits.seconds:g} s"
            raise RequestError(503, message, retry_after=5) from None
        except OverloadedError as error:
            raise RequestError(503, f"Slowdown: {error}", error.retry_after) from None
        except TranslationLostError as error:
            raise RequestError(503, str(error), retry_after=5) from None
        except UntranslatableError as error:
            raise RequestError(400, str(error)) from None


async def unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result, or cancel the work when the client closes the connection."""
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError(CLIENT_GONE, "the client has closed the connection")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
