"""Bringing the language model up to date while nobody waits for it.

What a client changes before a turn (instructions, items, the order of the history) would otherwise
be prefilled when the turn begins, while the caller waits: 324 tokens after a `session.update`,
where a few would do. So a change is followed by a warm-up: what is pending is told to the model,
and the model computes it. Every client sends its instructions as soon as it is connected.

The caller's words are such a change as well. What was understood of them so far is prefilled while
they are still being said (they may yet be understood otherwise: what differs is computed anew), so
that of the whole message only the end is left for when the turn is over.

A warm-up gives way: it waits until changes have stopped coming, it does not begin while a reply is
made or in the caller's pause (the final pass works then), and a reply that begins ends it first, so
that never two tell the model what is pending.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from agent.errors import StageError

from .chat_context import ChatContext
from .chat_messages import joined

QUIET_S: Final = 0.05
"""Without a change before it begins. Clients send their settings and their items in one burst, and
each of them would void the work done for the one before; nobody speaks within so short a time."""


class IdlePrefill:
    """Belongs to one session. Nothing is warmed unless `run` is running."""

    def __init__(
        self,
        context: ChatContext,
        may_begin: Callable[[], bool],
        refused: Callable[[StageError], None],
    ) -> None:
        """`refused` hears of what the model can't take; that is not told to it again."""
        self._context = context
        self._may_begin = may_begin
        self._refused = refused
        self._wanted = asyncio.Event()
        self._waiting_for_leave = False
        self._words = ""
        """What the caller has said so far of a message that is not complete."""
        self._is_heard = False
        """The newest change is what the caller says."""
        self._work: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """What the model is to know is not what it has computed any more."""
        self._wanted.set()

    def hears(self, words: str) -> None:
        """The caller's message begins like this."""
        self._words = words
        self._is_heard = True
        self._wanted.set()

    def heard_all(self) -> None:
        """The message is complete, or there is none."""
        self._words = ""

    def go_on(self) -> None:
        """Somebody's turn may be over: what was put off may begin."""
        if self._waiting_for_leave and self._may_begin():
            self._waiting_for_leave = False
            self._wanted.set()

    async def run(self) -> None:
        """Warm after changes until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                if not await self._is_quiet():
                    continue
                if not self._may_begin():
                    self._waiting_for_leave = True
                    continue
                self._work = group.create_task(self._warm())
                await asyncio.wait([self._work])
                self._work = None

    async def _is_quiet(self) -> bool:
        """Whether changes have stopped coming. Words are not waited for: they come one by one."""
        is_heard, self._is_heard = self._is_heard, False
        if not is_heard:
            await asyncio.sleep(QUIET_S)
        return not self._wanted.is_set()

    async def rest(self) -> None:
        """Stop what is under way; returns when it has."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work])

    async def catch_up(self) -> bool:
        """In place of what is under way, tell the model what is pending. False where it can't be
        told."""
        await self.rest()
        return await self._settled()

    async def _warm(self) -> None:
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
                self.changed()
            return False
        return True
