"""The ASGI application: the dialects, the page, health, metrics and the OpenAPI document."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from seq2seq_cli.extras.serve.deepl import DeepL
from seq2seq_cli.extras.serve.gateway import Dialect, Gateway
from seq2seq_cli.extras.serve.immersive_translate import ImmersiveTranslate
from seq2seq_cli.extras.serve.libretranslate import LibreTranslate
from seq2seq_cli.extras.serve.middleware import AllowedOrigins, BodyLimit, Failures, Observer
from seq2seq_cli.extras.serve.monitoring import CONTENT_TYPE, Monitoring
from seq2seq_cli.extras.serve.openapi import openapi_document
from seq2seq_cli.extras.serve.request_fields import Limits
from seq2seq_cli.extras.serve.responses import Json, RequestError, error_response
from seq2seq_cli.extras.serve.service import TranslationService

# By the prefix of the paths whose errors are written as the dialect does; the first that fits.
DIALECTS: dict[str, type[Dialect]] = {
    "/v2/": DeepL,
    "/imme": ImmersiveTranslate,
    "/": LibreTranslate,
}
_PREFLIGHT_SECONDS = 24 * 60 * 60
_MEDIA_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Access:
    """Who may use the server."""

    token: str | None = None
    hosts: tuple[str, ...] = ()  # allowed values of the Host header; empty: all
    origins: tuple[str, ...] = ()  # of other pages that may call the server (CORS)


def build_application(
    service: TranslationService,
    monitoring: Monitoring,
    limits: Limits,
    access: Access,
    *,
    logs_text: bool,
) -> ASGIApp:
    """Return everything that answers requests."""
    gateway = Gateway(service, limits, access.token, logs_text=logs_text)

    async def health(request: Request) -> Response:
        """Report whether the models are loaded."""
        if service.is_ready:
            return Json({"status": "ok"})
        return Json({"status": "loading"}, status_code=503, headers={"Retry-After": "5"})

    async def metrics(request: Request) -> Response:
        """Return the metrics for Prometheus."""
        gateway.check_token(request)
        return Response(monitoring.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def spec(request: Request) -> Response:
        """Return the OpenAPI document."""
        return Json(openapi_document(limits, gateway.pairs))

    routes = [route for dialect in DIALECTS.values() for route in dialect(gateway).routes]
    routes += [Route("/health", health), Route("/metrics", metrics), Route("/spec", spec)]
    routes += _page_routes()

    def error_field(path: str) -> str:
        fields = (d.error_field for prefix, d in DIALECTS.items() if path.startswith(prefix))
        return next(fields, "error")

    names = {route.path for route in routes}
    layers = [
        Middleware(Observer, monitoring, names, error_field, limits.seconds),
        Middleware(AllowedOrigins, access.hosts, access.origins),
        Middleware(Failures),
        Middleware(BodyLimit, limits.body_bytes),
    ]
    if access.origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=access.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            max_age=_PREFLIGHT_SECONDS,
        )
        layers.insert(2, cors)
    handlers = {RequestError: _refuse, HTTPException: _refuse_path}
    return Starlette(routes=routes, middleware=layers, exception_handlers=handlers)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(request.scope, error.status, error.message, error.headers)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(request.scope, error.status_code, error.detail, error.headers)


def _page_routes() -> list[Route]:
    """Return the paths of the page, which is at /, and of its parts: files of this package."""
    folder = files("seq2seq_cli.extras.serve").joinpath("page")
    return [
        _file_route(file.name, file.read_bytes(), media_type)
        for file in folder.iterdir()
        if (media_type := _MEDIA_TYPES.get(file.name.rpartition(".")[2]))
    ]


def _file_route(name: str, content: bytes, media_type: str) -> Route:
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'

    async def answer(request: Request) -> Response:
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=media_type, headers=headers)

    return Route("/" if name == "page.html" else f"/{name}", answer)
