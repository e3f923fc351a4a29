"""Answers in JSON."""

import json
from typing import Any

from starlette.responses import Response


class Json(Response):
    """JSON in UTF-8; unpaired surrogates, which a client may have sent, become question marks."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
