"""All generated pages by path."""

from importlib import import_module
from typing import Final

PAGES: Final = {
    "reference/settings.md": "settings_page",
    "reference/commands.md": "commands_page",
    "reference/http.md": "http_page",
    "reference/events.md": "events_page",
    "reference/metrics.md": "metrics_page",
    "reference/limits.md": "limits_page",
}
"""Path below `docs/` -> module of this package with `page()`."""


def generate(path: str) -> str:
    """Markdown of one page."""
    return str(import_module(f"docs.generate.{PAGES[path]}").page())
