"""WebSocket of a call: frames in and out, until the client has gone or another socket replaces it.

A call may have several, one after the other; see `transport.py`. The endpoint that accepted the
socket waits in `attend` until the call releases it.

Limits of what one client sends (`ReceiveLimiter`):

*Idle* is a client that sends no frame at all for `access.idle_s`: other callers want the line.
Pongs don't count, for libraries send those by themselves.

*Audio faster than real time* is accepted up to `access.burst_s` ahead, as for a recording that is
sent at once; from then on it is processed as fast as it would be spoken, and waits (`MessageQueue`
in `agent/http/hardening/websocket_protocol.py`). So a client that sends audio without end takes no
more of the detector's thread than a caller who speaks. Beside other calls less is accepted at once
(`agent/stages/audio_pace.py`).

*Messages* are processed at `MESSAGES_PER_S`, after the first `MESSAGES_AT_ONCE`. Those that make
other calls wait count more: a change of the session, or a reply, takes the event loop a millisecond
and the model more; what a message holds besides audio may be long to parse, to tokenize or to
compile. After each message other calls have their turn.

Both limits are those of the call: a socket that resumes it goes on with what the one before had
used (`CallSocket.go_on`). At another server, which does not know that, a call begins anew.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from agent import errors
from agent.config.access import AccessSettings
from agent.errors import CLOSE_NORMAL, CLOSE_TIMEOUT_S, IdleClientError, SlowReader
from agent.http.hardening.leaky_bucket import LeakyBucket
from agent.realtime.send_queue import SendQueue
from agent.session.api.client_events import (
    AppendAudio,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    CreateResponse,
    Request,
    UpdateSession,
)
from latency_budget.account.clock import Clock

SEND_TIMEOUT_S: Final = 15.0
"""Limit for closing, in s: a peer that takes no data for so long has gone, or attacks."""

MAX_REASON_BYTES: Final = 123
"""Longest reason of a close frame (RFC 6455, section 5.5.1)."""

PLAIN_PROTOCOL: Final = "realtime"
EXTENDED_PROTOCOL: Final = "halfsec.v1"
PROTOCOLS: Final = (EXTENDED_PROTOCOL, PLAIN_PROTOCOL)
"""Subprotocols of voice sockets."""

BROKEN: Final = frozenset({1006, 1011, 1014, errors.CLOSE_COMES_BACK})
"""Close codes of a connection that broke, where a client that hangs up sends another: 1006, there
was no close frame; 1011, the client's keepalive got no answer; 1014, a proxy got none from the
client; 4408, the client gave up the connection and not the call."""

Take = Callable[[str | bytes], Awaitable[Sequence[Request]]]
"""Processes one frame of the client. Returns its requests."""


REAL_TIME: Final = 1.0
"""Seconds of audio a second."""

MESSAGES_PER_S: Final = 200
"""Rate of messages: four times that of a client that sends 20 ms of audio in each."""

MESSAGES_AT_ONCE: Final = 6000
"""Messages before the rate counts: two minutes of audio in messages of 20 ms. A history of a
thousand items, as clients send it again in a new call, counts less."""

WORK: Final = 20
"""Messages that a change of the session, a reply, a cancellation, a commit or a clear counts as:
three hundred at once, and ten a second from then on, which no caller reaches. Two thousand that
counted one each disturbed every call for seconds."""

CHARS_PER_MESSAGE: Final = 512
"""Characters of a message besides its audio that count as another message. A hundred tools (70 kB)
are checked by tokenizer and grammar in 0.1 s, and count 150. A message of audio has as many for the
fields around it; carriers send 100 to 300."""

CHARS_PER_SAMPLE: Final = 3
"""Characters that a sample of audio accounts for: the longest encoding, 16 bits in base64, has 8/3.
Where a client escapes every slash, silence in mu-law has as many; 16-bit audio that is nothing but
slashes has 16/3, and in real time is still below the rate of messages."""

LEAST_WAIT_S: Final = 0.05
"""Shortest wait in s: shorter ones are not worth a timer, and add up to one that is."""

_WORK: Final = (UpdateSession, CreateResponse, CancelResponse, CommitAudio, ClearAudio)


class ClientPace:
    """Pace of one client's messages and audio. Belongs to a connection and its one reader; what was
    used of it passes to the next connection of the call."""

    def __init__(
        self,
        settings: AccessSettings,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._pause = pause
        self._audio = LeakyBucket(REAL_TIME, settings.burst_s, self._now_s())
        self._messages = LeakyBucket(MESSAGES_PER_S, MESSAGES_AT_ONCE, self._now_s())

    async def keep_pace(self, frame: str | bytes, requests: Sequence[Request]) -> None:
        """Give other calls their turn after a frame and its requests, and wait while the client is
        over its limits."""
        now_s = self._now_s()
        wait_s = self._messages.add(_cost(frame, requests), now_s)
        for request in requests:
            if isinstance(request, AppendAudio):
                audio_s = len(request.pcm) / request.rate_hz
                wait_s = max(wait_s, self._audio.add(audio_s, now_s))
        await self._wait(wait_s)

    def continue_from(self, before: "ClientPace") -> None:
        """Go on with what was used of another pace, which is not used any more."""
        self._audio, self._messages = before._audio, before._messages

    async def resume(self) -> None:
        """Wait while the client is over its limits: the wait of the connection before ended with
        it. A resumption, which is answered with session and items, counts as a change of them."""
        now_s = self._now_s()
        await self._wait(max(self._messages.add(WORK, now_s), self._audio.add(0.0, now_s)))

    async def _wait(self, wait_s: float) -> None:
        if wait_s > LEAST_WAIT_S:
            await self._pause(wait_s)
        else:
            await asyncio.sleep(0)

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


class ReceiveLimiter(ClientPace):
    """Rate limit of one WebSocket, with its idle timeout."""

    def __init__(
        self,
        websocket: WebSocket,
        settings: AccessSettings,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(settings, clock, pause)
        self._websocket = websocket
        self._idle_s = settings.idle_s or None

    async def frame(self) -> str | bytes:
        """The client's next frame. Raises WebSocketDisconnect, IdleClientError."""
        try:
            async with asyncio.timeout(self._idle_s):
                message = await self._websocket.receive()
        except TimeoutError:
            raise IdleClientError from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", CLOSE_NORMAL))
        text: str | None = message.get("text")
        data: bytes = message.get("bytes") or b""
        return data if text is None else text


def _cost(frame: str | bytes, requests: Sequence[Request]) -> float:
    """Cost of one frame, in messages."""
    work = WORK if any(isinstance(request, _WORK) for request in requests) else 1
    num_samples = sum(len(each.pcm) for each in requests if isinstance(each, AppendAudio))
    of_audio = CHARS_PER_MESSAGE + CHARS_PER_SAMPLE * num_samples if num_samples else 0
    return work + max(0, len(frame) - of_audio) / CHARS_PER_MESSAGE


class SocketEnd(Enum):
    """End of a socket."""

    HUNG_UP = auto()
    BROKE = auto()
    TOO_SLOW = auto()
    """The client did not read what it was sent, or could not."""
    IDLE = auto()
    """The client sent nothing for too long."""
    STOPPED = auto()


class CallSocket:
    """A WebSocket, to be accepted first. Belongs to the event loop."""

    def __init__(
        self,
        websocket: WebSocket,
        clock: Clock,
        settings: AccessSettings,
    ) -> None:
        self._offered = websocket.scope.get("subprotocols", [])
        self.is_extended: Final = EXTENDED_PROTOCOL in self._offered
        """The client knows `halfsec.*` events."""
        self._send_queue = SendQueue(clock)
        self._websocket = websocket
        self._reading: asyncio.Task[int | None] | None = None
        self._is_receiving = False
        self._is_stopped = False
        self._is_slow = False
        self._is_idle = False
        self._limiter = ReceiveLimiter(websocket, settings, clock)
        self._resumes = False
        self._released = asyncio.Event()
        self._last = errors.CLOSE_NORMAL, ""

    async def accept(self, *known: str) -> None:
        """Complete the handshake, with the first of these subprotocols that the client offers."""
        chosen = next((each for each in known if each in self._offered), None)
        await self._websocket.accept(chosen)

    async def frame(self) -> str | bytes:
        """Next frame of the client, before `carry`. Raises WebSocketDisconnect, IdleClientError."""
        return await self._limiter.frame()

    def put(self, frame: str | bytes) -> None:
        """Queue a frame to be sent. Never waits."""
        self._send_queue.put(frame)

    def forget(self) -> None:
        """Discard the frames that are queued."""
        self._send_queue.forget()

    @property
    def pace(self) -> ClientPace:
        """Pace of the client."""
        return self._limiter

    def go_on(self, pace: ClientPace) -> None:
        """Resume a call whose client had this pace. Before `carry`."""
        self._limiter.continue_from(pace)
        self._resumes = True

    async def carry(self, take: Take) -> SocketEnd:
        """Carry frames both ways, once. Those of the client one at a time: while a session is busy,
        its socket is not read. A frame that was read is processed, unless this is cancelled."""
        async with asyncio.TaskGroup() as group:
            writing = group.create_task(self._write())
            self._reading = group.create_task(self._read(take))
            await asyncio.wait({self._reading})
            writing.cancel()
            self._send_queue.close()
        code = None if self._reading.cancelled() else self._reading.result()
        if code is not None:
            return SocketEnd.BROKE if code in BROKEN else SocketEnd.HUNG_UP
        if self._is_idle:
            return SocketEnd.IDLE
        return SocketEnd.TOO_SLOW if self._is_slow else SocketEnd.STOPPED

    def stop(self) -> None:
        """Let `carry` return as soon as the current frame is processed."""
        self._is_stopped = True
        self._send_queue.close()
        if self._is_receiving and self._reading is not None:
            self._reading.cancel()

    async def attend(self) -> None:
        """Wait until the call releases the socket, and close it. Returns when it is closed."""
        await self._released.wait()
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._websocket.close(*self._last)

    def release(self, code: int, reason: str = "") -> None:
        """Release the socket, with its close code and reason, of which as many characters are sent
        as a close frame takes. Only the first call counts."""
        if not self._released.is_set():
            self._last = code, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
            self._released.set()

    async def send_last(self, frames: Iterable[str | bytes]) -> None:
        """Once it is not carried any more, to a client that may be gone."""
        with contextlib.suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                for frame in frames:
                    await self._send(frame)

    async def _read(self, take: Take) -> int | None:
        """Returns the close code; None where it was stopped, or nothing came."""
        if self._resumes and not self._is_stopped:
            self._is_receiving = True  # stopping need not wait
            await self._limiter.resume()
            self._is_receiving = False
        while not self._is_stopped:
            await self._send_queue.room()
            if self._is_stopped:  # while there was no room
                break
            self._is_receiving = True
            try:
                frame = await self._limiter.frame()
            except WebSocketDisconnect as gone:
                return int(gone.code or errors.CLOSE_NORMAL)
            except errors.IdleClientError:
                self._is_idle = True
                return None
            finally:
                self._is_receiving = False
            requests = await take(frame)
            if not self._is_stopped:
                self._is_receiving = True  # what was read is dealt with: stopping need not wait
                await self._limiter.keep_pace(frame, requests)
                self._is_receiving = False
        return None

    async def _write(self) -> None:
        try:
            while True:
                frame = await self._send_queue.get()
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await self._send(frame)
        except WebSocketDisconnect:
            self._send_queue.close()  # how it ended is what the reader gets to know
        except (TimeoutError, SlowReader):
            self._is_slow = True
            self.stop()

    async def _send(self, frame: str | bytes) -> None:
        if isinstance(frame, str):
            await self._websocket.send_text(frame)
        else:
            await self._websocket.send_bytes(frame)
