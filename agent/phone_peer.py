"""Twilio's end of a stream, with a caller behind it: a `CallPort`, for measurements.

What a carrier does is done as its documentation has it
(https://www.twilio.com/docs/voice/media-streams/websocket-messages): 20 ms of the caller at a time;
what comes is queued and played in real time; a mark comes back when all before it was played, and
at once when `clear` has overtaken it.

What a bad line is (`LineQuality`). The stream itself is TCP and loses nothing; packets are lost
before it, between the telephone and the carrier's gateway. A lost packet is 20 ms that the gateway
never had: their frame is not sent, and the time stamps jump. A late one holds up those behind it,
for the gateway sends in order: they come in a burst. So each frame is late by an amount of its own
(uniform, up to `jitter_ms`), and never before one that was spoken earlier. The way to the caller is
not modelled: what is measured ends where the carrier's queue plays a sample.
"""

import asyncio
import base64
import json
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed, WebSocketException

from latency_budget.clock import Clock, SystemClock

from . import client_events as ev
from .client_errors import CallEndedError, ConnectError
from .exchange import NS_PER_MS, Int16
from .loudspeaker import AUDIBLE, NS_PER_S
from .telephone_line import LINE_RATE_HZ
from .wire.g711 import mulaw_decode, mulaw_encode

FRAME_MS: Final = 20


@dataclass(frozen=True, slots=True)
class LineQuality:
    """Of the way from the caller's telephone to the carrier's gateway."""

    name: str
    loss: float = 0.0
    """Share of the frames that never come, 0..1."""
    jitter_ms: float = 0.0
    """A frame is late by up to so much."""


class TwilioCall:
    """One stream. `run` must be running; `events` then tells what a `Caller` wants to know.

    Carriers know nothing of replies. What is played without a hole counts as one; `clear` ends it,
    and is told as speech that the server has heard, which is what it means.
    """

    extensions = False
    input_rate_hz = LINE_RATE_HZ

    def __init__(
        self,
        socket: websockets_client.ClientConnection,
        line: LineQuality,
        seed: int,
        clock: Clock | None = None,
    ) -> None:
        self.started_ns: int | None = None
        """When `start` was sent."""
        self.first_sound_ns: int | None = None
        """When the first audible sample was or will be played."""
        self.num_lost = 0
        self._socket = socket
        self._line = line
        self._random = random.Random(seed)
        self._clock = SystemClock() if clock is None else clock
        self._sid = f"MZ{self._random.getrandbits(128):032x}"
        self._events: asyncio.Queue[ev.ClientEvent] = asyncio.Queue()
        self._departures: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        self._last_departure_ns = 0
        self._num_frames = 0
        self._num_sent = 0
        self._num_replies = 0
        self._reply: str | None = None
        """That is being played."""
        self._dry_ns = 0
        """When all that has come will have been played."""
        self._marks: deque[tuple[int, str]] = deque()
        """When they are due, and their names."""
        self._marked = asyncio.Event()

    async def begin(self, agent: str | None = None) -> None:
        """The first messages of a stream, which may ask for an agent."""
        await self._socket.send('{"event":"connected","protocol":"Call","version":"1.0.0"}')
        described = {
            "accountSid": "AC" + 32 * "0",
            "streamSid": self._sid,
            "callSid": self._sid.replace("MZ", "CA"),
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": LINE_RATE_HZ, "channels": 1},
            "customParameters": {} if agent is None else {"agent": agent},
        }
        await self._socket.send(self._frame("start", described))
        self.started_ns = self._clock.now_ns()

    async def run(self) -> None:
        """Until either side closes."""
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._depart()), group.create_task(self._return_marks())]
            try:
                async for text in self._socket:
                    self._take(json.loads(text), self._clock.now_ns())
            except ConnectionClosed:
                pass  # its code is told
            finally:
                closed = ev.Closed(self._socket.close_code, self.close_reason, self._clock.now_ns())
                self._events.put_nowait(closed)
                for each in others:
                    each.cancel()

    async def hang_up(self) -> None:
        """As a carrier whose caller has put the receiver down."""
        try:
            await self._socket.send(self._frame("stop", {"accountSid": "AC" + 32 * "0"}))
        except ConnectionClosed:
            return
        await self._socket.close()

    async def close(self) -> None:
        """As a carrier that ends the stream without having said so."""
        await self._socket.close()

    @property
    def close_reason(self) -> str:
        """What the server said when it closed the stream."""
        return self._socket.close_reason or ""

    def abort(self) -> None:
        """As a carrier that is gone without a word."""
        self._socket.transport.abort()

    # --- what a caller wants ---

    async def events(self) -> AsyncIterator[ev.ClientEvent]:
        """Up to the end of the stream."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, ev.Closed):
                return

    async def send_audio(self, pcm: Int16, rate_hz: int) -> bool:
        """20 ms of the caller, which the line may lose or hold up. Raises CallEndedError."""
        if self._socket.close_code is not None:
            raise CallEndedError(f"The call has ended: {self.close_reason}.")
        number, now_ns = self._num_frames, self._clock.now_ns()
        self._num_frames += 1
        if self._random.random() < self._line.loss:
            self.num_lost += 1
            return True
        late_ns = round(self._random.uniform(0, self._line.jitter_ms) * NS_PER_MS)
        self._last_departure_ns = max(self._last_departure_ns, now_ns + late_ns)
        self._num_sent += 1
        media = {
            "track": "inbound",
            "chunk": str(self._num_sent),
            "timestamp": str(number * FRAME_MS),
            "payload": base64.b64encode(mulaw_encode(pcm)).decode(),
        }
        self._departures.put_nowait((self._last_departure_ns, self._frame("media", media)))
        return True

    async def report_playback(self, item_id: str, played_ms: int) -> None:
        """Marks do that."""

    async def truncate(self, item_id: str, audio_end_ms: int) -> None:
        """Marks do that."""

    async def cancel(self) -> None:
        """A telephone has no button for it."""

    # --- the carrier ---

    def _frame(self, event: str, fields: dict[str, Any]) -> str:
        return json.dumps({"event": event, "streamSid": self._sid, event: fields})

    async def _depart(self) -> None:
        try:
            while True:
                due_ns, frame = await self._departures.get()
                await self._wait_until(due_ns)
                await self._socket.send(frame)
        except ConnectionClosed:
            pass

    def _take(self, message: dict[str, Any], now_ns: int) -> None:
        match message["event"]:
            case "media":
                self._queue(mulaw_decode(base64.b64decode(message["media"]["payload"])), now_ns)
            case "mark":
                self._marks.append((max(self._dry_ns, now_ns), message["mark"]["name"]))
                self._marked.set()
            case "clear":
                self._clear(now_ns)

    def _queue(self, pcm: Int16, now_ns: int) -> None:
        if self._reply is None:
            self._num_replies += 1
            self._reply = f"reply {self._num_replies}"
            self._events.put_nowait(ev.ReplyStarted(self._reply, now_ns))
        begins_ns = max(now_ns, self._dry_ns)
        self._dry_ns = begins_ns + len(pcm) * NS_PER_S // LINE_RATE_HZ
        audible = np.flatnonzero((pcm > AUDIBLE) | (pcm < -AUDIBLE))
        if self.first_sound_ns is None and len(audible):
            self.first_sound_ns = begins_ns + int(audible[0]) * NS_PER_S // LINE_RATE_HZ
        self._events.put_nowait(ev.ReplyAudio(self._reply, self._reply, pcm, LINE_RATE_HZ, now_ns))

    def _clear(self, now_ns: int) -> None:
        self._dry_ns = now_ns
        self._marks = deque((now_ns, name) for _, name in self._marks)
        self._marked.set()
        self._events.put_nowait(ev.SpeechStarted("", 0, now_ns))
        self._reply_over("cancelled", "turn_detected", now_ns)

    async def _return_marks(self) -> None:
        try:
            while True:
                if not self._marks:
                    self._marked.clear()
                    await self._marked.wait()
                    continue
                due_ns, name = self._marks[0]
                if due_ns > self._clock.now_ns():
                    self._marked.clear()  # a clear brings it forward
                    await self._wait_until(due_ns, self._marked)
                    continue
                self._marks.popleft()
                await self._socket.send(self._frame("mark", {"name": name}))
                now_ns = self._clock.now_ns()
                if not self._marks and now_ns >= self._dry_ns:
                    self._reply_over("completed", None, now_ns)
        except ConnectionClosed:
            pass

    def _reply_over(self, status: str, reason: str | None, now_ns: int) -> None:
        if self._reply is not None:
            over = ev.ReplyDone(self._reply, status, reason, "", None, {}, now_ns)
            self._events.put_nowait(over)
            self._reply = None

    async def _wait_until(self, due_ns: int, or_until: asyncio.Event | None = None) -> None:
        left_s = max(0, due_ns - self._clock.now_ns()) / NS_PER_S
        if or_until is None:
            await asyncio.sleep(left_s)
            return
        try:
            async with asyncio.timeout(left_s):
                await or_until.wait()
        except TimeoutError:
            pass


@asynccontextmanager
async def twilio_call(
    url: str, line: LineQuality, seed: int = 0, *, agent: str | None = None
) -> AsyncIterator[TwilioCall]:
    """A stream to the server at this address (ws://HOST:PORT/...) that has begun; nothing is heard
    of it before `run`. Raises ConnectError."""
    address = f"{url.partition('/v1/')[0]}/telephony/twilio/stream"
    try:
        async with websockets_client.connect(
            address, compression=None, proxy=None, max_queue=None
        ) as socket:
            call = TwilioCall(socket, line, seed)
            await call.begin(agent)
            yield call
    except (OSError, TimeoutError, WebSocketException) as error:
        raise ConnectError(f"{address}: {error}") from None
