"""All files of the site's source, by path."""

from importlib import import_module
from pathlib import Path
from typing import Final

from .tables import filled

_ROOT: Final = Path(__file__).resolve().parents[2]

GENERATED: Final = {
    "reference/settings.md": "settings_page",
    "reference/commands.md": "commands_page",
    "reference/http.md": "http_page",
    "reference/events.md": "events_page",
    "reference/fields.md": "fields_page",
    "reference/metrics.md": "metrics_page",
    "reference/limits.md": "limits_page",
}
"""Path of a reference page -> module of this package with `page()`."""


def source() -> dict[str, bytes]:
    """Every page, drawing and picture."""
    docs = _ROOT / "docs"
    found = {
        str(path.relative_to(docs)): filled(path.read_text(encoding="utf-8")).encode()
        for pattern in ("**/*.md", "drawings/*.svg")
        for path in sorted(docs.glob(pattern))
        if path != docs / "README.md"  # about this folder, not of the site
    }
    for path in sorted((_ROOT / "web_demo" / "pictures").glob("*.png")):
        found[f"pictures/{path.name}"] = path.read_bytes()
    for name in GENERATED:
        found[name] = generate(name).encode()
    return found


def generate(path: str) -> str:
    """Markdown of one reference page."""
    return str(import_module(f"docs.generate.{GENERATED[path]}").page())
