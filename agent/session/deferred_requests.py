"""Requests that wait while the models of a call's next language are loaded.

A change of the session may need models that nobody has used yet; loading them takes seconds. It is
carried out in a task of the session, so that the transport goes on reading: the call continues in
its old language, and a hang-up or a cancellation is noticed at once. What the client sends behind
such a change, and what depends on it, waits in order: a response that was asked for behind a change
is spoken in the new language. `NOT_DEFERRED` are the requests that nobody may wait for.

Overflow: from `MAX_DEFERRED` requests on, `add` waits, and with it the transport.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from .api import client_events as ask

MAX_DEFERRED: Final = 64
"""Requests that wait. Fewer: a client that sends a short history behind a change can't interrupt
until the models are there. More: each may be a frame of 4 MB, and is kept for every call."""

NOT_DEFERRED: Final = (
    ask.AppendAudio,
    ask.CommitAudio,
    ask.ClearAudio,
    ask.CancelResponse,
    ask.TruncateItem,
    ask.PlaybackReport,
)
"""The caller's audio, which is committed up to where it is now; and what stops a response, or says
how much of one was heard."""


@dataclass(slots=True, eq=False)
class _Deferred:
    request: ask.Request
    frame: int | None
    is_dropped: bool = False


class DeferredRequests:
    """Requests of one session that wait, in order. Belongs to the event loop."""

    def __init__(
        self, group: asyncio.TaskGroup, carry_out: Callable[[ask.Request], Awaitable[None]]
    ) -> None:
        """`group`: that of the session, with which all that waits ends. `carry_out` answers
        requests that are refused, and raises nothing for them."""
        self._group = group
        self._carry_out = carry_out
        self._waiting: deque[_Deferred] = deque()
        self._current: _Deferred | None = None
        """What is being carried out, or was when the session ended."""
        self._room = asyncio.Semaphore(MAX_DEFERRED)

    @property
    def is_busy(self) -> bool:
        """Requests wait, or one of them is being carried out."""
        return self._current is not None or bool(self._waiting)

    @property
    def first_frame(self) -> int | None:
        """Frame of the client's first request that is not done; None: all are. Once the session has
        ended, of the first one that it did not come to."""
        current = self._current
        begun = [current] if current is not None and not current.is_dropped else []
        frames = (each.frame for each in (*begun, *self._waiting))
        return next((frame for frame in frames if frame is not None), None)

    async def add(self, request: ask.Request, frame: int | None) -> None:
        """Carry this request, of the client's frame with this number, out behind those that wait;
        None: of the session's own.
        Returns at once, unless there is no room."""
        await self._room.acquire()
        was_busy = self.is_busy
        self._waiting.append(_Deferred(request, frame))
        if not was_busy:
            self._group.create_task(self._run())

    def drop_responses(self) -> list[ask.CreateResponse]:
        """Drop the responses that have not begun, and return them. One that is being carried out is
        still being checked: `is_dropped` says that it must not begin."""
        dropped: list[ask.CreateResponse] = []
        current = self._current
        if current is not None and isinstance(current.request, ask.CreateResponse):
            if not current.is_dropped:
                dropped.append(current.request)
            current.is_dropped = True
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if isinstance(each.request, ask.CreateResponse):
                dropped.append(each.request)
                self._room.release()
            else:
                self._waiting.append(each)
        return dropped

    def is_dropped(self, request: ask.Request) -> bool:
        """True for a response that was dropped while it was being carried out."""
        current = self._current
        return current is not None and current.request is request and current.is_dropped

    async def _run(self) -> None:
        while self._waiting:
            self._current = self._waiting.popleft()
            self._room.release()
            await self._carry_out(self._current.request)
            self._current = None  # only here: what was interrupted is not done
