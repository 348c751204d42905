"""Reader of one reply's chat completion chunks. Pure.

Servers differ in what is legal: the usage comes in a chunk without choices (OpenAI, vLLM, SGLang)
or with the last choice (llama.cpp); the arguments of a call come in pieces (OpenAI, vLLM) or whole;
the role comes alone or with text; thoughts are `reasoning_content` or `reasoning`.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage

from .errors import MalformedStreamError, RemoteError
from .event_stream import DONE

MAX_CALLS: Final = 64
"""Most calls of a reply. A model that loops writes calls until it is stopped."""

_FINISH: Final = {"tool_calls": "stop", "function_call": "stop"}
"""Reasons that the engine of this process has no word for."""


@dataclass(slots=True)
class _Call:
    name: str = ""
    arguments: str = ""


class ReplyReader:
    """State of one reply: its usage, its calls and why it ended."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self.is_done = False
        """True if the server has said that no more chunks follow."""
        self.has_usage = False
        self.usage = Usage()
        """Tokens: until the server has counted them, one for each chunk with output."""
        self._calls: dict[int, _Call] = {}

    @property
    def is_complete(self) -> bool:
        """True if nothing is missing but the end of the stream."""
        return self.finish_reason is not None and self.has_usage

    @property
    def has_calls(self) -> bool:
        """True if a call has begun."""
        return bool(self._calls)

    def push(self, event: str) -> str:
        """Take in an event's data; returns more words of the reply.

        Raises MalformedStreamError, and RemoteError for what the server reports.
        """
        if event.strip() == DONE:
            self.is_done = True
            return ""
        try:
            chunk = json.loads(event)
        except (ValueError, RecursionError):
            raise MalformedStreamError("sent a chunk that is not JSON") from None
        if not isinstance(chunk, dict):
            raise MalformedStreamError("sent a chunk that is not an object")
        if chunk.get("error") is not None:
            problem = _problem(chunk["error"])
            raise RemoteError(f"broke off{f': {problem}' if problem else ''}")
        try:
            self._count(chunk.get("usage"))
            choices = chunk.get("choices") or ()
            return "".join(self._choice(each) for each in choices if each.get("index", 0) == 0)
        except (AttributeError, TypeError, ValueError):
            raise MalformedStreamError("sent a chunk that is no chat completion chunk") from None

    def calls(self, offered: frozenset[str]) -> tuple[ModelCall, ...]:
        """Whole calls of tools that were offered, in order. One that was broken off is dropped."""
        found = (self._calls[index] for index in sorted(self._calls))
        return tuple(
            ModelCall(call.name, call.arguments.strip() or "{}")
            for call in found
            if call.name in offered and _is_object(call.arguments.strip() or "{}")
        )

    def _count(self, usage: Any) -> None:
        if usage is None:
            return
        details = usage.get("prompt_tokens_details") or {}
        self.has_usage = True
        self.usage = Usage(
            _number(usage.get("prompt_tokens")),
            _number(details.get("cached_tokens")),
            _number(usage.get("completion_tokens")),
        )

    def _choice(self, choice: dict[str, Any]) -> str:
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        if not isinstance(text, str):
            raise TypeError
        for call in delta.get("tool_calls") or ():
            self._add(call)
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if not self.has_usage and (text or thought or delta.get("tool_calls")):
            self.usage = Usage(0, 0, self.usage.output_tokens + 1)
        reason = choice.get("finish_reason")
        if reason is not None:
            self.finish_reason = _FINISH.get(reason, str(reason))
        return text

    def _add(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        index = piece.get("index")
        if index is None:  # some servers send calls whole, and do not number them
            index = len(self._calls) - (not function.get("name"))
        if not isinstance(index, int) or index < 0:
            raise TypeError
        if index not in self._calls and len(self._calls) >= MAX_CALLS:
            raise MalformedStreamError("called more tools at once than a reply may")
        call = self._calls.setdefault(index, _Call())
        call.name = call.name or function.get("name") or ""
        call.arguments += function.get("arguments") or ""


def refusal(body: bytes) -> str:
    """What an error response says, or nothing."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(parsed, dict):
        return ""
    return _problem(parsed.get("error", parsed))


def _problem(error: Any) -> str:
    """The message of an `error`, on one line, in the forms of OpenAI, vLLM and FastAPI."""
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or ""
    return " ".join(str(error).split())[:200] if isinstance(error, str) else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
