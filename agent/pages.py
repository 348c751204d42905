"""The pages' files, as they lie in `web_demo/`."""

from pathlib import Path
from typing import Final

from starlette.staticfiles import StaticFiles
from starlette.types import Scope

WEB_DEMO: Final = Path(__file__).resolve().parent.parent / "web_demo"

PAGES: Final = frozenset({"dashboard"})
"""At `/NAME`, from `NAME.html`. Their own files lie in a folder of that name."""


class Pages(StaticFiles):
    """`/` and the pages by their names; everything else by its path."""

    def __init__(self) -> None:
        super().__init__(directory=WEB_DEMO, html=True)

    def get_path(self, scope: Scope) -> str:
        path = super().get_path(scope)
        # With a slash behind it, what the page refers to would be looked for in the folder.
        is_page = path in PAGES and not scope["path"].endswith("/")
        return f"{path}.html" if is_page else path
