"""LibreTranslate's interface, which browsers' add-ons, editors and forums speak, and more fields.

Written from its contract: the same requests get the same answers, with the same errors.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as Path
from starlette.types import Receive, Scope, Send

from seq2seq_cli.config.languages import language_name
from seq2seq_cli.extras.serve.dialects import Dialects, Route, unless_gone
from seq2seq_cli.extras.serve.documents.formats import READERS
from seq2seq_cli.extras.serve.glossary import Glossary
from seq2seq_cli.extras.serve.json_response import Json
from seq2seq_cli.extras.serve.language_detection import Detected, detect
from seq2seq_cli.extras.serve.request_errors import RequestError, invalid
from seq2seq_cli.extras.serve.request_fields import Fields, check_length
from seq2seq_cli.extras.serve.text_translation import RequestTranslation, TranslatedText, Wanted
from seq2seq_cli.extras.serve.turns import Turns


class LibreTranslate:
    """The handlers of its paths."""

    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects
        self.paths = [
            Path("/translate", self.translate, methods=["POST"]),
            Path("/languages", self.languages, methods=["GET", "POST"]),
            Path("/detect", self.detect, methods=["POST"]),
            Path("/frontend/settings", self.settings),
        ]

    async def translate(self, request: Request) -> Response:
        """Translate a text or a list of texts."""
        fields = await self._fields(request)
        texts = fields.texts("q")
        source, target = fields.text("source"), fields.text("target")
        wanted = self._wanted(fields)
        if fields.flag("stream"):
            return await self._stream(request, texts, source, target, wanted)
        many = texts if isinstance(texts, list) else [texts]
        done = await self._dialects.translate(request, many, source, target, wanted)
        reports = [
            self._report(text, detected, wanted, is_auto=source.lower() == "auto")
            for text, detected in zip(done.texts, done.detected, strict=True)
        ]
        if not isinstance(texts, list):
            return Json(reports[0])
        names = [*reports[0]] if reports else ["translatedText"]
        return Json({name: [report[name] for report in reports] for name in names})

    def _wanted(self, fields: Fields) -> Wanted:
        text_format = fields.text("format", "text") or "text"
        if text_format not in READERS:
            raise invalid(f"{text_format} format is not supported")
        most = self._dialects.limits.alternatives
        return Wanted(
            format=text_format,
            alternatives=fields.whole_number("alternatives", most),
            glossary=Glossary(fields.glossary("glossary")),
            alignments=fields.flag("alignments"),
            attention=fields.flag("attention"),
            log_probs=fields.flag("log_probs"),
        )

    def _report(
        self, text: TranslatedText, detected: Detected | None, wanted: Wanted, *, is_auto: bool
    ) -> dict[str, Any]:
        report: dict[str, Any] = {"translatedText": text.text}
        if is_auto:
            report["detectedLanguage"] = _detected(detected)
        if wanted.alternatives:
            report["alternatives"] = text.alternatives
        if wanted.has_details:
            report["sentences"] = [sentence.report(wanted) for sentence in text.sentences]
        return report

    async def _stream(
        self, request: Request, text: str | list[str], source: str, target: str, wanted: Wanted
    ) -> Response:
        """Answer with server-sent events: one for each sentence, then one with the whole text."""
        if isinstance(text, list):
            raise invalid("stream takes one text")
        deadline = asyncio.get_running_loop().time() + self._dialects.limits.seconds
        async with self._dialects.in_time(deadline):
            (route,), translation = await unless_gone(
                request, self._dialects.submit([text], source, target, wanted)
            )
        return _EventStream(self._events(translation, route, wanted, deadline), translation)

    async def _events(
        self, translation: RequestTranslation, route: Route, wanted: Wanted, deadline: float
    ) -> AsyncIterator[bytes]:
        whole = ""
        try:
            for _ in range(translation.num_sentences):
                async with self._dialects.in_time(deadline):
                    sentence = await translation.next_sentence()
                whole += sentence.new_text
                details = sentence.report(wanted) if wanted.has_details else {}
                yield _event("sentence", {"text": sentence.new_text, **details})
        except RequestError as error:
            refusal = {"error": error.message, "status": error.status}
            yield _event("error", refusal | error.headers)
            return
        report: dict[str, Any] = {"translatedText": whole + translation.rest()}
        if route.detected is not None:
            report["detectedLanguage"] = _detected(route.detected)
        yield _event("done", report)

    async def languages(self, request: Request) -> Response:
        """List the languages, each with those that it can be translated to."""
        pairs = self._dialects.pairs
        return Json(
            [
                {
                    "code": code,
                    "name": language_name(code),
                    "targets": list(dict.fromkeys(tgt for src, tgt in pairs if src == code)),
                }
                for code in self._dialects.languages
            ]
        )

    async def detect(self, request: Request) -> Response:
        """List the languages by how probable it is that the text is in them."""
        fields = await self._fields(request)
        text = fields.text("q")
        check_length([text], self._dialects.limits)
        turns = Turns(self._dialects.service.long_text_thread, len(text))
        async with self._dialects.in_time():
            found = await turns.call(detect, text, self._dialects.languages)
        return Json([_detected(each) for each in found])

    async def settings(self, request: Request) -> Response:
        """Tell a page what it may ask for."""
        limits, (src, tgt) = self._dialects.limits, self._dialects.pairs[0]
        has_token = self._dialects.token is not None
        return Json(
            {
                "apiKeys": has_token,
                "keyRequired": has_token,
                "charLimit": limits.characters,
                "batchLimit": limits.batch,
                "alternativesLimit": limits.alternatives,
                "frontendTimeout": 500,
                "suggestions": False,
                "filesTranslation": False,
                "supportedFilesFormat": [],
                "language": {
                    "source": {"code": src, "name": language_name(src)},
                    "target": {"code": tgt, "name": language_name(tgt)},
                },
            }
        )

    async def _fields(self, request: Request) -> Fields:
        async with self._dialects.in_time():
            fields = await Fields.read(request)
        self._dialects.check_token(request, fields)
        return fields


class _EventStream(StreamingResponse):
    """Server-sent events; what is not translated when the client leaves is given up."""

    def __init__(self, events: AsyncIterator[bytes], translation: RequestTranslation) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._translation = translation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(self._translation):
            await super().__call__(scope, receive, send)


def _detected(detected: Detected | None) -> dict[str, Any]:
    assert detected is not None, "the source language was to be found"
    return {"confidence": detected.confidence, "language": detected.language}


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
