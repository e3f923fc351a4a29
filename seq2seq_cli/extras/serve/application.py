"""The ASGI application: paths, errors, and what happens to every request."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from seq2seq_cli import __version__
from seq2seq_cli.extras.serve.deepl import DeepL
from seq2seq_cli.extras.serve.dialects import Dialects
from seq2seq_cli.extras.serve.immersive_translate import ImmersiveTranslate
from seq2seq_cli.extras.serve.json_response import Json
from seq2seq_cli.extras.serve.libretranslate import LibreTranslate
from seq2seq_cli.extras.serve.middleware import (
    AllowedOrigins,
    BodyLimit,
    Failures,
    RequestLog,
    SecurityHeaders,
    error_response,
)
from seq2seq_cli.extras.serve.monitoring import CONTENT_TYPE, Monitoring
from seq2seq_cli.extras.serve.openapi import openapi_document
from seq2seq_cli.extras.serve.page_files import page_routes
from seq2seq_cli.extras.serve.request_errors import RequestError
from seq2seq_cli.extras.serve.request_fields import Limits
from seq2seq_cli.extras.serve.service import TranslationService

_PREFLIGHT_SECONDS = 24 * 60 * 60


@dataclass(frozen=True)
class Access:
    """Who may use the server."""

    token: str | None = None
    hosts: tuple[str, ...] = ()  # names that requests may be for; empty: all
    origins: tuple[str, ...] = ()  # of pages elsewhere that may call the server (CORS)


class Application:
    """The paths that belong to no dialect, and all of them as one ASGI application."""

    def __init__(
        self,
        service: TranslationService,
        monitoring: Monitoring,
        limits: Limits = Limits(),  # noqa: B008 (it is immutable)
        access: Access = Access(),
        *,
        logs_text: bool = False,
    ) -> None:
        self._service = service
        self._monitoring = monitoring
        self._limits = limits
        self._dialects = Dialects(service, limits, access.token, logs_text=logs_text)
        dialects = (
            LibreTranslate(self._dialects),
            DeepL(self._dialects),
            ImmersiveTranslate(self._dialects),
        )
        routes = [path for dialect in dialects for path in dialect.paths]
        routes += [
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/spec", self._spec),
            *page_routes(),
        ]
        self.asgi = Starlette(
            routes=routes,
            middleware=self._middleware(access, {route.path for route in routes}),
            exception_handlers={
                RequestError: _refuse,
                HTTPException: _refuse_path,
            },
        )

    def _middleware(self, access: Access, paths: Collection[str]) -> Sequence[Middleware]:
        seconds = self._limits.seconds
        layers = [
            Middleware(RequestLog, self._monitoring, paths, seconds),
            Middleware(SecurityHeaders),
            Middleware(AllowedOrigins, access.hosts, access.origins),
        ]
        if access.origins:
            layers.append(
                Middleware(
                    CORSMiddleware,
                    allow_origins=access.origins,
                    allow_methods=["GET", "POST"],
                    allow_headers=["authorization", "content-type"],
                    max_age=_PREFLIGHT_SECONDS,
                )
            )
        return [*layers, Middleware(Failures), Middleware(BodyLimit, self._limits.body_bytes)]

    async def _health(self, request: Request) -> Response:
        if self._service.is_ready:
            return Json({"status": "ok"})
        return Json({"status": "loading"}, status_code=503, headers={"Retry-After": "5"})

    async def _metrics(self, request: Request) -> Response:
        self._dialects.check_token(request)
        return Response(self._monitoring.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def _spec(self, request: Request) -> Response:
        return Json(openapi_document(self._limits, self._dialects.pairs, __version__))


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(request.scope, error.status, error.message, error.headers)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(request.scope, error.status_code, error.detail, error.headers)
