"""DTMF input: the caller's keys as messages of the conversation.

With the first the agent falls silent, and when an entry is over
(`agent/telephony/media/dtmf_aggregator.py`) its keys are the
caller's message. What has to be heard to its end (that the call is recorded) no key stops: keys
that are pressed meanwhile wait until it was heard.

Each entry costs the model a reply, so there is a limit to them: nobody presses more than
`KEYS_PER_S`, and what comes faster is dropped.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.session.api.client_events import CancelResponse, CreateItem, CreateResponse, Request
from agent.session.api.conversation import ItemId, Message
from agent.session.api.settings import ResponseOptions
from agent.session.session import Session
from agent.telephony.media.dtmf_aggregator import MAX_KEYS, Keypad
from latency_budget.account.clock import Clock

KEYS_PER_S: Final = 15
"""So many at once, too. Dialers press ten a second, fingers six."""

_log = logging.getLogger(__name__)


class PhoneKeys:
    """Of one call. Belongs to the event loop."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self._session: Final = session
        self._clock = clock
        self._keypad = Keypad()
        self._pace = LeakyBucket(KEYS_PER_S, KEYS_PER_S, clock.now_ns() / 1e9)
        self._news = asyncio.Event()
        self._num_entries = 0
        self._is_held = False
        self._waiting: deque[str] = deque(maxlen=MAX_KEYS)
        """Pressed meanwhile."""
        self.num_dropped = 0
        """That came too fast."""

    async def press(self, key: str) -> list[Request]:
        """The caller has pressed it. Returns what the session was asked for."""
        if not self._pace.take(1, self._clock.now_ns() / 1e9):
            if not self.num_dropped:
                _log.warning(
                    "call %s: more than %d keys a second; those that are more are dropped",
                    self._session.id, KEYS_PER_S,
                )  # fmt: skip
            self.num_dropped += 1
            return []
        asked: list[Request] = []
        if self._is_held or self._waiting:
            self._waiting.append(key)
        else:
            asked = await self._take(key)
        self._news.set()
        return asked

    @contextmanager
    def held(self) -> Iterator[None]:
        """No key stops what is said meanwhile, nor is an entry answered."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._news.set()

    async def keep_time(self) -> NoReturn:
        """End entries whose time is up, and take up keys that waited."""
        while True:
            due_ns = self._keypad.next_deadline_ns()
            if not self._is_held and self._waiting:
                await self._take(self._waiting.popleft())
            elif self._is_held or due_ns is None:
                self._news.clear()
                await self._news.wait()
            else:
                now_ns = self._clock.now_ns()
                entered = self._keypad.on_timer(now_ns)
                if entered is None:
                    await asyncio.sleep((due_ns - now_ns) / 1e9)
                else:
                    await self._enter(entered)

    async def _take(self, key: str) -> list[Request]:
        now_ns = self._clock.now_ns()
        begins = self._keypad.next_deadline_ns() is None
        if begins and self._keypad.is_late_end(key, now_ns):
            return []
        entered = self._keypad.press(key, now_ns)
        if entered is not None:
            return await self._enter(entered)
        if not begins:
            return []
        asked = CancelResponse()
        await self._session.handle(asked)  # refused where nothing is being said
        return [asked]

    async def _enter(self, keys: str) -> list[Request]:
        self._num_entries += 1
        item_id = ItemId(f"keys_{self._num_entries}")
        said = f"(I pressed {' '.join(keys)} on my telephone.)"
        asked: list[Request] = [
            CancelResponse(),  # whatever began meanwhile does not know of these keys
            CreateItem(Message(item_id, "user", "text", said)),
            CreateResponse(ResponseOptions()),
        ]
        for request in asked:
            await self._session.handle(request)
        return asked
