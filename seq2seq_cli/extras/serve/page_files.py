"""The page at /: files of this package, and nothing from anywhere else."""

import hashlib
from importlib.resources import files
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_SCRIPTS = (
    "closer",
    "dom",
    "files",
    "glossary",
    "history",
    "languages",
    "messages",
    "page",
    "server",
    "texts",
    "words",
)
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in _SCRIPTS},
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    tag: str

    async def answer(self, request: Request) -> Response:
        headers = {"ETag": self.tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def page_routes() -> list[Route]:
    """Return the paths of the page and of what it consists of."""
    folder = files("seq2seq_cli.extras.serve").joinpath("page")
    routes = []
    for path, (name, media_type) in _FILES.items():
        content = folder.joinpath(name).read_bytes()
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        routes.append(Route(path, _File(content, media_type, tag).answer))
    return routes
