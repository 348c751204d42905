"""HTML and SVG as text, in which nothing that came from elsewhere can become a tag.

`Html` is text that is markup already. Every other text that is put into a tag, or into an
attribute, is escaped there; so a page is built of `tag` calls, and never of strings.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Final

_VOID: Final = frozenset({"br", "meta"})


class Html(str):
    """Markup. Make it with `tag`; from a literal only where that is the program's own."""

    __slots__ = ()


NOTHING: Final = Html("")


def tag(name: str, /, *children: str | float, **attributes: str | float | None) -> Html:
    """`<name attributes>children</name>`. Children that are not `Html` are escaped.

    An attribute's name loses a trailing underscore (`class_`) and has hyphens for the others; one
    that is None is left out.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{given}>")
    inner = "".join(
        child if isinstance(child, Html) else html.escape(_plain(child)) for child in children
    )
    return Html(f"<{name}{given}>{inner}</{name}>")


def joined(parts: Iterable[Html]) -> Html:
    return Html("".join(parts))


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    bars: bool = False,
    note: Html = NOTHING,
) -> Html:
    """The first column is the rows' heads; with `bars` the last one is drawings, which shrink. One
    of numbers alone scrolls where it is too wide, by keyboard too. `note` goes with the caption."""
    head = tag("tr", *(tag("th", text, scope="col") for text in heads))
    body = (
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    )
    drawn = tag(
        "table",
        tag("caption", caption, note),
        tag("thead", head),
        tag("tbody", joined(body)),
        class_="bars" if bars else None,
    )
    if bars:
        return tag("div", drawn, class_="wide")
    return tag("div", drawn, class_="wide", role="region", aria_label=caption, tabindex=0)


def _plain(value: str | float) -> str:
    """Numbers as short as a drawing can use them; texts without what no page may hold."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if "\ud800" <= each <= "\udfff" or each == "\0" else each
        for each in str(value)
    )
