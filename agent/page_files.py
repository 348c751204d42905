"""The pages' files. What is text is compressed for those who take that: without it a page of many
small modules is three times as much on the way to a telephone."""

from pathlib import Path, PurePosixPath
from typing import Final

from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

_TEXTS: Final = ("", ".html", ".css", ".js", ".svg")
"""Endings of paths; none is the index of a folder. Sounds and pictures are packed already."""

MIN_BYTES: Final = 500
"""Below that the packing is as large as what is packed."""

LEVEL: Final = 4
"""Some tenths of a millisecond of the event loop for the longest module; 9 takes twice the time for
two per cent less."""


class PageFiles:
    """An ASGI application. One instance for all requests."""

    def __init__(self, directory: Path) -> None:
        self._plain = StaticFiles(directory=directory, html=True)
        self._packed = GZipMiddleware(self._plain, minimum_size=MIN_BYTES, compresslevel=LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_text = PurePosixPath(scope["path"]).suffix in _TEXTS
        await (self._packed if is_text else self._plain)(scope, receive, send)
