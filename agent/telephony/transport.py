"""Telephone transport: a call's session, its media stream, and control of the call.

Every frame of the carrier is dealt with as it comes. One that can't be served ends the call: what
follows it can't be trusted to be the caller's.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn, Protocol

from agent import errors
from agent.calls.service import REVOKED, SILENT, STOPPED, TIME_IS_UP, CallOver
from agent.errors import SlowReader
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.realtime.socket import SocketEnd, Take
from agent.session.api.client_events import AppendAudio, Request
from agent.session.api.server_events import (
    AudioCommitted,
    Extension,
    ItemAdded,
    Notice,
    ReplyEnded,
    ReplyStatus,
    SpeechStarted,
    SpeechStopped,
    TranscriptCompleted,
)
from agent.session.session import Session
from agent.telephony.carriers.media_stream import Frame, StreamError
from agent.telephony.media.amd import AnsweringMachineDetector
from agent.telephony.media.dtmf import recorder_tone
from agent.telephony.outbound.transfer import CallTransfer, Handover
from agent.tools.server_tool import ServerTool
from latency_budget.account.clock import Clock

from .announcements import conduct
from .call_plan import PLAIN, CallPlan, Cause
from .call_tools import phone_tools
from .dtmf_input import PhoneKeys
from .media_session import HungUp, PhoneLine

MAX_REASON_BYTES: Final = 123
"""Of what is said with a close code (RFC 6455, section 5.5.1)."""

STREAM_CLOSED: Final = "the carrier closed the stream"
BROKEN_OFF: Final = "the connection to the carrier broke"
AGENT_HUNG_UP: Final = "the agent hung up"

MARKS_S: Final = 1.5
"""For the carrier to say that it has played what it should have played by now. Its leg and jitter
take 0.1 to 0.5 s; after two seconds of silence callers are told to wait
(`agent/session/response/task.py`)."""
LEAVE_S: Final = 10.0
"""For the rest of a farewell that was sent, or of the apology in its place."""

_CAUSES: Final[Mapping[str, Cause]] = {
    SILENT: "silent",
    TIME_IS_UP: "time_limit",
    REVOKED: "revoked",
    STOPPED: "stopped",
}
"""Of ends that come from elsewhere, by what is said of them; of all others "failed"."""


class PhoneLink(Protocol):
    """By what frames travel: `CallSocket`."""

    def put(self, frame: Frame) -> None: ...

    def forget(self) -> None: ...

    async def carry(self, take: Take) -> SocketEnd: ...

    def stop(self) -> None: ...

    async def send_last(self, frames: Iterable[Frame]) -> None: ...

    def release(self, code: int, reason: str = "") -> None: ...


class PhoneCall:
    """A `call_desk.CallTransport`, and the `phone_tools.Receiver` of its tools. Belongs to the
    event loop."""

    is_extended = False

    def __init__(
        self, line: PhoneLine, link: PhoneLink, clock: Clock, plan: CallPlan = PLAIN
    ) -> None:
        """`line`: opened."""
        assert line.started is not None
        self._call_id = line.started.call_id
        self.carrier: Final = line.carrier
        self.cause: Cause | None = None
        """Why it ended; while it goes on, why it is about to."""
        self.reason = ""
        """The same in words."""
        self.order: Final = line.order
        """Of the frames that come."""
        self.num_dropped = 0
        """Of these, because there was too much sound for the time."""
        self.num_keys = 0
        """That the caller has pressed."""
        self.tools: Final[Mapping[str, ServerTool]] = phone_tools(self, plan)
        self.watch: Final = plan.watch
        """For what has answered a call of ours; None of others."""
        self._plan = plan
        self._line = line
        self._link = link
        self._clock = clock
        self._session: Session | None = None
        self._pace = LeakyBucket(1.0, plan.ahead_s, clock.now_ns() / 1e9)
        """Of the caller's sound."""
        self._began_ns = clock.now_ns()
        self.handing_on: Final = CallTransfer(plan.move)
        self._over: Exception | None = None
        """What ended it."""
        self._news = asyncio.Event()
        """The carrier has sent something."""
        self.takes_leave = False
        """It ends with the present reply, unless the caller has something to say to that."""
        self._reply_over = asyncio.Event()
        """The newest one is."""
        self._status: ReplyStatus = "completed"
        """With which it ended."""

    def notify(self, notice: Notice) -> None:
        """Tell the carrier what of it is for him."""
        self._line.send(notice)
        self._send()
        if self.watch is not None:
            _heed(self.watch, notice, self._clock.now_ns())
        match notice:
            case AudioCommitted() | ItemAdded():
                self.takes_leave = False
            case ReplyEnded(status=status):
                self._status = status
                self._reply_over.set()

    async def serve(self, session: Session) -> NoReturn:
        """Raises CallOver where it was hung up, StreamError where the stream can't be served,
        SlowReader where the carrier does not read, IdleClientError where it says nothing."""
        self._session = session
        keys = PhoneKeys(session, self._clock)
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(keys.keep_time()),
                group.create_task(self._take_leave()),
                group.create_task(conduct(session, self, keys, self._plan)),
            ]
            parting = await self._link.carry(lambda frame: self._take(session, keys, frame))
            for task in beside:
                task.cancel()
        if self._over is not None:
            raise self._over
        if parting is SocketEnd.TOO_SLOW:
            self.cause = self.cause or "lost"
            raise SlowReader
        if parting is SocketEnd.IDLE:
            self.cause = self.cause or "lost"
            raise errors.IdleClientError
        is_lost = parting is SocketEnd.BROKE or self._line.says_stop
        self.cause = self.cause or ("lost" if is_lost else "caller_hung_up")
        raise CallOver(BROKEN_OFF if parting is SocketEnd.BROKE else STREAM_CLOSED)

    async def end(self, code: int, reason: str, *last: Notice) -> None:
        """Hang up."""
        self.reason = reason
        self.cause = self.cause or _CAUSES.get(reason, "failed")
        await self._link.send_last(self._line.hang_up())
        self._link.release(code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))

    # --- what tools do ---

    async def until_heard(self) -> bool:
        """Wait until the caller has heard what the present reply has said so far. False: that is
        nothing."""
        assert self._session is not None
        if not await self._session.wait_played():
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARKS_S):
                while not self._line.is_played:
                    await self.news()
        return True

    async def news(self) -> None:
        """Wait until the carrier has sent something."""
        self._news.clear()
        await self._news.wait()

    def hang_up(self, cause: Cause, reason: str = AGENT_HUNG_UP) -> None:
        """End the call now. What ended it before has."""
        self.cause = self.cause or cause
        self._stop(CallOver(reason))

    async def transfer(self, number: str) -> None:
        """Hand the call on. Raises TransferError: it goes on then. Whoever gives up waiting has not
        stopped it."""
        limit_s = self._plan.limit_s or 0.0
        left_s = limit_s - (self._clock.now_ns() - self._began_ns) / 1e9
        await self.handing_on.to(Handover(self._call_id, number, self._plan.agent, left_s))

    async def send_keys(self, keys: str) -> None:
        """Down the line, behind what was said. Returns when they have sounded."""
        lasts_s = self._line.send_keys(keys)
        self._send()
        await asyncio.sleep(lasts_s)

    # --- what is said without a model ---

    async def say_all(self, session: Session, text: str) -> bool:
        """Say these words now. Returns when they were heard; False: not to their end."""
        session.say(text)
        self._reply_over.clear()
        await self._reply_over.wait()
        return self._status == "completed" and await self.until_heard()

    async def send_tone(self) -> None:
        """One that says that the call is recorded. Returns when it has sounded."""
        lasts_s = self._line.play(recorder_tone(self._line.media.rate_hz))
        self._send()
        await asyncio.sleep(lasts_s)

    # --- what comes ---

    async def _take(self, session: Session, keys: PhoneKeys, frame: Frame) -> Sequence[Request]:
        """Returns what the session was asked for."""
        try:
            requests = self._line.receive(frame)
        except StreamError as error:
            self.cause = self.cause or "bad_stream"
            self._stop(error)
            return ()
        except HungUp as hung_up:
            self.cause = self.cause or "caller_hung_up"
            self._stop(CallOver(str(hung_up)))
            return ()
        pressed = self._line.take_keys()
        if pressed and self._plan.key_pressed is not None:
            self._plan.key_pressed()
        watch, now_ns = self.watch, self._clock.now_ns()
        asked: list[Request] = []
        for request in requests:
            if isinstance(request, AppendAudio):
                if not self._pace.take(len(request.pcm) / request.rate_hz, now_ns / 1e9):
                    self.num_dropped += 1  # later, it would delay all that follows
                    continue
                if watch is not None:
                    watch.heard(request.pcm, request.rate_hz, now_ns)
            await session.handle(request)
            asked.append(request)
        for key in pressed:
            self.num_keys += 1
            asked += await keys.press(key)
        self._send()  # what waited for room in the carrier's queue
        self._news.set()
        return asked

    def _send(self) -> None:
        if self._line.take_cleared():
            self._link.forget()
        for frame in self._line.frames():
            self._link.put(frame)

    def _stop(self, error: Exception) -> None:
        """Have `serve` raise this. Only the first time counts."""
        self._over = self._over or error
        self._link.stop()

    async def _take_leave(self) -> None:
        while True:
            self._reply_over.clear()
            await self._reply_over.wait()
            if self.takes_leave and self._status != "cancelled":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEAVE_S):
                        await self.until_heard()
                if self.takes_leave:
                    self.hang_up("agent_hung_up")


def _heed(watch: AnsweringMachineDetector, notice: Notice, now_ns: int) -> None:
    """What is heard at the other end."""
    match notice:
        case SpeechStarted():
            watch.speech_began(now_ns)
        case SpeechStopped():
            watch.speech_ended()
        case Extension(type="halfsec.partial", fields={"text": str(words)}):
            watch.understood(words, now_ns)
        case TranscriptCompleted(transcript=words):
            watch.understood(words, now_ns)
