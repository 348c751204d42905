"""Idle prefill: brings the language model up to date while no caller waits for it.

What a client changes before a turn (instructions, items, the order of the history) would otherwise
be prefilled when the turn begins, while the caller waits: 324 tokens after a `session.update`,
where a few would do. So a change is followed by a prefill: pending changes are committed, and
the model computes them. Every client sends its instructions as soon as it is connected.

The caller's words are such a change as well. The partial transcript is prefilled while they are
still being spoken (where it changes, the rest is computed anew), so that only the end of the
message is left when the turn is over.

A prefill gives way: it waits until changes have stopped coming, it does not begin while a reply is
made or in the caller's pause (the final pass runs then), and a response that begins ends it first,
so that never two of them settle the context.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from agent.errors import StageError

from .chat_context import ChatContext
from .chat_messages import joined

QUIET_S: Final = 0.05
"""Seconds without a change before a prefill begins. Clients send settings and items in one burst,
and each would void the work done for the one before; no caller speaks within so short a time."""


class IdlePrefill:
    """Schedules the prefills of one session. None begins unless `run` is running."""

    def __init__(
        self,
        context: ChatContext,
        may_begin: Callable[[], bool],
        refused: Callable[[StageError], None],
    ) -> None:
        """`refused` receives what the model can't take; that is not committed again."""
        self._context = context
        self._may_begin = may_begin
        self._refused = refused
        self._wanted = asyncio.Event()
        self._is_put_off = False
        self._words = ""
        """Partial transcript of a message that is not complete."""
        self._is_heard = False
        """The newest change is a partial transcript."""
        self._work: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """The model's input differs from what it has computed."""
        self._wanted.set()

    def hears(self, words: str) -> None:
        """Set the partial transcript of the caller's message."""
        self._words = words
        self._is_heard = True
        self._wanted.set()

    def heard_all(self) -> None:
        """The caller's message is complete, or there is none."""
        self._words = ""

    def go_on(self) -> None:
        """A turn may be over: begin a prefill that was put off."""
        if self._is_put_off and self._may_begin():
            self._is_put_off = False
            self._wanted.set()

    async def run(self) -> None:
        """Prefill after changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if not await self._is_quiet():
                    continue
                if not self._may_begin():
                    self._is_put_off = True
                    continue
                self._work = group.create_task(self._prefill())
                await asyncio.wait([self._work])
                self._work = None

    async def _is_quiet(self) -> bool:
        """True once changes have stopped. A partial transcript does not wait: words come one by
        one."""
        is_heard, self._is_heard = self._is_heard, False
        if not is_heard:
            await asyncio.sleep(QUIET_S)
        return not self._wanted.is_set()

    async def rest(self) -> None:
        """Stop a running prefill. Returns when it has stopped."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    async def catch_up(self) -> bool:
        """Stop a running prefill and settle the context. False where that failed."""
        await self.rest()
        return await self._settled()

    async def _prefill(self) -> None:
        if await self._settled():
            words = joined(self._context.open_text, self._words)
            await self._context.chat.preview(words)

    async def _settled(self) -> bool:
        try:
            await self._context.settle()
        except StageError as error:
            # Where the model is broken the next turn will fail too, and has an answer to that.
            if error.refused:
                self._refused(error)
                if not self._context.is_edited:  # else the same would be refused again, and again
                    self.changed()
            return False
        return True
