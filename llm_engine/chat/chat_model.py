"""Interface of a chat model: a history in, a reply out. What a chat plug-in makes.

It is stateless: each request has the whole conversation. What a call needs besides (history, cuts
after a barge-in, summaries, deadlines, a smaller model that stands in) is done by its user
(`agent/stages/remote/`), the same way for every chat model.

Pure.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .tool_calls import ToolCall


@dataclass(frozen=True, slots=True)
class ChatModelOptions:
    """Settings of `[llm_engine]` that a chat model is loaded with."""

    threads: int = 2
    context: int = 4096
    """Tokens that a request has at most, as its sender estimates them."""


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """One request for a reply. The fields mean what they do in OpenAI's chat API."""

    messages: tuple[Mapping[str, Any], ...]
    """In OpenAI's form, like {"role": "user", "content": "Hello"}. The content is always text. A
    reply with calls has `tool_calls`, a result has the role "tool" and `tool_call_id`."""
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    """Functions that the reply may call, in OpenAI's form: {"type": "function", "function": ...}"""
    tool_choice: str | Mapping[str, Any] = "auto"
    """"auto", "none", "required", or an object that names a function."""
    parallel_tool_calls: bool = True


class ChatModel(Protocol):
    """Interface of a chat model. Belongs to one event loop, where several replies run at once.
    `llm_engine.check_chat` is the contract."""

    def reply(self, request: ReplyRequest) -> AsyncIterator[str | ToolCall]:
        """Generate a reply: text, in pieces of any length as soon as each is known, and behind it
        whole calls of tools. An async generator; closing it stops the work.

        Must not block the event loop, which all calls share: what blocks runs on a thread
        (`asyncio.to_thread`). May raise anything: before the first piece another model may answer
        instead, after it the caller hears an apology.
        """
        ...

    async def close(self) -> None:
        """Release what the model holds. Called once."""
        ...


async def checked_reply(
    model: ChatModel, request: ReplyRequest
) -> AsyncGenerator[str | ToolCall, None]:
    """The pieces of a reply; closing this closes the model's generator. Raises TypeError for what
    is no reply, and what the model raises; RuntimeError for SystemExit, which a task would carry
    to the event loop and end the service."""
    stream: Any = model.reply(request)
    if not hasattr(stream, "__aiter__"):
        if isinstance(stream, Coroutine):
            stream.close()
        raise TypeError(
            f"reply() returned {type(stream).__name__}, and must be an async generator: "
            "`async def` with `yield`"
        )
    try:
        async for piece in stream:
            if not isinstance(piece, str | ToolCall):
                raise TypeError(
                    f"reply() yielded {type(piece).__name__}, and must yield str or "
                    "llm_engine.ToolCall"
                )
            yield piece
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error
    finally:
        if hasattr(stream, "aclose"):
            await stream.aclose()
