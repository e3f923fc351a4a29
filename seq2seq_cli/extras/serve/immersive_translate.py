"""The interface that the browser add-on Immersive Translate expects of a custom service."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Path

from seq2seq_cli.extras.serve.dialects import Dialects
from seq2seq_cli.extras.serve.json_response import Json
from seq2seq_cli.extras.serve.request_fields import Fields
from seq2seq_cli.extras.serve.text_translation import Wanted


class ImmersiveTranslate:
    """The handler of /imme; a token is in its query, as the add-on has a URL and nothing else."""

    def __init__(self, dialects: Dialects) -> None:
        self._dialects = dialects
        self.paths = [Path("/imme", self.translate, methods=["POST"])]

    async def translate(self, request: Request) -> Response:
        """Translate a list of texts."""
        self._dialects.check_token(request)
        async with self._dialects.in_time():
            fields = await Fields.read(request)
        texts = fields.texts("text_list")
        texts = [texts] if isinstance(texts, str) else texts
        source, target = fields.text("source_lang", "auto") or "auto", fields.text("target_lang")
        done = await self._dialects.translate(request, texts, source, target, Wanted())
        return Json(
            {
                "translations": [
                    {
                        "detected_source_lang": detected.language if detected else source,
                        "text": translated.text,
                    }
                    for translated, detected in zip(done.texts, done.detected, strict=True)
                ]
            }
        )
