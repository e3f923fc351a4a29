"""LibreTranslate's interface, with additional fields: same requests, same answers, same errors."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from seq2seq_cli.config.languages import language_name
from seq2seq_cli.extras.serve.documents.formats import READERS, Reader, words_of
from seq2seq_cli.extras.serve.gateway import MAX_WITH_ATTENTION, Gateway, unless_gone
from seq2seq_cli.extras.serve.glossary import Glossary
from seq2seq_cli.extras.serve.languages import Detected, detect
from seq2seq_cli.extras.serve.messages import SearchOptions
from seq2seq_cli.extras.serve.request_fields import Fields, check_length
from seq2seq_cli.extras.serve.responses import RequestError, invalid
from seq2seq_cli.extras.serve.scheduler import Submission
from seq2seq_cli.extras.serve.text_translation import TranslationOptions


class LibreTranslate:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.routes = [
            Route("/translate", self.translate, methods=["POST"]),
            Route("/languages", self.languages, methods=["GET", "POST"]),
            Route("/detect", self.detect, methods=["POST"]),
            Route("/frontend/settings", self.settings),
        ]

    async def translate(self, request: Request) -> Response:
        """Translate a text or a list of texts."""
        fields = await self._gateway.fields(request)
        texts, is_list = fields.texts("q"), isinstance(fields.values["q"], list)
        source, target = fields.text("source"), fields.text("target")
        read = _reader(fields)
        alternatives = fields.whole_number("alternatives", self._gateway.limits.alternatives)
        glossary = Glossary(fields.glossary())
        search = SearchOptions(
            n_best=1 + alternatives,
            alignment=fields.flag("alignments"),
            attention=fields.flag("attention"),
            log_probs=fields.flag("log_probs"),
        )
        options = TranslationOptions(read, glossary, search)
        if fields.flag("stream"):
            if is_list:
                raise invalid("stream takes one text")
            return await self._stream(request, texts[0], source, target, options)
        reports = []
        for text in await self._gateway.translate(request, texts, source, target, options):
            report = _report(text.text, text.detected)
            if alternatives:
                report["alternatives"] = text.alternatives
            if search.has_details:
                report["sentences"] = [sentence.report(options) for sentence in text.sentences]
            reports.append(report)
        if not is_list:
            return JSONResponse(reports[0])
        names = [*reports[0]] if reports else ["translatedText"]
        return JSONResponse({name: [report[name] for report in reports] for name in names})

    async def _stream(
        self, request: Request, text: str, source: str, target: str, options: TranslationOptions
    ) -> Response:
        """Answer with server-sent events: one for each sentence, then one with the whole text."""
        deadline = asyncio.get_running_loop().time() + self._gateway.limits.seconds
        async with self._gateway.in_time(deadline):
            (translation,), submission = await unless_gone(
                request, self._gateway.submit([text], source, target, options)
            )

        async def events() -> AsyncIterator[bytes]:
            whole = ""
            try:
                for result in submission.results:
                    async with self._gateway.in_time(deadline):
                        sentence = translation.add(await result)
                    whole += sentence.new_text
                    is_detailed = options.search.has_details or options.search.n_best > 1
                    details = sentence.report(options) if is_detailed else {}
                    yield _event("sentence", {"text": sentence.new_text, **details})
            except RequestError as error:
                refusal = {"error": error.detail, "status": error.status_code}
                yield _event("error", refusal | dict(error.headers or {}))
                return
            whole += translation.writer.rest()
            self._gateway.log_text(source, target, text, whole)
            yield _event("done", _report(whole, translation.detected))

        return _EventStream(events(), submission)

    async def languages(self, request: Request) -> Response:
        """List the languages, each with those that it can be translated to."""
        pairs = self._gateway.pairs
        return JSONResponse(
            [
                {
                    "code": code,
                    "name": language_name(code),
                    "targets": [tgt for src, tgt in pairs if src == code],
                }
                for code in self._gateway.languages
            ]
        )

    async def detect(self, request: Request) -> Response:
        """List the languages by how probable it is that the text is in them."""
        fields = await self._gateway.fields(request)
        text, read = fields.text("q"), _reader(fields)
        check_length([text], self._gateway.limits)
        async with self._gateway.in_time():
            words = await self._gateway.in_turn([text], words_of, text, read)
            found = await self._gateway.in_turn([text], detect, words, self._gateway.languages)
        return JSONResponse([each._asdict() for each in found])

    async def settings(self, request: Request) -> Response:
        """Tell a page the limits of the server."""
        limits, (src, tgt) = self._gateway.limits, self._gateway.pairs[0]
        has_token = self._gateway.token is not None
        return JSONResponse(
            {
                "apiKeys": has_token,
                "keyRequired": has_token,
                "charLimit": limits.characters,
                "batchLimit": limits.batch,
                "alternativesLimit": limits.alternatives,
                "attentionLimit": MAX_WITH_ATTENTION,
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


class _EventStream(StreamingResponse):
    """Server-sent events; when the client leaves, the sentences still queued are dropped."""

    def __init__(self, events: AsyncIterator[bytes], submission: Submission) -> None:
        headers = {"X-Accel-Buffering": "no"}  # nginx would send all events at the end
        super().__init__(events, headers=headers, media_type="text/event-stream")
        self._submission = submission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.closing(self._submission):
            await super().__call__(scope, receive, send)


def _reader(fields: Fields) -> Reader:
    name = fields.text("format", "text") or "text"
    if name not in READERS:
        raise invalid(f"{name} format is not supported")
    return READERS[name]


def _report(text: str, detected: Detected | None) -> dict[str, Any]:
    report: dict[str, Any] = {"translatedText": text}
    return report | ({"detectedLanguage": detected._asdict()} if detected else {})


def _event(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
