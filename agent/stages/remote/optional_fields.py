"""Fields that servers may refuse, and requests without them. Pure.

OpenAI's API is served by many who take a part of it, and answer with status 400 or 422 where a
request has more: providers without schemas, servers that know no `parallel_tool_calls`, models that
count `max_completion_tokens` only. A field that forms, counts or limits a reply is given up rather
than the reply: the refusal names it, and the same request goes again without it. Whatever a caller
would notice (messages, tools, the choice "none") is never left out.

Later requests do without the field as well, but only once the request without it was accepted: a
refusal may name one field and mean another, or a client's own mistake. The values of `strict` and
`tool_choice` come from clients, so a request that does without them proves nothing for the next
one; they are remembered only where the server says that it does not know them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Body = dict[str, Any]

MAX_GAP_CHARS: Final = 200
"""Between a field and the reason that belongs to it. Longer: they are of different sentences, and
the search takes long in a text of 8 kB."""

_NOT_SUPPORTED: Final = (
    f".{{0,{MAX_GAP_CHARS}}}"
    "(unsupported|not supported|not support|not allowed|not permitted|forbidden)"
)

_QUOTED_INPUT: Final = re.compile(r"""(['"])input\1\s*:""")
"""Behind it, servers that check requests with pydantic (vLLM) quote what they were sent, which may
name any field."""


def before_quoted_input(refusal: str) -> str:
    """What a server says of a request, without what it quotes of it."""
    return _QUOTED_INPUT.split(refusal, maxsplit=1)[0]


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
        limit = body.pop("max_tokens")
        body.setdefault("max_completion_tokens", limit)  # the operator's own holds


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
        rf"max_completion_tokens.{{0,{MAX_GAP_CHARS}}}instead|max_tokens\W{_NOT_SUPPORTED}",
        _renamed_limit,
    ),
    "temperature": (rf"\btemperature\b{_NOT_SUPPORTED}", _without("temperature")),
    "top_p": (rf"\btop_p\b{_NOT_SUPPORTED}", _without("top_p")),
}  # fmt: skip
"""What a refusal says that means this field, and how a request does without it. A limit or a
temperature is named by other refusals too ("max_tokens is too large"), so those need the reason as
well."""


def _unknown(name: str) -> re.Pattern[str]:
    """What a server says that does not know a field, whatever its value."""
    before = (
        r"(unknown|unsupported|unrecogni[sz]ed|unexpected)\s+(request\s+|keyword\s+)?"
        r"(parameter|field|argument|key|property|input|name)s?\W{1,4}(supplied\W{1,4})?"
        r"([\w\[\]]+\.)*"
    )
    behind = (
        r"\W+(is\s+|are\s+)?(unknown|unsupported|unrecogni[sz]ed|not\s+(supported|permitted)"
        r"|extra\s+inputs)\b(?!\s+(value|tool|function|name|type|choice))"
    )
    forbidden = rf"extra_forbidden.{{0,80}}\b{name}\b"
    return re.compile(
        rf"{before}{name}\b|\b{name}\b{behind}|{forbidden}", re.IGNORECASE | re.DOTALL
    )


_FROM_CLIENTS: Final = {name: _unknown(name) for name in ("strict", "tool_choice")}
"""Fields whose values clients choose, and what a refusal says that is none of that value."""


class OptionalFields:
    """Fields that one server has refused."""

    def __init__(self) -> None:
        self._refused: list[str] = []

    @property
    def refused(self) -> tuple[str, ...]:
        """Names of the fields, in the order in which they were refused."""
        return tuple(self._refused)

    def request(self, body: Mapping[str, Any]) -> "FittedRequest":
        """A request with these fields, without those that the server is known to refuse."""
        return FittedRequest(self, body)

    def fitted(self, body: Mapping[str, Any]) -> Body:
        """The fields as the server takes them, as far as known."""
        fitted = dict(body)
        for name in self._refused:
            _OPTIONAL[name][1](fitted)
        return fitted

    def remember(self, name: str) -> bool:
        """Leave a field out of all later requests. False: it was left out already."""
        is_new = name not in self._refused  # another request may have been refused meanwhile
        if is_new:
            self._refused.append(name)
        return is_new


class FittedRequest:
    """One request, and the fields that it has to do without."""

    def __init__(self, known: OptionalFields, body: Mapping[str, Any]) -> None:
        self._known = known
        self.body = known.fitted(body)
        """The request as it is to be sent now."""
        self._lasting: dict[str, str] = {}
        """Fields that later requests do without as well, if this one is accepted; each with the
        refusal that named it."""

    def give_up(self, reason: str) -> str | None:
        """Leave out the field that the refusal of this request names, the first one if there are
        several; returns its name. None: it names none, or none that can be given up."""
        reason = before_quoted_input(reason)
        # What did not change the refusal was not its cause.
        self._lasting = {name: said for name, said in self._lasting.items() if said != reason}
        found = []
        for name, (said, leave_out) in _OPTIONAL.items():
            match = re.search(said, reason, re.IGNORECASE | re.DOTALL)
            if match is None:
                continue
            without = dict(self.body)
            leave_out(without)
            if without != self.body:
                found.append((match.start(), name, without))
        if not found:
            return None
        _, name, self.body = min(found, key=lambda each: each[0])
        if name not in _FROM_CLIENTS or _FROM_CLIENTS[name].search(reason):
            self._lasting[name] = reason
        return name

    def accepted(self) -> tuple[str, ...]:
        """Note that the server took the request as it was sent last. Returns names of the fields
        that later requests do without from now on."""
        return tuple(name for name in self._lasting if self._known.remember(name))
