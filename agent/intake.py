"""What one client sends, and how fast it is taken in.

*Idle* is who sends no frame at all for `access.idle_s`: the line is wanted by others. Pongs don't
count, for libraries send those by themselves. *Faster than real time* is allowed `access.burst_s`
ahead, as for a recording that is sent at once; from then on the call is read as fast as it would be
spoken. So whoever sends audio without end takes no more of the detector's thread than somebody who
speaks, and loses nothing: what is not read waits in his own network.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from latency_budget.clock import Clock

from .access_settings import AccessSettings
from .errors import CLOSE_NORMAL, IdleClientError
from .pace import Pace
from .requests import AppendAudio, Request

REAL_TIME: Final = 1.0
"""Seconds of audio a second."""
LEAST_WAIT_S: Final = 0.05
"""Shorter ones are not worth a timer; they add up to one that is."""


class Intake:
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
        self._pace = Pace(REAL_TIME, settings.burst_s, self._now_s())

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

    async def keep_pace(self, request: Request) -> None:
        """After audio was handed on: wait while there is too much of it."""
        if isinstance(request, AppendAudio):
            wait_s = self._pace.add(len(request.pcm) / request.rate_hz, self._now_s())
            if wait_s > LEAST_WAIT_S:
                await self._pause(wait_s)

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9
