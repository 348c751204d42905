"""Tools in Python: what a file of them imports.

    from typing import Annotated

    from pydantic import Field

    from . import ToolError, tool

    @tool
    async def forecast(city: Annotated[str, Field(description="Name of a city")]) -> str:
        \"\"\"Tell the weather of tomorrow.\"\"\"

The docstring tells the model what a tool is for, the annotations what it takes. A function that is
not `async` runs on a thread. An `async` one runs on an event loop that all of them share; one that
is not done in time is cancelled.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

from agent.config.tools import MAX_TOOL_TIMEOUT_S

_ATTRIBUTE: Final = "__halfsec_tool__"

Function = TypeVar("Function", bound=Callable[..., Any])


class ToolError(Exception):
    """Raised by a tool: it has failed, and the model is told this message. Of any other exception
    it is told only the type: its message may be for nobody's ears."""


@dataclass(frozen=True, slots=True)
class ToolMark:
    """What was said of a function where it was marked as a tool."""

    name: str | None
    timeout_s: float | None


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *, name: str | None = None, timeout_s: float | None = None
) -> Callable[[Function], Function]: ...


def tool(
    function: Function | None = None, /, *, name: str | None = None, timeout_s: float | None = None
) -> Function | Callable[[Function], Function]:
    """Mark a function as a tool; it stays the function that it was.

    `name`: what the model calls it; not given: the function's. `timeout_s`: the longest it may
    take, 15 s at most; not given: as `agent.tool_timeout_s` says. Raises ValueError.
    """
    if timeout_s is not None and not 0 < timeout_s <= MAX_TOOL_TIMEOUT_S:
        raise ValueError(
            f"timeout_s of a tool must be above 0, and at most {MAX_TOOL_TIMEOUT_S}: {timeout_s}"
        )

    def mark(marked: Function) -> Function:
        setattr(marked, _ATTRIBUTE, ToolMark(name, timeout_s))
        return marked

    return mark if function is None else mark(function)


def mark_of(value: object) -> ToolMark | None:
    """What was said of a function; None where it is no tool."""
    mark = getattr(value, "__dict__", {}).get(_ATTRIBUTE)
    return mark if isinstance(mark, ToolMark) else None
