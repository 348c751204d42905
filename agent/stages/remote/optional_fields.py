"""Fields that servers may refuse, and requests without them. Pure.

OpenAI's API is served by many who take a part of it, and answer with status 400 or 422 where a
request has more: providers without schemas, servers that know no `parallel_tool_calls`, models that
count `max_completion_tokens` only. A field that forms, counts or limits a reply is given up rather
than the reply: the refusal names it, the same request goes again without it, and so do all later
ones. Whatever a caller would notice (messages, tools, the choice "none") is never left out.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Body = dict[str, Any]

_NOT_SUPPORTED: Final = (
    "(unsupported|not supported|not support|not allowed|not permitted|forbidden)"
)


def _without(name: str) -> Callable[[Body], None]:
    def leave_out(body: Body) -> None:
        body.pop(name, None)

    return leave_out


def _not_strict(body: Body) -> None:
    tools = body.get("tools")
    if isinstance(tools, list):
        body["tools"] = [_without_strict(tool) for tool in tools]


def _without_strict(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return tool
    kept = {name: value for name, value in function.items() if name != "strict"}
    return {**tool, "function": kept}


def _freely_chosen(body: Body) -> None:
    """Let the model choose where it had to call: it usually calls all the same."""
    if body.get("tool_choice") not in (None, "none"):
        body["tool_choice"] = "auto"


def _renamed_limit(body: Body) -> None:
    if "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")


_OPTIONAL: Final[Mapping[str, tuple[str, Callable[[Body], None]]]] = {
    "response_format": (
        r"response_format|json.?schema|json_object|grammar", _without("response_format")
    ),
    "strict": (r"\bstrict\b|schema for function", _not_strict),
    "parallel_tool_calls": (r"parallel_tool_calls", _without("parallel_tool_calls")),
    "tool_choice": (r"tool_choice", _freely_chosen),
    "stream_options": (r"stream_options|include_usage", _without("stream_options")),
    "seed": (r"\bseed\b", _without("seed")),
    "max_tokens": (
        rf"max_completion_tokens.*instead|max_tokens\W.*{_NOT_SUPPORTED}", _renamed_limit
    ),
    "temperature": (rf"\btemperature\b.*{_NOT_SUPPORTED}", _without("temperature")),
    "top_p": (rf"\btop_p\b.*{_NOT_SUPPORTED}", _without("top_p")),
}  # fmt: skip
"""What a refusal says that means this field, and how a request does without it, in the order in
which they are given up. A limit or a temperature is named by other refusals too ("max_tokens is too
large"), so those need the reason as well."""


class OptionalFields:
    """Fields that one server has refused."""

    def __init__(self) -> None:
        self._refused: list[str] = []

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of the fields, in the order in which they were refused."""
        return tuple(self._refused)

    def fitted(self, body: Mapping[str, Any]) -> Body:
        """The request as the server takes it, as far as known."""
        fitted = dict(body)
        for name in self._refused:
            _OPTIONAL[name][1](fitted)
        return fitted

    def note_refusal(self, reason: str, body: Mapping[str, Any]) -> str | None:
        """Give up the field that the refusal of this request names; returns its name. None: it
        names none, or none that can be given up. `body`: the request as it was sent."""
        for name, (said, give_up) in _OPTIONAL.items():
            if not re.search(said, reason, re.IGNORECASE | re.DOTALL):
                continue
            without = dict(body)
            give_up(without)
            if without != body:
                if name not in self._refused:  # another request may have been refused meanwhile
                    self._refused.append(name)
                return name
        return None
