"""Keys of a call as the conversation gets to know them.

With the first the agent falls silent, and when an entry is over (`keypad.py`) its keys are the
caller's message.
"""

import asyncio
from typing import Final, NoReturn

from latency_budget.clock import Clock

from .conversation import ItemId, Message
from .keypad import Keypad
from .requests import CancelResponse, CreateItem, CreateResponse
from .session import Session
from .settings import ResponseOptions


class PhoneKeys:
    """Of one call. Belongs to the event loop."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self._session: Final = session
        self._clock = clock
        self._keypad = Keypad()
        self._pressed = asyncio.Event()
        self._num_entries = 0

    async def press(self, key: str) -> None:
        """The caller has pressed it."""
        if self._keypad.next_deadline_ns() is None:
            await self._session.handle(CancelResponse())  # refused where nothing is being said
        entered = self._keypad.press(key, self._clock.now_ns())
        if entered is not None:
            await self._enter(entered)
        self._pressed.set()

    async def keep_time(self) -> NoReturn:
        """End entries whose time is up."""
        while True:
            due_ns = self._keypad.next_deadline_ns()
            if due_ns is None:
                self._pressed.clear()
                await self._pressed.wait()
                continue
            now_ns = self._clock.now_ns()
            entered = self._keypad.on_timer(now_ns)
            if entered is None:
                await asyncio.sleep((due_ns - now_ns) / 1e9)
            else:
                await self._enter(entered)

    async def _enter(self, keys: str) -> None:
        self._num_entries += 1
        item_id = ItemId(f"keys_{self._num_entries}")
        # Whatever began meanwhile does not know of these keys.
        await self._session.handle(CancelResponse())
        said = f"(I pressed {' '.join(keys)} on my telephone.)"
        await self._session.handle(CreateItem(Message(item_id, "user", "text", said)))
        await self._session.handle(CreateResponse(ResponseOptions()))
