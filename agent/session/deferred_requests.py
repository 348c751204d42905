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


class DeferredRequests:
    """Requests of one session that wait, in order. Belongs to the event loop."""

    def __init__(
        self, group: asyncio.TaskGroup, carry_out: Callable[[ask.Request], Awaitable[None]]
    ) -> None:
        """`group`: that of the session, with which all that waits ends. `carry_out` answers
        requests that are refused, and raises nothing for them."""
        self._group = group
        self._carry_out = carry_out
        self._requests: deque[ask.Request] = deque()
        self._room = asyncio.Semaphore(MAX_DEFERRED)
        self.is_busy = False
        """Requests wait, or one of them is being carried out."""

    async def add(self, request: ask.Request) -> None:
        """Carry this request out behind those that wait. Returns at once, unless there is no
        room."""
        await self._room.acquire()
        self._requests.append(request)
        if not self.is_busy:
            self.is_busy = True
            self._group.create_task(self._run())

    def drop_responses(self) -> list[ask.CreateResponse]:
        """Remove the responses that wait, and return them."""
        waiting, self._requests = self._requests, deque()
        dropped: list[ask.CreateResponse] = []
        for each in waiting:
            if isinstance(each, ask.CreateResponse):
                dropped.append(each)
                self._room.release()
            else:
                self._requests.append(each)
        return dropped

    async def _run(self) -> None:
        try:
            while self._requests:
                request = self._requests.popleft()
                self._room.release()
                await self._carry_out(request)
        finally:
            self.is_busy = False
