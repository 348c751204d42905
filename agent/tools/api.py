"""API of Python tools: the decorator `tool`, and `ToolError`.

    from typing import Annotated

    from pydantic import Field

    from . import ToolError, tool

    @tool
    async def forecast(city: Annotated[str, Field(description="Name of a city")]) -> str:
        \"\"\"Tell the weather of tomorrow.\"\"\"

The docstring describes the tool to the model, the annotations describe its arguments. A function
that is not `async` runs on a thread. An `async` one runs on an event loop that all tools share; it
is cancelled at its time limit.

A tool with `@tool(background=True)` goes on beside the conversation: the model is told at once that
it runs, the agent talks on, and announces the result when it is there. Write it `async`, so that it
ends with the call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

from agent.config.tools import MAX_BACKGROUND_TIMEOUT_S, MAX_TOOL_TIMEOUT_S

_ATTRIBUTE: Final = "__halfsec_tool__"

Function = TypeVar("Function", bound=Callable[..., Any])


class ToolError(Exception):
    """Failure of a tool, whose message is sent to the model. Of any other exception the model gets
    only the type: its message may be confidential."""


@dataclass(frozen=True, slots=True)
class ToolMark:
    """Arguments of the decorator `tool`."""

    name: str | None
    timeout_s: float | None
    is_background: bool = False


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *, name: str | None = None, timeout_s: float | None = None, background: bool = False
) -> Callable[[Function], Function]: ...


def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    background: bool = False,
) -> Function | Callable[[Function], Function]:
    """Mark a function as a tool; the function itself is returned.

    `name`: the tool's name; default: the function's. `timeout_s`: time limit of a call, 15 s at
    most; default: the setting `agent.tool_timeout_s`. `background`: it goes on beside the
    conversation, for an hour at most; default of its time limit: the setting
    `agent.background_tool_timeout_s`. Raises ValueError.
    """
    max_s = MAX_BACKGROUND_TIMEOUT_S if background else MAX_TOOL_TIMEOUT_S
    if timeout_s is not None and not 0 < timeout_s <= max_s:
        hint = "" if background else "; with background=True it may be longer"
        raise ValueError(
            f"timeout_s of a tool must be above 0, and at most {max_s}: {timeout_s}{hint}"
        )

    def mark(marked: Function) -> Function:
        setattr(marked, _ATTRIBUTE, ToolMark(name, timeout_s, background))
        return marked

    return mark if function is None else mark(function)


def mark_of(value: object) -> ToolMark | None:
    """The mark of a function; None where it is not a tool."""
    mark = getattr(value, "__dict__", {}).get(_ATTRIBUTE)
    return mark if isinstance(mark, ToolMark) else None
