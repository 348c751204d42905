"""Static files of the web pages, served from `web_demo/`.

Text is compressed for clients that accept gzip: without it a page of many small modules is three
times as much on the way to a telephone.
"""

from pathlib import Path, PurePosixPath
from typing import Final

from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

WEB_DEMO: Final = Path(__file__).resolve().parents[2] / "web_demo"

PAGES: Final = frozenset({"dashboard"})
"""At `/NAME`, from `NAME.html`. Their own files lie in a folder of that name."""

TEXTS: Final = ("", ".html", ".css", ".js", ".svg")
"""Compressed path suffixes; a page has none. Sounds and pictures are compressed already."""

MIN_BYTES: Final = 500
"""Smallest compressed response, in bytes; below it gzip saves nothing."""

LEVEL: Final = 4
"""gzip level: some tenths of a millisecond of the event loop for the longest module; 9 takes
twice the time for two per cent less."""


class Pages:
    """An ASGI application: `/` and the pages by their names; everything else by its path."""

    def __init__(self) -> None:
        self._plain = _Files(directory=WEB_DEMO, html=True)
        self._packed = GZipMiddleware(self._plain, minimum_size=MIN_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_text = PurePosixPath(scope["path"]).suffix in TEXTS
        await (self._packed if is_text else self._plain)(scope, receive, send)


class _Files(StaticFiles):
    def get_path(self, scope: Scope) -> str:
        path = super().get_path(scope)
        # With a slash behind it, what the page refers to would be looked for in the folder.
        is_page = path in PAGES and not scope["path"].endswith("/")
        return f"{path}.html" if is_page else path
