"""A telephone call: the session, the carrier's stream, and the keys that are pressed.

Every frame of the carrier is dealt with as it comes. One that can't be served ends the call: what
follows it can't be trusted to be the caller's.

Keys are input to the conversation: with the first the agent falls silent, and when an entry is over
(`keypad.py`) its keys are the caller's message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NoReturn, Protocol

from latency_budget.clock import Clock

from . import errors
from .call_desk import CallOver
from .call_socket import Parting, Take
from .conversation import ItemId, Message
from .keypad import Keypad
from .notices import Notice
from .outbox import SlowReader
from .phone_line import HungUp, PhoneLine
from .requests import CancelResponse, CreateItem, CreateResponse, Request
from .session import Session
from .settings import ResponseOptions
from .wire.telephony.line import Frame, LineError

MAX_REASON_BYTES: Final = 123
"""Of what is said with a close code (RFC 6455, section 5.5.1)."""

STREAM_CLOSED: Final = "the carrier closed the stream"


class PhoneLink(Protocol):
    """By what frames travel: `CallSocket`, or a TCP connection."""

    def put(self, frame: Frame) -> None: ...

    async def carry(self, take: Take) -> Parting: ...

    def stop(self) -> None: ...

    async def say_last(self, frames: Iterable[Frame]) -> None: ...

    def let_go(self, code: int, reason: str = "") -> None: ...


class PhoneCall:
    """A `call_desk.Carrier`. Belongs to the event loop."""

    is_extended = False

    def __init__(
        self,
        line: PhoneLine,
        link: PhoneLink,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`line`: opened."""
        self._line = line
        self._link = link
        self._clock = clock
        self._pause = pause
        self._keypad = Keypad()
        self._pressed = asyncio.Event()
        self._num_entries = 0
        self._ended: Exception | None = None
        """Why it is over."""

    def notify(self, notice: Notice) -> None:
        """Tell the carrier what of it is for him."""
        self._line.send(notice)
        self._send()

    async def serve(self, session: Session) -> NoReturn:
        """Raises CallOver where the caller has gone, LineError where the stream can't be served,
        SlowReader where the carrier does not read, IdleClientError where it says nothing."""
        async with asyncio.TaskGroup() as group:
            keys = group.create_task(self._keep_keys(session))
            parting = await self._link.carry(lambda frame: self._take(session, frame))
            keys.cancel()
        if self._ended is not None:
            raise self._ended
        if parting is Parting.TOO_SLOW:
            raise SlowReader
        if parting is Parting.IDLE:
            raise errors.IdleClientError
        raise CallOver(STREAM_CLOSED)

    async def end(self, code: int, reason: str, *last: Notice) -> None:
        """Hang up."""
        await self._link.say_last(self._line.hang_up())
        self._link.let_go(code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))

    def _send(self) -> None:
        for frame in self._line.frames():
            self._link.put(frame)

    async def _take(self, session: Session, frame: Frame) -> Sequence[Request]:
        """Returns what the session was asked for."""
        try:
            requests = self._line.receive(frame)
        except LineError as error:
            self._end(error)
            return ()
        except HungUp as hung_up:
            self._end(CallOver(str(hung_up)))
            return ()
        for request in requests:
            await session.handle(request)
        for key in self._line.take_keys():
            await self._press(session, key)
        self._send()  # what waited for room in the carrier's queue
        return requests

    def _end(self, error: Exception) -> None:
        self._ended = error
        self._link.stop()

    # --- keys ---

    async def _press(self, session: Session, key: str) -> None:
        if self._keypad.next_deadline_ns() is None:
            await session.handle(CancelResponse())  # refused where nothing is being said
        entered = self._keypad.press(key, self._clock.now_ns())
        if entered is not None:
            await self._enter(session, entered)
        self._pressed.set()

    async def _keep_keys(self, session: Session) -> None:
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
                await self._pause((due_ns - now_ns) / 1e9)
            else:
                await self._enter(session, entered)

    async def _enter(self, session: Session, keys: str) -> None:
        self._num_entries += 1
        item_id = ItemId(f"keys_{self._num_entries}")
        said = f"(I pressed {' '.join(keys)} on my telephone.)"
        await session.handle(CreateItem(Message(item_id, "user", "text", said)))
        await session.handle(CreateResponse(ResponseOptions()))
