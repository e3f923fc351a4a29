"""The interface that the browser add-on Immersive Translate expects of a custom service."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from seq2seq_cli.extras.serve.gateway import Gateway
from seq2seq_cli.extras.serve.responses import Json
from seq2seq_cli.extras.serve.text_translation import TranslationOptions


class ImmersiveTranslate:
    """The add-on has only a URL, so the token is in its query."""

    error_field = "error"

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.routes = [Route("/imme", self.translate, methods=["POST"])]

    async def translate(self, request: Request) -> Response:
        """Translate a list of texts."""
        fields = await self._gateway.fields(request)
        texts = fields.texts("text_list")
        texts = [texts] if isinstance(texts, str) else texts
        source, target = fields.text("source_lang", "auto") or "auto", fields.text("target_lang")
        options = TranslationOptions()
        translated = await self._gateway.translate(request, texts, source, target, options)
        translations = [
            {"detected_source_lang": text.language_or(source), "text": text.text}
            for text in translated
        ]
        return Json({"translations": translations})
