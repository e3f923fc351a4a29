"""The ASGI application: the dialects, the page, health, metrics and the OpenAPI document."""

import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from seq2seq_cli import __version__
from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.extras.serve.deepl import DeepL
from seq2seq_cli.extras.serve.documents.formats import READERS
from seq2seq_cli.extras.serve.gateway import Gateway
from seq2seq_cli.extras.serve.libretranslate import LibreTranslate
from seq2seq_cli.extras.serve.middleware import AllowedOrigins, BodyLimit, Observer
from seq2seq_cli.extras.serve.request_fields import Limits
from seq2seq_cli.extras.serve.responses import answer_error
from seq2seq_cli.extras.serve.service import TranslationService

_PREFLIGHT_SECONDS = 24 * 60 * 60
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_FILES = files("seq2seq_cli.extras.serve")


@dataclass(frozen=True)
class Access:
    """Who may use the server."""

    token: str | None = None
    hosts: tuple[str, ...] = ()  # allowed values of the Host header; empty: all
    origins: tuple[str, ...] = ()  # of other pages that may call the server (CORS)


def build_application(
    service: TranslationService, limits: Limits, access: Access, *, logs_text: bool
) -> ASGIApp:
    """Return everything that answers requests."""
    gateway = Gateway(service, limits, access.token, logs_text)
    monitoring = service.monitoring

    async def health(request: Request) -> Response:
        if service.is_ready:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "loading"}, status_code=503, headers={"Retry-After": "5"})

    async def metrics(request: Request) -> Response:
        gateway.check_token(request)
        return Response(
            generate_latest(monitoring.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def spec(request: Request) -> Response:
        return JSONResponse(_openapi_document(limits, gateway.pairs))

    routes = [*LibreTranslate(gateway).routes, *DeepL(gateway).routes]
    routes += [Route("/health", health), Route("/metrics", metrics), Route("/spec", spec)]
    for file in _FILES.joinpath("page").iterdir():
        if media_type := _TYPES.get(file.name.rpartition(".")[2]):
            path = "/" if file.name == "page.html" else f"/{file.name}"
            routes.append(Route(path, _page_file(file.read_bytes(), media_type)))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=access.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type"],
        max_age=_PREFLIGHT_SECONDS,
    )
    layers = [
        Middleware(Observer, monitoring, {route.path for route in routes}, limits.seconds),
        Middleware(AllowedOrigins, access.hosts, access.origins),
        *([cors] if access.origins else ()),
        Middleware(ServerErrorMiddleware, answer_error),
        Middleware(BodyLimit, limits.body_bytes),
    ]
    handlers = {HTTPException: answer_error}
    app = Starlette(routes=routes, middleware=layers, exception_handlers=handlers)
    app.router.redirect_slashes = False  # /translate/ is another path, with status 404
    return app


def _page_file(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def answer(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return answer


def _openapi_document(limits: Limits, pairs: Sequence[LanguagePair]) -> dict[str, Any]:
    """Return `openapi.json` with the limits and languages of the server (OpenAPI 3.1)."""
    sources, targets = (list(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
    text = {"type": "string", "maxLength": limits.characters}
    document: dict[str, Any] = json.loads(_FILES.joinpath("openapi.json").read_bytes())
    document["info"]["version"] = __version__
    document["components"]["schemas"] |= {
        "Text": text,
        "Texts": {"type": "array", "items": text, "maxItems": limits.batch},
        "Source": {"enum": ["auto", *sources]},
        "Target": {"enum": targets},
        "SourceInCapitals": {"enum": [code.upper() for code in sources]},
        "TargetInCapitals": {"enum": [code.upper() for code in targets]},
        "Format": {"enum": [*READERS], "default": "text"},
        "Alternatives": {"type": "integer", "minimum": 0, "maximum": limits.alternatives},
    }
    statuses = document["components"]["responses"]
    error = {"$ref": "#/components/schemas/Error"}
    for response in statuses.values():
        response["content"] = {"application/json": {"schema": error}}
    errors = {status: {"$ref": f"#/components/responses/{status}"} for status in statuses}
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"] |= errors
    return document
