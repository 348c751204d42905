"""Simulated carrier: Twilio's end of a media stream with a caller behind it, as a `CallPort`.

It follows Twilio's documentation
(https://www.twilio.com/docs/voice/media-streams/websocket-messages): 20 ms of the caller at a time;
audio received is queued and played in real time; a mark comes back when all audio before it was
played, and at once after `clear`.

Model of a bad line (`LineQuality` of `lossy_line.py`). The stream itself is TCP and loses nothing;
packets are lost before it, between the telephone and the carrier's gateway. A lost packet is 20 ms
that the gateway never received: the frame is not sent, and the time stamps jump. A late packet
delays those behind it, since the gateway sends in order: they arrive in a burst. So each frame has
a delay of its own (uniform, up to `jitter_ms`), and never overtakes an earlier one. The path to the
caller is not modelled: measurements end where the carrier's queue plays a sample.
"""

import asyncio
import base64
import contextlib
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException

from agent.client import events as ev
from agent.client.errors import CallEndedError, ConnectError, handshake_error
from agent.client.simulated_caller.playback import NS_PER_S
from agent.client.simulated_caller.spoken_turn import NS_PER_MS, Int16
from agent.codec.g711 import mulaw_decode, mulaw_encode
from agent.http.auth.cli_credentials import entry_at
from latency_budget.account.clock import Clock, SystemClock
from latency_budget.account.marks import AUDIBLE

from .lossy_line import LineQuality
from .telephone_channel import LINE_RATE_HZ

FRAME_MS: Final = 20

ACCOUNT: Final = "AC" + 32 * "0"

Fields = dict[str, Any]


class Uplink:
    """Loss and delay of the caller's frames on their way to the server. Pure."""

    def __init__(self, line: LineQuality, seed: int) -> None:
        self.num_lost = 0
        self._line = line
        self._random = random.Random(seed)
        self._num_frames = 0
        self._num_sent = 0
        self._last_ns = 0

    def media(self, pcm: Int16, now_ns: int) -> tuple[int, Fields] | None:
        """Send time in ns and message of the next 20 ms; None if they are lost."""
        number = self._num_frames
        self._num_frames += 1
        if self._random.random() < self._line.loss:
            self.num_lost += 1
            return None
        late_ns = round(self._random.uniform(0, self._line.jitter_ms) * NS_PER_MS)
        self._last_ns = max(self._last_ns, now_ns + late_ns)
        self._num_sent += 1
        return self._last_ns, {
            "track": "inbound",
            "chunk": str(self._num_sent),
            "timestamp": str(number * FRAME_MS),
            "payload": base64.b64encode(mulaw_encode(pcm)).decode(),
        }


class CarrierQueue:
    """Playback queue of the server's audio, with its marks. Pure.

    Carriers know nothing of replies. Audio that plays without a gap counts as one reply; `clear`
    ends it, and is reported as speech that the server has detected, which is its meaning.
    """

    def __init__(self, tell: Callable[[ev.ClientEvent], None]) -> None:
        self.first_sound_ns: int | None = None
        """Time at which the first audible sample was or will be played."""
        self._tell = tell
        self._num_replies = 0
        self._reply: str | None = None
        """Id of the reply being played."""
        self._dry_ns = 0
        """Time at which all received audio will have been played."""
        self._marks: deque[tuple[int, str]] = deque()
        """Due times and names of the marks."""

    def media(self, pcm: Int16, now_ns: int) -> None:
        if self._reply is None:
            self._num_replies += 1
            self._reply = f"reply {self._num_replies}"
            self._tell(ev.ReplyStarted(self._reply, now_ns))
        begins_ns = max(now_ns, self._dry_ns)
        self._dry_ns = begins_ns + len(pcm) * NS_PER_S // LINE_RATE_HZ
        audible = np.flatnonzero((pcm > AUDIBLE) | (pcm < -AUDIBLE))
        if self.first_sound_ns is None and len(audible):
            self.first_sound_ns = begins_ns + int(audible[0]) * NS_PER_S // LINE_RATE_HZ
        self._tell(ev.ReplyAudio(self._reply, self._reply, pcm, LINE_RATE_HZ, now_ns))

    def mark(self, name: str, now_ns: int) -> None:
        self._marks.append((max(self._dry_ns, now_ns), name))

    def clear(self, now_ns: int) -> None:
        self._dry_ns = now_ns
        self._marks = deque((now_ns, name) for _, name in self._marks)
        self._tell(ev.SpeechStarted("", 0, now_ns))
        self._reply_over("cancelled", "turn_detected", now_ns)

    @property
    def next_mark_ns(self) -> int | None:
        """Due time of the next mark; None if none is outstanding."""
        return self._marks[0][0] if self._marks else None

    def reached(self, now_ns: int) -> str:
        """Take the next mark, which is due, and return its name."""
        _, name = self._marks.popleft()
        if not self._marks and now_ns >= self._dry_ns:
            self._reply_over("completed", None, now_ns)
        return name

    def _reply_over(self, status: str, reason: str | None, now_ns: int) -> None:
        if self._reply is not None:
            self._tell(ev.ReplyDone(self._reply, status, reason, "", None, {}, now_ns))
            self._reply = None


class TwilioCall:
    """One stream. `run` must be running; `events` then yields the events for a `Caller`."""

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
        """Time at which `start` was sent."""
        self._socket = socket
        self._clock = SystemClock() if clock is None else clock
        self._sid = f"MZ{random.Random(seed).getrandbits(128):032x}"
        self._events: asyncio.Queue[ev.ClientEvent] = asyncio.Queue()
        self._departures: asyncio.Queue[tuple[int, Fields]] = asyncio.Queue()
        self.uplink = Uplink(line, seed)
        self.queue = CarrierQueue(self._events.put_nowait)
        self._marked = asyncio.Event()
        """Set when the next mark or its due time changes."""

    async def begin(self, agent: str | None = None) -> None:
        """Send the first messages of a stream, which may name an agent."""
        await self._socket.send('{"event":"connected","protocol":"Call","version":"1.0.0"}')
        described = {
            "accountSid": ACCOUNT,
            "streamSid": self._sid,
            "callSid": self._sid.replace("MZ", "CA"),
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": LINE_RATE_HZ, "channels": 1},
            "customParameters": {} if agent is None else {"agent": agent},
        }
        await self._send("start", described)
        self.started_ns = self._clock.now_ns()

    async def run(self) -> None:
        """Run the stream until either side closes it."""
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._depart()), group.create_task(self._return_marks())]
            try:
                async for text in self._socket:
                    self._take(json.loads(text), self._clock.now_ns())
            except ConnectionClosed:
                pass  # the close code is reported
            finally:
                closed = ev.Closed(self._socket.close_code, self.close_reason, self._clock.now_ns())
                self._events.put_nowait(closed)
                for each in others:
                    each.cancel()

    async def hang_up(self, *, says_so: bool = True) -> None:
        """End the call as a carrier does when the caller hangs up."""
        with contextlib.suppress(ConnectionClosed):
            if says_so:
                await self._send("stop", {"accountSid": ACCOUNT})
        await self._socket.close()

    def abort(self) -> None:
        """Break the connection without a closing handshake."""
        self._socket.transport.abort()

    @property
    def close_reason(self) -> str:
        """Reason that the server gave when it closed the stream."""
        return self._socket.close_reason or ""

    async def events(self) -> AsyncIterator[ev.ClientEvent]:
        """Events up to the end of the stream."""
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, ev.Closed):
                return

    async def send_audio(self, pcm: Int16, rate_hz: int) -> bool:
        """Send 20 ms of the caller, which the line may lose or delay. Raises CallEndedError."""
        if self._socket.close_code is not None:
            raise CallEndedError(f"The call has ended: {self.close_reason}.")
        media = self.uplink.media(pcm, self._clock.now_ns())
        if media is not None:
            self._departures.put_nowait(media)
        return True

    async def report_playback(self, item_id: str, played_ms: int) -> None:
        """Nothing to do: marks report playback."""

    async def truncate(self, item_id: str, audio_end_ms: int) -> None:
        """Nothing to do: marks report playback."""

    async def cancel(self) -> None:
        """Nothing to do: a telephone cannot cancel a reply."""

    # --- the carrier ---

    async def _send(self, event: str, fields: Fields) -> None:
        await self._socket.send(json.dumps({"event": event, "streamSid": self._sid, event: fields}))

    async def _depart(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                due_ns, media = await self._departures.get()
                await asyncio.sleep(max(0, due_ns - self._clock.now_ns()) / NS_PER_S)
                await self._send("media", media)

    def _take(self, message: Fields, now_ns: int) -> None:
        match message["event"]:
            case "media":
                payload = base64.b64decode(message["media"]["payload"])
                self.queue.media(mulaw_decode(payload), now_ns)
            case "mark":
                self.queue.mark(message["mark"]["name"], now_ns)
                self._marked.set()
            case "clear":
                self.queue.clear(now_ns)
                self._marked.set()

    async def _return_marks(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                self._marked.clear()
                due_ns, now_ns = self.queue.next_mark_ns, self._clock.now_ns()
                if due_ns is not None and due_ns <= now_ns:
                    await self._send("mark", {"name": self.queue.reached(now_ns)})
                    continue
                left_s = None if due_ns is None else (due_ns - now_ns) / NS_PER_S
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._marked.wait()


@asynccontextmanager
async def twilio_call(
    url: str, line: LineQuality, seed: int = 0, *, agent: str | None = None
) -> AsyncIterator[TwilioCall]:
    """Open and begin a stream to the server at ws://HOST:PORT/...; messages arrive only while `run`
    is running. Raises ConnectError."""
    address = f"{url.partition('/v1/')[0]}/telephony/twilio/stream"
    try:
        async with websockets_client.connect(
            address,
            additional_headers=entry_at(url).headers(),
            compression=None,
            proxy=None,
            max_queue=None,
        ) as socket:
            call = TwilioCall(socket, line, seed)
            await call.begin(agent)
            yield call
    except InvalidHandshake as refused:
        raise handshake_error(address, refused) from None
    except (OSError, TimeoutError, WebSocketException) as error:
        raise ConnectError(f"{address}: {error}") from None
