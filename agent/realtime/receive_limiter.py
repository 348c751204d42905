"""Rate limit of one client's messages and audio, and detection of idle clients.

*Idle* is a client that sends no frame at all for `access.idle_s`: the line is wanted by others.
Pongs don't count, for libraries send those by themselves. *Faster than real time* is allowed
`access.burst_s` ahead, as for a recording that is sent at once; from then on it is dealt with as
fast as it would be spoken. So whoever sends audio without end takes no more of the detector's
thread than somebody who speaks. What is further ahead waits
(`agent/http/hardening/message_queue.py`).

*Messages* are dealt with at `MESSAGES_PER_S`, once there were `MESSAGES_AT_ONCE`. What makes work
for others to wait for counts more: a change of the session, or a reply, takes the event loop a
millisecond and the model more; whatever is no audio may be long to read, to tokenize or to compile.
After each one others have their turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from agent.config.access import AccessSettings
from agent.errors import CLOSE_NORMAL, IdleClientError
from agent.http.hardening.leaky_bucket import LeakyBucket
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

REAL_TIME: Final = 1.0
"""Seconds of audio a second."""

MESSAGES_PER_S: Final = 200
"""Four times as many as of a client that sends 20 ms of audio in each."""

MESSAGES_AT_ONCE: Final = 6000
"""Two minutes of audio in messages of 20 ms. A history of a thousand items, as clients send it
again in a new call, counts less."""

WORK: Final = 20
"""What a change of the session, a reply, the end of one, a commit or a clear counts, in messages:
three hundred at once, and ten a second from then on. Nobody talks as fast. Of two thousand that
counted one each, every call noticed for seconds."""

CHARS_PER_MESSAGE: Final = 512
"""Of what is no audio; that many more count as another message. A hundred tools (70 kB) are checked
by tokenizer and grammar in 0.1 s, and count 150."""

LEAST_WAIT_S: Final = 0.05
"""Shorter ones are not worth a timer; they add up to one that is."""

_WORK: Final = (UpdateSession, CreateResponse, CancelResponse, CommitAudio, ClearAudio)


class ReceiveLimiter:
    """Belongs to one connection and its one reader."""

    def __init__(
        self,
        websocket: WebSocket,
        settings: AccessSettings,
        clock: Clock,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._websocket = websocket
        self._idle_s = settings.idle_s or None
        self._clock = clock
        self._pause = pause
        self._audio = LeakyBucket(REAL_TIME, settings.burst_s, self._now_s())
        self._messages = LeakyBucket(MESSAGES_PER_S, MESSAGES_AT_ONCE, self._now_s())

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

    async def keep_pace(self, frame: str | bytes, requests: Sequence[Request]) -> None:
        """After a frame was dealt with, which asked for this: let others have their turn, and wait
        while there was too much."""
        now_s = self._now_s()
        wait_s = self._messages.add(_cost(frame, requests), now_s)
        for request in requests:
            if isinstance(request, AppendAudio):
                audio_s = len(request.pcm) / request.rate_hz
                wait_s = max(wait_s, self._audio.add(audio_s, now_s))
        if wait_s > LEAST_WAIT_S:
            await self._pause(wait_s)
        else:
            await asyncio.sleep(0)

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


def _cost(frame: str | bytes, requests: Sequence[Request]) -> float:
    """Of one frame, in messages."""
    if any(isinstance(request, AppendAudio) for request in requests):
        return 1.0
    work = WORK if any(isinstance(request, _WORK) for request in requests) else 1
    return work + len(frame) / CHARS_PER_MESSAGE
