"""Telephone transport: a call's session, its media stream, and control of the call.

Every frame of the carrier is processed on arrival. An invalid frame ends the call: the frames after
it can't be trusted to be the caller's.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn, Protocol

from agent import errors
from agent.calls.service import LINES_OF_KEY, REVOKED, SILENT, STOPPED, TIME_IS_UP, CallOver
from agent.errors import SlowReader
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.realtime.socket import SocketEnd, Take
from agent.session.api.client_events import AppendAudio, Request
from agent.session.api.conversation import Message
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
from agent.telephony.outbound.transfer import CallTransfer, TransferOrder
from agent.tools.server_tool import ServerTool
from latency_budget.account.clock import Clock

from .announcements import conduct
from .call_plan import PLAIN, CallPlan, Cause
from .call_tools import CARRIER_S, phone_tools
from .dtmf_input import PhoneKeys
from .media_session import HungUp, PhoneLine

STREAM_CLOSED: Final = "the carrier closed the stream"
BROKEN_OFF: Final = "the connection to the carrier broke"
AGENT_HUNG_UP: Final = "the agent hung up"

MARKS_S: Final = 1.5
"""Wait for the carrier's marks after the expected end of playback. Network and jitter buffer take
0.1 to 0.5 s; after two seconds of silence the caller hears a wait message
(`agent/session/response/task.py`)."""
LEAVE_S: Final = 10.0
"""Wait for the playback of the last reply: a farewell, or an apology instead."""

_CAUSES: Final[Mapping[str, Cause]] = {
    SILENT: "silent",
    TIME_IS_UP: "time_limit",
    REVOKED: "revoked",
    STOPPED: "stopped",
    LINES_OF_KEY.message: "refused",
}
"""Causes by the reasons of `agent/calls/service.py`; any other reason is "failed"."""


class PhoneLink(Protocol):
    """Interface of the connection: `CallSocket`."""

    def put(self, frame: Frame) -> None: ...

    def forget(self) -> None: ...

    async def carry(self, take: Take) -> SocketEnd: ...

    def stop(self) -> None: ...

    async def send_last(self, frames: Iterable[Frame]) -> None: ...

    def release(self, code: int, reason: str = "") -> None: ...


class PhoneCall:
    """A `CallTransport` of `agent/calls/service.py`, and the `Receiver` of its call tools. Belongs
    to the event loop."""

    is_extended = False

    def __init__(
        self, line: PhoneLine, link: PhoneLink, clock: Clock, plan: CallPlan = PLAIN
    ) -> None:
        """`line`: open."""
        assert line.started is not None
        self._call_id = line.started.call_id
        self.carrier: Final = line.carrier
        self.cause: Cause | None = None
        """Cause of the call's end, set when the end begins."""
        self.reason = ""
        """The cause in words."""
        self.order: Final = line.order
        """Reorder buffer of the incoming frames."""
        self.num_dropped = 0
        """Frames dropped because audio came faster than real time."""
        self.num_keys = 0
        """Keys that the caller has pressed."""
        self.tools: Final[Mapping[str, ServerTool]] = phone_tools(self, plan)
        self.amd: Final = plan.amd
        """Answering machine detector; None: machines are not detected."""
        self._plan = plan
        self._line = line
        self._link = link
        self._clock = clock
        self._session: Session | None = None
        self._pace = LeakyBucket(1.0, plan.ahead_s, clock.now_ns() / 1e9)
        """Rate limit of the caller's audio, in seconds of audio."""
        self._began_ns = clock.now_ns()
        self.call_transfer: Final = CallTransfer(plan.transfer)
        self._over: Exception | None = None
        """Exception that ended the call."""
        self._received = asyncio.Event()
        """The carrier has sent a frame."""
        self.ends_after_reply = False
        """Hang up after the current reply, unless the caller answers it."""
        self._reply_over = asyncio.Event()
        """The newest reply has ended."""
        self._status: ReplyStatus = "completed"
        """Status of the newest reply that has ended."""

    def notify(self, notice: Notice) -> None:
        """Send the carrier its part of a notice."""
        self._line.send(notice)
        self._send()
        if self.amd is not None:
            _observe(self.amd, notice, self._clock.now_ns())
        match notice:
            case AudioCommitted() | ItemAdded(item=Message(role="user")):
                self.ends_after_reply = False
            case ReplyEnded(status=status):
                self._status = status
                self._reply_over.set()

    async def serve(self, session: Session) -> NoReturn:
        """Carry the call to its end. Raises CallOver after a hang-up, StreamError for an invalid
        frame, SlowReader if the carrier does not read, IdleClientError if it sends nothing."""
        self._session = session
        keys = PhoneKeys(session, self._clock)
        try:
            ended = await self._carry(session, keys)
        except asyncio.CancelledError:
            await self._leave_to_carrier()
            raise
        if self._over is not None:
            raise self._over
        if ended is SocketEnd.TOO_SLOW:
            self.cause = self.cause or "lost"
            raise SlowReader
        if ended is SocketEnd.IDLE:
            self.cause = self.cause or "lost"
            raise errors.IdleClientError
        is_lost = ended is SocketEnd.BROKE or self._line.says_stop
        self.cause = self.cause or ("lost" if is_lost else "caller_hung_up")
        raise CallOver(BROKEN_OFF if ended is SocketEnd.BROKE else STREAM_CLOSED)

    async def _carry(self, session: Session, keys: PhoneKeys) -> SocketEnd:
        async with asyncio.TaskGroup() as group:
            beside = [
                group.create_task(keys.keep_time()),
                group.create_task(self._end_after_reply()),
                group.create_task(conduct(session, self, keys, self._plan)),
            ]
            ended = await self._link.carry(lambda frame: self._take(session, keys, frame))
            for task in beside:
                task.cancel()
        return ended

    async def _leave_to_carrier(self) -> None:
        """Keep the stream of a call that ends here amid a transfer until the carrier has taken the
        call off it: the end of the stream would end the call."""
        if self.cause is None and self.call_transfer.is_begun:
            await self.call_transfer.settle()
            if self.call_transfer.is_done:
                self.cause = "transferred"
                await asyncio.sleep(CARRIER_S)

    async def end(self, code: int, reason: str, *last: Notice) -> None:
        """Hang up."""
        self.reason = reason
        self.cause = self.cause or _CAUSES.get(reason, "failed")
        await self._link.send_last(self._line.hang_up())
        self._link.release(code, reason)

    # --- call tools ---

    async def until_heard(self) -> bool:
        """Wait until the caller has heard the current reply so far. False: it has no audio."""
        assert self._session is not None
        if not await self._session.wait_played():
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARKS_S):
                while not self._line.is_played:
                    await self.next_frame()
        return True

    async def next_frame(self) -> None:
        """Wait until the carrier has sent a frame."""
        self._received.clear()
        await self._received.wait()

    def hang_up(self, cause: Cause, reason: str = AGENT_HUNG_UP) -> None:
        """End the call now. An earlier cause is kept."""
        self.cause = self.cause or cause
        self._stop(CallOver(reason))

    async def transfer(self, number: str) -> None:
        """Transfer the call. Raises TransferError: the call goes on. Cancelling the wait does not
        stop the transfer."""
        limit_s = self._plan.limit_s or 0.0
        remaining_s = limit_s - (self._clock.now_ns() - self._began_ns) / 1e9
        await self.call_transfer.start(
            TransferOrder(self._call_id, number, self._plan.agent, remaining_s)
        )

    async def send_keys(self, keys: str) -> None:
        """Send keys after the audio so far. Returns after their tones."""
        lasts_s = self._line.send_keys(keys)
        self._send()
        await asyncio.sleep(lasts_s)

    # --- announcements ---

    async def say_all(self, session: Session, text: str) -> bool:
        """Speak this text now. Returns when it was heard; False: it was interrupted."""
        session.say(text)
        self._reply_over.clear()
        await self._reply_over.wait()
        return self._status == "completed" and await self.until_heard()

    async def send_tone(self) -> None:
        """Play the tone that announces a recording. Returns after the tone."""
        lasts_s = self._line.play(recorder_tone(self._line.media.rate_hz))
        self._send()
        await asyncio.sleep(lasts_s)

    # --- frames of the carrier ---

    async def _take(self, session: Session, keys: PhoneKeys, frame: Frame) -> Sequence[Request]:
        """Process a frame. Return the requests that were sent to the session."""
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
        amd, now_ns = self.amd, self._clock.now_ns()
        asked: list[Request] = []
        for request in requests:
            if isinstance(request, AppendAudio):
                if not self._pace.take(len(request.pcm) / request.rate_hz, now_ns / 1e9):
                    self.num_dropped += 1  # later, it would delay all that follows
                    continue
                if amd is not None:
                    amd.push_audio(request.pcm, request.rate_hz, now_ns)
            await session.handle(request)
            asked.append(request)
        for key in pressed:
            self.num_keys += 1
            asked += await keys.press(key)
        self._send()  # frames that waited for room in the carrier's queue
        self._received.set()
        return asked

    def _send(self) -> None:
        if self._line.take_cleared():
            self._link.forget()
        for frame in self._line.frames():
            self._link.put(frame)

    def _stop(self, error: Exception) -> None:
        """Make `serve` raise this exception; only the first one counts."""
        self._over = self._over or error
        self._link.stop()

    async def _end_after_reply(self) -> None:
        while True:
            self._reply_over.clear()
            await self._reply_over.wait()
            if self.ends_after_reply and self._status != "cancelled":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LEAVE_S):
                        await self.until_heard()
                if self.ends_after_reply:
                    self.hang_up("agent_hung_up")


def _observe(amd: AnsweringMachineDetector, notice: Notice, now_ns: int) -> None:
    """Pass a notice about the callee's speech to the detector."""
    match notice:
        case SpeechStarted():
            amd.speech_began(now_ns)
        case SpeechStopped():
            amd.speech_ended()
        case Extension(type="halfsec.partial", fields={"text": str(words)}):
            amd.push_transcript(words, now_ns)
        case TranscriptCompleted(transcript=words):
            amd.push_transcript(words, now_ns)
