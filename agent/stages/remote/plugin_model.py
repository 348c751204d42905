"""The chat model of a plug-in, as a source of replies.

It is other people's code on the event loop of all calls. So each wait for it is bounded, an error
of it ends one reply, and what it says in an error goes to the log only: callers and `/readyz` read
its class, because the text may hold an address or a key.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final, Literal

import llm_engine
from agent.stages.stall_timeout import stall_timeout
from engine_plugins.discovery import said
from llm_engine.chat.chat_model import ChatModel, ChatModelOptions, ReplyRequest, checked_reply

from .completion_chunks import CallPiece, Chunk, ReplyLimit
from .recovery import recovery_wait_s
from .remote_error import RemoteError

CLOSE_TIMEOUT_S: Final = 1.0
"""Time for a reply that is broken off to clean up. Longer: a caller who interrupts waits for it."""

_log = logging.getLogger(__name__)


class PluginModel:
    """A `ReplySource`: the chat model of a plug-in. One event loop."""

    caches_prefix = False

    def __init__(self, reference: str, options: ChatModelOptions, timeout_s: float) -> None:
        """`reference`: the setting's value, "NAME:ARGUMENT"."""
        self.subject = f"The chat plug-in {reference.partition(':')[0]!r}"
        self.timeout_s = timeout_s
        self._reference = reference
        self._options = options
        self._model: ChatModel | None = None
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the model can't be used at present; None: it can."""
        return None if self._problem is None else f"t{self.subject[1:]} {self._problem}"

    async def start(self) -> None:
        """Load the model on a thread and try it. Raises llm_engine.ModelError where it can't be
        loaded; one that does not reply is no failure of this service: `problem` says so."""
        self._model = await self._loaded()
        await self._probe()

    async def _loaded(self) -> ChatModel:
        """Load the model on a thread for which the end of the process does not wait."""
        loop = asyncio.get_running_loop()
        loaded: asyncio.Future[ChatModel] = loop.create_future()

        def load() -> None:
            try:
                model = llm_engine.load_chat(self._reference, self._options)
            except Exception as error:
                settle(partial(loaded.set_exception, error))
            else:
                settle(partial(loaded.set_result, model))

        def settle(how: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: None if loaded.done() else how())

        threading.Thread(target=load, name="halfsec-chat-plug-in", daemon=True).start()
        return await loaded

    async def watch(self) -> None:
        """Try a model that has failed until it replies again, until cancelled."""
        num_failed = 0
        while True:
            await asyncio.sleep(recovery_wait_s(num_failed))
            if self._problem is not None:
                await self._probe()
            num_failed = 0 if self._problem is None else num_failed + 1

    async def close(self) -> None:
        """Close the model. What it raises is logged."""
        model, self._model = self._model, None
        if model is not None:
            try:
                async with asyncio.timeout(self.timeout_s):
                    await model.close()
            except Exception as error:
                _log.warning("%s could not be closed: %s", self.subject, said(error))

    async def reply(
        self, body: Mapping[str, Any], *, first_token_s: float, is_last_resort: bool
    ) -> AsyncGenerator[Chunk, None]:
        """See `ReplySource.reply`. Raises RemoteError."""
        wait_s, has_begun = first_token_s, False
        try:
            async with aclosing(self._chunks(body)) as chunks:
                while True:
                    async with stall_timeout(wait_s):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        break
                    wait_s, has_begun = self.timeout_s, True
                    yield chunk
        except TimeoutError:
            is_late = not has_begun and first_token_s < self.timeout_s
            kind: Literal["late", "broken"] = "late" if is_late else "broken"
            silent = RemoteError(f"sent nothing for {wait_s:.1f} s", kind)
            self._failed(silent)
            raise silent from None
        except RemoteError as error:
            self._failed(error)
            raise
        self._works()

    async def complete(self, messages: Sequence[Mapping[str, Any]], max_tokens: int) -> str:
        """See `ReplySource.complete`. Raises RemoteError."""
        body = {"messages": messages, "max_tokens": max_tokens}
        chunks = self.reply(body, first_token_s=self.timeout_s, is_last_resort=True)
        async with aclosing(chunks):
            return "".join([chunk.text async for chunk in chunks])

    async def read_ahead(self, body: Mapping[str, Any]) -> None:
        """Do nothing: chat models keep no prompts."""

    async def _chunks(self, body: Mapping[str, Any]) -> AsyncGenerator[Chunk, None]:
        """Raises RemoteError."""
        if self._model is None:
            raise RemoteError("is not loaded")
        pieces, limit = checked_reply(self._model, _request(body)), ReplyLimit(body)
        num_calls, is_empty = 0, True
        try:
            async for piece in pieces:
                if isinstance(piece, str):
                    if not piece:
                        continue
                    chunk = Chunk(piece)
                else:
                    chunk = Chunk(calls=(CallPiece(num_calls, "", piece.name, piece.arguments),))
                    num_calls += 1
                is_empty = False
                yield limit.cut(chunk)
                if limit.is_over:
                    _log.warning("%s takes no notice of max_tokens: a reply was cut", self.subject)
                    return
        except Exception as error:
            _log.warning("%s failed: %s", self.subject, said(error))
            raise RemoteError(f"raised {type(error).__name__}") from error
        finally:
            # An error while it is closed changes nothing: what it has sent was taken.
            with contextlib.suppress(Exception):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await pieces.aclose()
        if is_empty:
            raise RemoteError("sent an empty reply", "passing")
        yield Chunk(finish_reason="tool_calls" if num_calls else "stop")

    async def _probe(self) -> None:
        body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        with contextlib.suppress(RemoteError):
            chunks = self.reply(body, first_token_s=self.timeout_s, is_last_resort=True)
            async with aclosing(chunks):
                await anext(chunks)
            self._works()

    def _failed(self, error: RemoteError) -> None:
        if error.kind != "late":
            self._problem = error.reason

    def _works(self) -> None:
        if self._problem is not None:
            _log.warning("%s works again", self.subject)
        self._problem = None


def _request(body: Mapping[str, Any]) -> ReplyRequest:
    """The request, from its fields in OpenAI's form."""
    return ReplyRequest(
        tuple(body["messages"]),
        max_tokens=body["max_tokens"],
        temperature=body.get("temperature", 0.0),
        top_p=body.get("top_p", 1.0),
        seed=body.get("seed"),
        stop=tuple(body.get("stop", ())),
        tools=tuple(body.get("tools", ())),
        tool_choice=body.get("tool_choice", "auto"),
        parallel_tool_calls=body.get("parallel_tool_calls", True),
    )
