"""WebRTC transport of one call: audio as RTP, events over a data channel.

The third beside the WebSocket and the telephone. Session, events and admission are theirs; here the
caller's packets become input audio, and the agent's audio leaves in real time, a frame each 20 ms.
The first frame of a reply does not wait for the next of these times: in a silence, where DTX sends
no packets, it leaves as soon as it is there, and the times that follow count from it.

An interruption: the session says that speech has begun, or ends a response as cancelled. What has
not left is dropped then, and the session gets, for each reply that was cut, the truncation that a
client of the WebSocket would send: so many ms were sent, which will all be heard. The history keeps
the words that ended by then. Meanwhile it gets playback reports, as from such a client.

Three tasks of the call reach the session: for audio, for events, and for those truncations and
reports. A lock keeps them apart; an event whose check by the model takes long holds up audio, as on
a WebSocket. All queues are bounded.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt

from agent import errors
from agent.calls.service import CLIENT_LEFT, HUNG_UP, CallOver
from agent.errors import ClientError, IdleClientError, SlowReader
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.realtime.protocol.protocol import RealtimeProtocol
from agent.realtime.socket import ClientPace
from agent.session.api import client_events as ask
from agent.session.api import server_events as say
from agent.session.session import Session
from agent.tools.server_tool import ServerTool
from latency_budget.account.clock import Clock

from .jitter_buffer import RTP_HZ, JitterBuffer
from .opus import FRAME_MS, MAX_FRAME_MS, OpusDecoder, OpusEncoder
from .output_audio import MAX_QUEUED_S, OutputAudioBuffer, OutputReports
from .peer import Peer

INPUT_HZ: Final = 24_000
"""Rate to which the caller's audio is decoded: what clients of the WebSocket send."""

MAX_MESSAGES: Final = 2000
MAX_MESSAGE_BYTES: Final = 256 << 10
"""Longest message of a client, in bytes; the answer's `a=max-message-size` says so."""
MAX_INBOX_BYTES: Final = 2 << 20
"""Messages that wait to be processed. A data channel can't be left unread, as a socket can: a
client that is that far ahead of its limits is disconnected."""

MAX_AUDIO_S: Final = 10.0
"""Audio of the caller that waits for the session; the oldest is dropped."""

AHEAD_S: Final = 5.0
"""Audio of the caller that may be ahead of real time; more is dropped."""

MAX_BEHIND_NS: Final = 1_000_000_000
"""Frames that are sent late, after the event loop stood still; what is later is left out."""

FRAME_NS: Final = FRAME_MS * 1_000_000

FLOODED: Final = "the client sends messages faster than they may be processed"

END_CODES: Final = {
    errors.CLOSE_NORMAL: "session_ended",
    errors.CLOSE_POLICY: "policy_violation",
    errors.CLOSE_INTERNAL: "internal_error",
    errors.CLOSE_DRAINING: "draining",
    errors.CLOSE_OVERLOADED: "overloaded",
}
"""Close code -> code of the error event that says why the call ends: a data channel has no close
code of its own."""

OWN_EVENT: Final = "webrtc-transport"
"""Event id of this transport's own requests, whose refusals are not the client's."""

Int16 = npt.NDArray[np.int16]

_log = logging.getLogger(__name__)


class WebRtcTransport:
    """A `CallTransport` of `agent/calls/service.py`. Belongs to the event loop."""

    is_extended = False

    def __init__(
        self, protocol: RealtimeProtocol, pace: ClientPace, clock: Clock, idle_s: int = 0
    ) -> None:
        """`protocol`: one that holds audio. `idle_s`: time without packets and messages of the
        client that ends the call; 0: none does. `peer` is set next."""
        self.tools: Final[Mapping[str, ServerTool]] = {}
        self.peer: Peer
        self._protocol = protocol
        self._pace = pace
        self._clock = clock
        self._jitter = JitterBuffer(OpusDecoder(INPUT_HZ))
        self._real_time = LeakyBucket(1.0, AHEAD_S, clock.now_ns() / 1e9)
        self._output = OutputAudioBuffer()
        self._reports = OutputReports()
        self._idle_ns = idle_s * 1_000_000_000
        self._last_ns = clock.now_ns()
        """When something came from the client."""
        self._encoders: dict[int, OpusEncoder] = {}
        self._messages: deque[str | bytes] = deque()
        self._num_bytes = 0
        self._audio: deque[Int16] = deque()
        self._own: deque[ask.Request] = deque()
        """Requests of this transport, from notices: a session takes none while it sends one."""
        self._news = asyncio.Event()
        """There are messages."""
        self._cut = asyncio.Event()
        """There are own requests."""
        self._began = asyncio.Event()
        """A reply has begun while the output was idle."""
        self._is_output_idle = True
        """The last frame was silence between replies, and was not sent (DTX)."""
        self._heard = asyncio.Event()
        """There is audio."""
        self._lock = asyncio.Lock()
        self._is_interruptible = True
        self._is_live = False
        self._over = asyncio.Event()
        self._failure: Exception | None = None
        self.num_dropped_s = 0.0
        """Audio of the caller that was dropped, in s."""
        self.num_ahead = 0
        """Packets that were dropped unread, because all of their audio would have been."""

    # --- of the connection ---

    def packet_arrived(self, seq: int, timestamp: int, payload: bytes) -> None:
        """Take an RTP packet of the caller."""
        now_ns = self._last_ns = self._clock.now_ns()
        if not self._is_live:
            return
        # A packet of 60 bytes decodes to 120 ms, and fills a gap of 5 s before it.
        if not self._real_time.fits(MAX_FRAME_MS / 1000, now_ns / 1e9):
            self.num_ahead += 1
            return
        self._hear(self._jitter.push(seq, timestamp, payload, now_ns))

    def stream_restarted(self) -> None:
        """Take the next packet as the first of another stream."""
        self._jitter.restart()

    def message_arrived(self, message: str | bytes) -> None:
        """Take a message of the data channel."""
        self._last_ns = self._clock.now_ns()
        size = len(message)
        if size > MAX_MESSAGE_BYTES:
            self.notify(
                say.Problem(
                    f"A message holds at most {MAX_MESSAGE_BYTES} bytes; this one has {size}.",
                    "invalid_event",
                )
            )
            return
        self._num_bytes += size
        if self._num_bytes > MAX_INBOX_BYTES or len(self._messages) >= MAX_MESSAGES:
            self._fail(CallOver(FLOODED))
            return
        self._messages.append(message)
        self._news.set()

    def hang_up(self, reason: str) -> None:
        """End the call."""
        self._fail(CallOver(reason))
        if not self._is_live:
            self.peer.give_up()

    async def wait_connected(self) -> bool:
        """Wait until the client is connected. False: it did not come, or the call was ended."""
        try:
            return await self.peer.wait_connected() and self._failure is None
        except (ClientError, SlowReader) as error:
            _log.info("a client was disconnected before its call began: %r", error)
            return False

    def counts(self) -> str:
        """What was lost on the way from the client, for the log."""
        jitter, peer = self._jitter.counts, self.peer
        return (
            f"packets={jitter.received} late={jitter.late} foreign={peer.num_foreign} "
            f"frames_filled={jitter.filled} audio_dropped_s={self.num_dropped_s:.2f} "
            f"packets_ahead={self.num_ahead} datagrams_dropped={peer.num_dropped} "
            f"channel_packets_dropped={peer.num_packets_dropped}"
        )

    # --- CallTransport ---

    def notify(self, notice: say.Notice) -> None:
        """Send a notice to the client."""
        match notice:
            case say.ReplyAudio(response_id, pcm, rate_hz):
                self._output.append(response_id, pcm, rate_hz)
                if self._output.queued_s > MAX_QUEUED_S:
                    self._fail(SlowReader())
                if self._is_output_idle:
                    self._began.set()
                return
            case say.Problem(event_id=event_id) if event_id == OWN_EVENT:
                return
            case say.ReplyStarted(response_id, item_id):
                self._output.begin(response_id, item_id)
            case say.SessionCreated(settings=settings) | say.SessionUpdated(settings=settings):
                detection = settings.turn_detection
                self._is_interruptible = detection is None or detection.interrupt_response
        self._send(notice)
        match notice:
            case say.SpeechStarted() if self._is_interruptible:
                self._clear()
            case say.ReplyEnded(response_id, status):
                if status == "cancelled":
                    self._clear()
                self._output.end(response_id)
                self._tell_output()

    async def serve(self, session: Session) -> NoReturn:
        """Carry the call to its end. Raises CallOver, SlowReader, IdleClientError."""
        self._is_live = True
        self._last_ns = self._clock.now_ns()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._take_messages(session)),
                    group.create_task(self._take_own(session)),
                    group.create_task(self._take_audio(session)),
                    group.create_task(self._keep_time()),
                    group.create_task(self._until_closed()),
                ]
                await self._over.wait()
                for task in tasks:
                    task.cancel()
        finally:
            self._is_live = False
        raise self._failure or CallOver(CLIENT_LEFT)

    async def end(self, code: int, reason: str, *last: say.Notice) -> None:
        """Close the connection. The client gets an error event with the reason, unless it has
        asked for the end, or `last` says why."""
        if reason and reason != HUNG_UP and not last:
            kind = "invalid_request_error" if code < errors.CLOSE_INTERNAL else "server_error"
            message = f"The call has ended: {reason.rstrip('.')}."
            last = (say.Problem(message, END_CODES.get(code, "session_ended"), kind),)
        for notice in last:
            self._send(notice)
        await self.peer.drained()
        await self.peer.close()

    # --- tasks ---

    async def _until_closed(self) -> None:
        await self.peer.closed.wait()
        self._fail(CallOver(CLIENT_LEFT))

    async def _take_messages(self, session: Session) -> None:
        while True:
            while not self._messages:
                self._news.clear()
                await self._news.wait()
            message = self._messages.popleft()
            self._num_bytes -= len(message)
            handled: list[ask.Request] = []
            for request in self._protocol.receive(message):
                if isinstance(request, say.Problem):
                    self.notify(request)
                    continue
                if isinstance(request, ask.ClearOutputAudio):
                    self._clear(ends_response=True)
                else:
                    async with self._lock:
                        await session.handle(request)
                handled.append(request)
            await self._pace.keep_pace(message, handled)

    async def _take_own(self, session: Session) -> None:
        """Truncations do not wait for a client that is over its limits."""
        while True:
            while not self._own:
                self._cut.clear()
                await self._cut.wait()
            async with self._lock:
                await session.handle(self._own.popleft())

    async def _take_audio(self, session: Session) -> None:
        while True:
            while not self._audio:
                self._heard.clear()
                await self._heard.wait()
            pcm = np.concatenate([*self._audio])
            self._audio.clear()
            async with self._lock:
                await session.handle(ask.AppendAudio(pcm, INPUT_HZ))

    async def _keep_time(self) -> None:
        """Send a frame each 20 ms, and fill what the caller did not send."""
        began_ns = due_ns = self._clock.now_ns()
        while True:
            self._began.clear()
            now_ns = self._clock.now_ns()
            if self._is_output_idle and self._output.queued_s:
                due_ns = min(due_ns, now_ns)
            if now_ns - due_ns > MAX_BEHIND_NS:
                due_ns += (now_ns - due_ns) // FRAME_NS * FRAME_NS
            while due_ns <= now_ns:
                self._send_frame((due_ns - began_ns) * RTP_HZ // 1_000_000_000)
                due_ns += FRAME_NS
            self._tell_output()
            self._hear(self._jitter.advance(now_ns))
            if self._idle_ns and now_ns - self._last_ns > self._idle_ns:
                self._fail(IdleClientError())
            try:
                self.peer.check()
            except ClientError as error:
                self._fail(CallOver(error.message))
            except SlowReader as error:
                self._fail(error)
            next_ns = self._jitter.next_ns
            wake_ns = due_ns if next_ns is None else min(due_ns, next_ns)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0, wake_ns - self._clock.now_ns()) / 1e9):
                    await self._began.wait()

    # --- audio ---

    def _send_frame(self, timestamp: int) -> None:
        frame = self._output.next_frame()
        if frame is not None and (report := self._reports.sent(frame, self._clock.now_ns())):
            if self._own and isinstance(self._own[-1], ask.PlaybackReport):
                self._own.pop()  # a newer one says more
            self._own.append(report)
            self._cut.set()
        rate_hz = INPUT_HZ if frame is None else frame.rate_hz
        encoder = self._encoders.get(rate_hz)
        if encoder is None:
            encoder = self._encoders[rate_hz] = OpusEncoder(rate_hz)
        pcm = np.zeros(rate_hz * FRAME_MS // 1000, np.int16) if frame is None else frame.pcm
        packet = encoder.encode(pcm)
        self._is_output_idle = frame is None and packet is None
        if packet is not None:
            self.peer.send_audio(packet, timestamp)

    def _hear(self, pieces: list[Int16]) -> None:
        now_s = self._clock.now_ns() / 1e9
        for pcm in pieces:
            if not self._real_time.take(len(pcm) / INPUT_HZ, now_s):
                self.num_dropped_s += len(pcm) / INPUT_HZ
                continue
            self._audio.append(pcm)
            self._heard.set()
        while sum(map(len, self._audio)) > MAX_AUDIO_S * INPUT_HZ:
            self.num_dropped_s += len(self._audio.popleft()) / INPUT_HZ

    def _clear(self, *, ends_response: bool = False) -> None:
        """Drop what was not sent, and cut the history to what was."""
        for sent in self._output.clear():
            if ends_response and sent.is_active:
                self._own.append(ask.CancelResponse(sent.response_id, OWN_EVENT))
            if sent.was_cut:
                self._own.append(ask.TruncateItem(sent.item_id, sent.sent_ms, OWN_EVENT))
            self._cut.set()
        self._tell_output()

    def _tell_output(self) -> None:
        for notice in self._output.take_notices():
            self._send(notice)

    def _send(self, notice: say.Notice) -> None:
        for frame in self._protocol.send(notice):
            self.peer.send(frame)

    def _fail(self, error: Exception) -> None:
        """End `serve` with this exception; only the first one counts."""
        self._failure = self._failure or error
        self._over.set()
