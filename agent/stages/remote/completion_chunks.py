"""Parser of the chunks of a streamed chat completion, from OpenAI's API and those like it. Pure.

Servers differ in what they leave out: `choices` may be missing or empty beside the usage (OpenAI,
vLLM), texts may be null (SGLang), a call's `index` may be missing (Gemini), and its id and name
stand in its first piece only. Thoughts come as `reasoning_content` or `reasoning`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agent.codec.json_frame import read_frame
from agent.errors import ClientError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage

from .event_stream import MalformedStreamError

MAX_CALLS: Final = 64
"""Calls in one reply; more are a loop of the model."""

MAX_ARGUMENT_CHARS: Final = 1 << 16
"""Arguments of one call. Real ones have some hundred characters, and the longest reply, of 8192
tokens, has no more than 40 000. Longer: where their end has to be looked for, it takes more than a
millisecond of all calls' time."""

CHARS_PER_TOKEN: Final = 16
SPARE_CHARS: Final = 256
"""Most characters of a reply: so many for each token of its limit, and so many more. Words and code
have 3 to 6 a token, deep indentation 16; a single token may have 128. Lower: an honest reply is
cut. Higher: a server that takes no notice of the limit is listened to for longer."""

MAX_REPLY_TOKENS: Final = 8192
"""Limit of a reply where the operator's fields take the request's away: the highest setting."""

MAX_COUNT: Final = 1 << 53
"""Tokens that a server may count; more are no count. Up to here JavaScript reads them exactly; sums
of integers of 4300 digits can't be written."""

MAX_FIELD_ERRORS: Final = 4
"""Fields that an error names at most."""

END_OF_STREAM: Final = "[DONE]"


class ReportedError(Exception):
    """An error that the server reports in place of a chunk. The message is the server's."""

    def __init__(self, message: str, status: int = 0) -> None:
        """`status`: the HTTP status that it would have been; 0 where the server does not say."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call."""

    index: int | None
    """Which of the reply's calls it belongs to; None where the server does not say."""
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk of a reply."""

    text: str = ""
    thinks: bool = False
    """It holds a part of a thought, which is not kept."""
    calls: tuple[CallPiece, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None

    @property
    def is_progress(self) -> bool:
        """True if the model has generated something. A first chunk with the role alone is none."""
        return bool(self.text or self.thinks or self.calls or self.finish_reason)


def parse_chunk(data: str) -> Chunk:
    """Raises MalformedStreamError, and ReportedError where the server reports a failure."""
    body = read_object(data)
    if body.get("error"):
        raise ReportedError(error_text(body), _status(body["error"]))
    usage = usage_of(body.get("usage"))
    choices = body.get("choices")
    if not choices:
        return Chunk(usage=usage)
    choice = choices[0] if isinstance(choices, list) else None
    if not isinstance(choice, dict):
        raise MalformedStreamError("sent a chunk with a choice that is no object")
    delta = choice.get("delta") or {}
    if not isinstance(delta, dict):
        raise MalformedStreamError("sent a chunk with a delta that is no object")
    reason = choice.get("finish_reason")
    return Chunk(
        _text(delta, "content"),
        bool(_text(delta, "reasoning_content") or _text(delta, "reasoning")),
        _calls(delta.get("tool_calls")),
        str(reason) if reason else None,
        usage,
    )


def read_object(data: str | bytes) -> dict[str, Any]:
    """A JSON object within the limits of `read_frame`. Raises MalformedStreamError."""
    try:
        return read_frame(data)
    except ClientError:
        raise MalformedStreamError("sent what is not a JSON object") from None


def usage_of(value: object) -> Usage | None:
    """Token counts of a reply, if this is a usage. The cached tokens stand where OpenAI has them,
    or as DeepSeek and Moonshot call them."""
    if not isinstance(value, dict):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    for name in ("prompt_cache_hit_tokens", "cached_tokens"):
        cached = value.get(name) if cached is None else cached
    return Usage(
        _count(value.get("prompt_tokens")), _count(cached), _count(value.get("completion_tokens"))
    )


def error_text(body: dict[str, Any]) -> str:
    """What a server says of an error: OpenAI's form, FastAPI's, or a bare text. The field at fault
    comes first, where the server names one."""
    error = body.get("error") or body.get("detail") or body.get("message") or ""
    if isinstance(error, list):  # FastAPI's checks of fields
        return "; ".join(_field_error(each) for each in error[:MAX_FIELD_ERRORS])
    field = ""
    if isinstance(error, dict):
        field, error = error.get("param") or "", error.get("message") or ""
    text = error if isinstance(error, str) else ""
    return f"{field}: {text}" if text and isinstance(field, str) and field not in text else text


def _field_error(value: object) -> str:
    if not isinstance(value, dict):
        return ""
    where, message = value.get("loc"), value.get("msg")
    path = [str(each) for each in where if each != "body"] if isinstance(where, list) else []
    return f"{'.'.join(path)}: {message if isinstance(message, str) else ''}"


def _status(error: object) -> int:
    """HTTP status in an error of a stream: vLLM, SGLang, llama.cpp and OpenRouter send a number."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else 0


class ReplyLimit:
    """Limit of one reply's characters, for servers that take no notice of the limit of tokens.

    Thoughts in fields of their own do not count: some servers' limit is one of the words alone, and
    they are not kept.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        """`request`: fields of the request, in OpenAI's form."""
        asked = [request.get(name) for name in ("max_tokens", "max_completion_tokens")]
        limits = [each for each in asked if isinstance(each, int)]
        if min(limits, default=0) <= 0:  # llama.cpp takes -1 for none
            limits.append(MAX_REPLY_TOKENS)
        self._num_left = max(limits) * CHARS_PER_TOKEN + SPARE_CHARS

    @property
    def is_over(self) -> bool:
        """The reply was longer, and has ended."""
        return self._num_left < 0

    def cut(self, chunk: Chunk) -> Chunk:
        """The chunk; where the reply is too long with it, the text that fits, as the reply's
        end."""
        num_left = self._num_left
        # An empty piece of a call costs as much as one with a character.
        self._num_left -= len(chunk.text) + sum(len(each.arguments) + 1 for each in chunk.calls)
        if not self.is_over:
            return chunk
        return Chunk(chunk.text[:num_left], finish_reason="length", usage=chunk.usage)


class CallAssembler:
    """Puts the calls of one reply together from their pieces."""

    def __init__(self, names: frozenset[str]) -> None:
        """`names`: tools that may be called."""
        self._names = names
        self._begun: list[_BegunCall] = []
        self._num_returned = 0

    def push(self, pieces: tuple[CallPiece, ...]) -> tuple[ModelCall, ...]:
        """Add pieces; returns the calls behind which another one has begun.

        Raises MalformedStreamError for a call of a tool that was not offered, with arguments that
        are no object or too long, or too many.
        """
        for piece in pieces:
            at = self._place(piece)
            if at is None:
                if piece.name not in self._names:
                    raise MalformedStreamError("called a tool that was not offered")
                if len(self._begun) == MAX_CALLS:
                    raise MalformedStreamError(f"called more than {MAX_CALLS} tools at once")
                self._begun.append(_BegunCall(piece.index, piece.id, piece.name))
            self._begun[-1 if at is None else at].add(piece.arguments)
        return self._returned(max(self._num_returned, len(self._begun) - 1))

    def flush(self, *, is_whole: bool) -> tuple[ModelCall, ...]:
        """The last call. `is_whole` False: the reply was broken off; the call is dropped unless its
        arguments are complete all the same."""
        if self._begun and not is_whole and not self._begun[-1].is_object:
            self._begun.pop()
        return self._returned(len(self._begun))

    def _returned(self, end: int) -> tuple[ModelCall, ...]:
        fresh = self._begun[self._num_returned : end]
        self._num_returned = end
        calls = tuple(ModelCall(each.name, each.arguments.strip() or "{}") for each in fresh)
        # In the history it would fail every later request: servers read it as JSON.
        if not all(_is_object(call.arguments) for call in calls):
            raise MalformedStreamError("called a tool with arguments that are no JSON object")
        return calls

    def _place(self, piece: CallPiece) -> int | None:
        """Number of the call that a piece continues; None: it begins one."""
        for at in range(len(self._begun) - 1, self._num_returned - 1, -1):
            begun = self._begun[at]
            if piece.id and begun.id and piece.id != begun.id and begun.ends_before(piece):
                continue
            if piece.index == begun.index and not (piece.index is None and piece.name):
                return at
        return None


@dataclass(slots=True)
class _BegunCall:
    """A call whose arguments come in pieces."""

    index: int | None
    id: str
    name: str
    _pieces: list[str] = field(default_factory=list)
    _num_chars: int = 0
    _is_closed: bool = False
    """What came last, white space aside, is a closing brace."""

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    @property
    def is_object(self) -> bool:
        """True if the arguments so far are a JSON object."""
        return self._is_closed and _is_object(self.arguments)

    def add(self, arguments: str) -> None:
        """Add a piece of the arguments. Raises MalformedStreamError where they are too long."""
        self._num_chars += len(arguments)
        if self._num_chars > MAX_ARGUMENT_CHARS:
            raise MalformedStreamError(
                f"called a tool with more than {MAX_ARGUMENT_CHARS} characters of arguments"
            )
        self._pieces.append(arguments)
        if end := arguments.rstrip():
            self._is_closed = end.endswith("}")

    def ends_before(self, piece: CallPiece) -> bool:
        """True if a piece with another id is not the next one of this call. vLLM gave each piece an
        id of its own up to version 0.8, and each piece of a call that was demanded the name as
        well."""
        return bool(piece.name) and (piece.name != self.name or self.is_object)


def _calls(value: object) -> tuple[CallPiece, ...]:
    if not value:
        return ()
    if not isinstance(value, list):
        raise MalformedStreamError("sent tool calls that are no list")
    pieces = []
    for each in value:
        function = each.get("function") if isinstance(each, dict) else None
        if not isinstance(each, dict) or not isinstance(function or {}, dict):
            raise MalformedStreamError("sent a tool call that is no object")
        index, function = each.get("index"), function or {}
        pieces.append(
            CallPiece(
                index if isinstance(index, int) else None,
                _text(each, "id"),
                _text(function, "name"),
                _text(function, "arguments"),
            )
        )
    return tuple(pieces)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedStreamError(f"sent a chunk whose {name} is no text")
    return value


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MAX_COUNT else 0


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
