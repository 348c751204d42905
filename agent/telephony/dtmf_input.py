"""DTMF input: the caller's keys as messages of the conversation.

The first key of an entry silences the agent; when the entry is over
(`agent/telephony/media/dtmf_aggregator.py`), its keys are a message of the caller. Keys do not
interrupt an announcement that has to be heard to its end (that the call is recorded): they wait.

Each entry costs a reply of the model, so their rate is limited: keys beyond `KEYS_PER_S` are
dropped.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.session.api.client_events import CancelResponse, CreateItem, CreateResponse, Request
from agent.session.api.conversation import KEYS_ITEM, ItemId, Message
from agent.session.api.settings import ResponseOptions
from agent.session.session import Session
from agent.telephony.media.dtmf_aggregator import MAX_KEYS, DtmfAggregator
from latency_budget.account.clock import Clock

KEYS_PER_S: Final = 15
"""Most keys a second, and in one burst. Dialers press ten a second, people six."""

_log = logging.getLogger(__name__)


class PhoneKeys:
    """DTMF input of one call. Belongs to the event loop."""

    def __init__(self, session: Session, clock: Clock) -> None:
        self._session: Final = session
        self._clock = clock
        self._aggregator = DtmfAggregator()
        self._pace = LeakyBucket(KEYS_PER_S, KEYS_PER_S, clock.now_ns() / 1e9)
        self._news = asyncio.Event()
        self._num_entries = 0
        self._is_held = False
        self._waiting: deque[str] = deque(maxlen=MAX_KEYS)
        """Keys pressed during an announcement."""
        self.num_dropped = 0
        """Keys beyond the rate limit."""

    async def press(self, key: str) -> list[Request]:
        """Take a key of the caller. Return the requests that were sent to the session."""
        if not self._pace.take(1, self._clock.now_ns() / 1e9):
            if not self.num_dropped:
                _log.warning(
                    "call %s: more than %d keys a second; further keys are dropped",
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
        """Within this context, keys wait: they interrupt nothing and no entry is answered."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._news.set()

    async def keep_time(self) -> NoReturn:
        """End entries by their pause, and process keys that waited."""
        while True:
            due_ns = self._aggregator.next_deadline_ns()
            if not self._is_held and self._waiting:
                await self._take(self._waiting.popleft())
            elif self._is_held or due_ns is None:
                self._news.clear()
                await self._news.wait()
            else:
                now_ns = self._clock.now_ns()
                entered = self._aggregator.on_timer(now_ns)
                if entered is None:
                    await asyncio.sleep((due_ns - now_ns) / 1e9)
                else:
                    await self._enter(entered)

    async def _take(self, key: str) -> list[Request]:
        now_ns = self._clock.now_ns()
        begins = self._aggregator.next_deadline_ns() is None
        if begins and self._aggregator.is_late_end(key, now_ns):
            return []
        entered = self._aggregator.press(key, now_ns)
        if entered is not None:
            return await self._enter(entered)
        if not begins:
            return []
        asked = CancelResponse()
        await self._session.handle(asked)  # refused where nothing is being said
        return [asked]

    async def _enter(self, keys: str) -> list[Request]:
        self._num_entries += 1
        item_id = ItemId(f"{KEYS_ITEM}{self._num_entries}")
        said = f"(I pressed {' '.join(keys)} on my telephone.)"
        asked: list[Request] = [
            CancelResponse(),  # a response that began meanwhile does not know these keys
            CreateItem(Message(item_id, "user", "text", said)),
            CreateResponse(ResponseOptions()),
        ]
        for request in asked:
            await self._session.handle(request)
        return asked
