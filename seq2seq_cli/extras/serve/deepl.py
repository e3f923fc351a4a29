"""DeepL's interface, as far as its official clients need it to translate texts."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from seq2seq_cli.config.languages import language_name
from seq2seq_cli.extras.serve.dialects import Dialects
from seq2seq_cli.extras.serve.json_response import Json
from seq2seq_cli.extras.serve.request_errors import RequestError, invalid
from seq2seq_cli.extras.serve.request_fields import Fields
from seq2seq_cli.extras.serve.text_translation import Wanted


class DeepL:
    """The handlers of its paths; DeepL writes codes of languages in capitals."""

    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects
        self.paths = [
            Path("/v2/translate", self.translate, methods=["POST"]),
            Path("/v2/languages", self.languages, methods=["GET", "POST"]),
            Path("/v2/usage", self.usage, methods=["GET", "POST"]),
        ]

    async def translate(self, request: Request) -> Response:
        """Translate a list of texts; with tag_handling they are HTML."""
        fields = await self._fields(request)
        texts = fields.texts("text")
        texts = [texts] if isinstance(texts, str) else texts
        tags = fields.text("tag_handling", "")
        if tags not in ("", "html", "xml"):
            raise invalid("tag_handling must be html or xml")
        wanted = Wanted(format="html" if tags else "text")
        source, target = fields.text("source_lang", "auto") or "auto", fields.text("target_lang")
        done = await self._dialects.translate(request, texts, source, target, wanted)
        return Json(
            {
                "translations": [
                    {
                        "detected_source_language": (
                            detected.language if detected else source
                        ).upper(),
                        "text": translated.text,
                        "billed_characters": len(text),
                    }
                    for text, translated, detected in zip(
                        texts, done.texts, done.detected, strict=True
                    )
                ]
            }
        )

    async def languages(self, request: Request) -> Response:
        """List source or target languages."""
        fields = await self._fields(request)
        kind = fields.text("type", "source")
        if kind not in ("source", "target"):
            raise invalid("type must be source or target")
        pairs = self._dialects.pairs
        codes = dict.fromkeys(pair.src if kind == "source" else pair.tgt for pair in pairs)
        formality = {"supports_formality": False} if kind == "target" else {}
        return Json(
            [{"language": code.upper(), "name": language_name(code), **formality} for code in codes]
        )

    async def usage(self, request: Request) -> Response:
        """Say that there is no limit: nothing is counted."""
        self._check_token(request)
        return Json({"character_count": 0, "character_limit": 1_000_000_000_000})

    async def _fields(self, request: Request) -> Fields:
        self._check_token(request)
        async with self._dialects.in_time():
            return await Fields.read(request)

    def _check_token(self, request: Request) -> None:
        try:
            self._dialects.check_token(request)
        except RequestError:
            raise RequestError(403, "Invalid API key") from None
