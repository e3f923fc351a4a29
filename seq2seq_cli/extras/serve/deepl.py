"""DeepL's interface, as far as its official clients need it to translate texts."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from seq2seq_cli.config.languages import language_name
from seq2seq_cli.extras.serve.gateway import Gateway
from seq2seq_cli.extras.serve.request_fields import Fields
from seq2seq_cli.extras.serve.responses import Json, invalid
from seq2seq_cli.extras.serve.text_translation import TranslationOptions


class DeepL:
    """Language codes are in capitals."""

    error_field = "message"

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.routes = [
            Route("/v2/translate", self.translate, methods=["POST"]),
            Route("/v2/languages", self.languages, methods=["GET", "POST"]),
            Route("/v2/usage", self.usage, methods=["GET", "POST"]),
        ]

    async def translate(self, request: Request) -> Response:
        """Translate a list of texts; with tag_handling they are HTML."""
        fields = await self._fields(request)
        texts = fields.texts("text")
        texts = [texts] if isinstance(texts, str) else texts
        tags = fields.text("tag_handling", "")
        if tags not in ("", "html", "xml"):
            raise invalid("tag_handling must be html or xml")
        options = TranslationOptions(format="html" if tags else "text")
        source, target = fields.text("source_lang", "auto") or "auto", fields.text("target_lang")
        translated = await self._gateway.translate(request, texts, source, target, options)
        translations = [
            {
                "detected_source_language": text.language_or(source).upper(),
                "text": text.text,
                "billed_characters": len(given),
            }
            for given, text in zip(texts, translated, strict=True)
        ]
        return Json({"translations": translations})

    async def languages(self, request: Request) -> Response:
        """List source or target languages."""
        kind = (await self._fields(request)).text("type", "source")
        if kind not in ("source", "target"):
            raise invalid("type must be source or target")
        pairs = self._gateway.pairs
        codes = dict.fromkeys(pair.src if kind == "source" else pair.tgt for pair in pairs)
        formality = {"supports_formality": False} if kind == "target" else {}
        return Json(
            [{"language": code.upper(), "name": language_name(code), **formality} for code in codes]
        )

    async def usage(self, request: Request) -> Response:
        """Report that there is no limit: nothing is counted."""
        await self._fields(request)
        return Json({"character_count": 0, "character_limit": 1_000_000_000_000})

    async def _fields(self, request: Request) -> Fields:
        return await self._gateway.fields(request, no_token=(403, "Invalid API key"))
