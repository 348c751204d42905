"""Call by WebRTC, as a `CallPort` for the simulated caller: Opus both ways, events by data channel.

The caller's audio is encoded as the server's answer asks of browsers, with FEC and DTX, by the
service's own encoder; what arrives goes through its jitter buffer and decoder, which hold nothing
back while packets come in order. So times at the ear are those of the service and the line; what
the jitter buffer of a browser adds is not in them.

RTP does not say which reply it belongs to. `RemoteReplies` assigns audio to the newest response,
from its first audible frame on, and reports the end of a response when its audio has ended. RTP may
overtake events: audible frames of the last `EARLY_MS` are those of a response that begins, and for
as long behind its end, frames are its own.
"""

import asyncio
import contextlib
import dataclasses
import fractions
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import aiortc
import av
import httpx
import numpy as np

from agent.client import events as ev
from agent.client.errors import CallEndedError, ConnectError
from agent.client.simulated_caller.spoken_turn import Int16
from agent.http.auth.cli_credentials import entry_at
from agent.webrtc.jitter_buffer import FRAME, RTP_HZ, JitterBuffer
from agent.webrtc.opus import FRAME_MS, OpusDecoder, OpusEncoder
from latency_budget.account.clock import SystemClock
from latency_budget.account.marks import AUDIBLE

from .lossy_line import DatagramPath, LineQuality
from .webrtc_client import WebRtcClient

RATE_HZ: Final = 24_000
"""Rate of the audio on both sides of Opus, as over the WebSocket."""

CONNECT_S: Final = 10.0
"""Timeout in s of the answer, and of the call's first event."""

MAX_UNSENT_FRAMES: Final = 50
"""Audio that waits for the connection, in frames of 20 ms; the oldest is dropped."""

EARLY_MS: Final = 100
"""Time by which audio may be ahead of events, or behind them."""

OVER: Final = ("output_audio_buffer.stopped", "output_audio_buffer.cleared")


class RemoteReplies:
    """Events of a call by WebRTC, in the terms of one by WebSocket: audio is assigned to replies,
    and a reply is done when its audio is over. Pure."""

    def __init__(self, tell: Callable[[ev.ClientEvent], None]) -> None:
        self._tell = tell
        self._reader = ev.EventReader()
        self._reply = ""
        """The newest response."""
        self._is_open = False
        """Its end was not reported."""
        self._over_ns = 0
        """Time of that report. Audio may still be on its way."""
        self._is_heard = False
        """It was audible."""
        self._sounding: set[str] = set()
        """Responses that the server is sending audio of."""
        self._cleared: set[str] = set()
        """Responses whose audio the server has dropped."""
        self._done: dict[str, ev.ReplyDone] = {}
        """Ends that wait for the end of the audio."""
        self._early: deque[tuple[Int16, int]] = deque(maxlen=EARLY_MS // FRAME_MS)
        """Audible frames that came while no response was open, with their times (ns)."""

    def message(self, text: str | bytes, now_ns: int) -> None:
        """Take a message of the data channel."""
        event = json.loads(text)
        if event["type"].startswith("output_audio_buffer."):
            self._audio_changed(event["type"], event["response_id"], now_ns)
            return
        read = self._reader.read(text, now_ns)
        match read:
            case ev.ReplyStarted(response_id):
                self._reply, self._is_open, self._is_heard = response_id, True, False
            case ev.ReplyDone() if self._is_to_be_heard(read):
                self._done[read.response_id] = read
                return
            case ev.ReplyDone():
                self._ended(read.response_id, now_ns)
        if read is not None:
            self._tell(read)
        if isinstance(read, ev.ReplyStarted):
            early = [each for each in self._early if now_ns - each[1] <= EARLY_MS * 1_000_000]
            self._early.clear()
            for pcm, at_ns in early:
                self.audio(pcm, at_ns)

    def audio(self, pcm: Int16, now_ns: int) -> None:
        """Take int16 [n] that is heard from now on. Silence counts only within a reply."""
        is_audible = bool(((pcm > AUDIBLE) | (pcm < -AUDIBLE)).any())
        is_of_last = bool(self._reply) and now_ns - self._over_ns <= EARLY_MS * 1_000_000
        if is_audible and not self._is_open and not is_of_last:
            self._early.append((pcm, now_ns))
            return
        self._is_heard |= is_audible
        if is_audible or (self._is_heard and self._is_open):
            self._tell(ev.ReplyAudio(self._reply, self._reply, pcm, RATE_HZ, now_ns))

    def _ended(self, response_id: str, now_ns: int) -> None:
        if response_id == self._reply:
            self._is_open, self._over_ns = False, now_ns

    def _is_to_be_heard(self, done: ev.ReplyDone) -> bool:
        if done.response_id in self._sounding:
            return True
        is_spoken = done.status == "completed" and bool(done.text)
        return is_spoken and done.response_id not in self._cleared

    def _audio_changed(self, kind: str, response_id: str, now_ns: int) -> None:
        if kind not in OVER:
            self._sounding.add(response_id)
            return
        self._sounding.discard(response_id)
        if kind == "output_audio_buffer.cleared":
            self._cleared.add(response_id)
        done = self._done.pop(response_id, None)
        if done is not None:
            self._ended(response_id, now_ns)
            self._tell(dataclasses.replace(done, at_ns=now_ns))


class CallerTrack(aiortc.MediaStreamTrack):
    """The caller's audio, as Opus packets."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._encoder = OpusEncoder(RATE_HZ)
        self._packets: asyncio.Queue[av.Packet[Any]] = asyncio.Queue(MAX_UNSENT_FRAMES)
        self._num_frames = 0

    def put(self, pcm: Int16) -> None:
        """Send int16 [480], the next 20 ms."""
        number = self._num_frames
        self._num_frames += 1
        payload = self._encoder.encode(pcm)
        if payload is None:
            return  # DTX
        packet = av.Packet(payload)
        packet.pts, packet.time_base = number * FRAME, fractions.Fraction(1, RTP_HZ)
        if self._packets.full():
            self._packets.get_nowait()
        self._packets.put_nowait(packet)

    async def recv(self) -> Any:
        return await self._packets.get()


class WebRtcCall:
    """One call; made by `webrtc_call`."""

    extensions = False
    input_rate_hz = RATE_HZ

    def __init__(self, line: LineQuality, seed: int) -> None:
        self.up = DatagramPath(line, f"{seed} up")
        self.down = DatagramPath(line, f"{seed} down")
        self._clock = SystemClock()
        self._events: asyncio.Queue[ev.ClientEvent] = asyncio.Queue()
        self._replies = RemoteReplies(self._events.put_nowait)
        self._jitter = JitterBuffer(OpusDecoder(RATE_HZ))
        self._track = CallerTrack()
        self.client = WebRtcClient(self._track, self._message_arrived)
        self.client.take_packets(self._packet_arrived)
        if line.loss or line.jitter_ms:
            self.client.spoil(self.up, self.down)
        self.begun = asyncio.Event()
        """The first event has arrived."""

    async def run(self) -> None:
        """Report the end of the call. The call works while this runs."""
        await self.client.closed.wait()
        self._events.put_nowait(ev.Closed(None, "the connection has ended", self._clock.now_ns()))

    async def events(self) -> AsyncIterator[ev.ClientEvent]:
        """Events up to the end of the call."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, ev.Closed):
                return

    async def send_audio(self, pcm: Int16, rate_hz: int) -> bool:
        """Send 20 ms of the caller at `input_rate_hz`. Raises CallEndedError."""
        assert rate_hz == RATE_HZ
        if self.client.closed.is_set():
            raise CallEndedError("The call has ended: the connection is closed.")
        self._track.put(pcm)
        now_ns = self._clock.now_ns()
        self._hear(self._jitter.advance(now_ns), now_ns)
        return True

    async def cancel(self) -> None:
        """Stop the reply, sent or not."""
        with contextlib.suppress(aiortc.InvalidStateError):
            self.client.send("output_audio_buffer.clear")

    async def report_playback(self, item_id: str, played_ms: int) -> None:
        """Nothing to do: the server knows what it has sent."""

    async def truncate(self, item_id: str, audio_end_ms: int) -> None:
        """Nothing to do: the server knows what it has sent."""

    def _message_arrived(self, message: str | bytes) -> None:
        self.begun.set()
        self._replies.message(message, self._clock.now_ns())

    def _packet_arrived(self, seq: int, timestamp: int, payload: bytes) -> None:
        now_ns = self._clock.now_ns()
        self._hear(self._jitter.push(seq, timestamp, payload, now_ns), now_ns)

    def _hear(self, pieces: list[Int16], now_ns: int) -> None:
        if pieces:
            self._replies.audio(np.concatenate(pieces), now_ns)


@asynccontextmanager
async def webrtc_call(url: str, line: LineQuality, seed: int = 0) -> AsyncIterator[WebRtcCall]:
    """Open a call at the server at ws://HOST:PORT/..., over this line, and hang up at the end of
    the block. Raises ConnectError."""
    address = url.replace("ws", "http", 1).partition("/v1/")[0]
    entry = entry_at(url)
    call = WebRtcCall(line, seed)
    try:
        offer = await call.client.offer()
        try:
            async with httpx.AsyncClient(
                base_url=address, timeout=CONNECT_S, trust_env=False, headers=entry.headers()
            ) as http:
                answer = await http.post(
                    "/v1/realtime/calls", content=offer, headers={"content-type": "application/sdp"}
                )
            if answer.status_code != 201:
                raise ConnectError(f"{address}: HTTP {answer.status_code}: {answer.text[:300]}")
            await call.client.connect(answer.text)
            async with asyncio.timeout(CONNECT_S):
                await call.begun.wait()
        except (httpx.HTTPError, TimeoutError) as error:
            raise ConnectError(f"{address}: {error or type(error).__name__}") from None
        yield call
    finally:
        await call.client.close()
