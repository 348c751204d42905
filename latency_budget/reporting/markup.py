"""Builder of HTML and SVG text that escapes every string which is not markup.

`Html` is text that is markup already. Every other text that is put into a tag, or into an
attribute, is escaped there; so a page is built of `tag` calls, and never of strings.
"""

import html
from collections.abc import Iterable, Sequence
from typing import Final

_VOID: Final = frozenset({"br", "meta"})


class Html(str):
    """Text that is markup. Make it with `tag`, or from a literal of this program."""

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
    """Concatenate markup."""
    return Html("".join(parts))


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    bars: bool = False,
    note: Html = NOTHING,
) -> Html:
    """A table whose first column has the rows' heads. With `bars` the last column has drawings,
    which shrink; otherwise a table that is too wide scrolls, by keyboard too. `note` follows the
    caption."""
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
    """Numbers with four digits; texts without characters that HTML forbids."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if "\ud800" <= each <= "\udfff" or each == "\0" else each
        for each in str(value)
    )
