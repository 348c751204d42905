"""A client that calls by WebRTC, as a browser does: aiortc at the other end."""

import asyncio
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
import numpy.typing as npt
from aiortc.mediastreams import MediaStreamError

from benchmarks.callers.webrtc_client import WebRtcClient
from tests.support.service.live_call import PATIENCE_S, recording
from tests.support.wire.wire_frames import check_strictly

RATE_HZ: Final = 48_000
FRAME: Final = RATE_HZ // 50

Int16 = npt.NDArray[np.int16]
Event = dict[str, Any]


class Microphone(aiortc.MediaStreamTrack):
    """What the caller says, then silence, in real time."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._parts: deque[Int16] = deque()
        self._number = 0
        self._began_s = 0.0

    def say(self, name: str) -> None:
        pcm = recording(name, RATE_HZ)
        self._parts += np.split(pcm, range(FRAME, len(pcm), FRAME))

    async def recv(self) -> av.AudioFrame:
        loop = asyncio.get_running_loop()
        self._began_s = self._began_s or loop.time()
        await asyncio.sleep(self._began_s + self._number / 50 - loop.time())
        pcm = self._parts.popleft() if self._parts else np.zeros(FRAME, np.int16)
        pcm = np.pad(pcm, (0, FRAME - len(pcm)))
        frame = av.AudioFrame.from_ndarray(pcm[None], layout="mono")
        frame.sample_rate, frame.pts = RATE_HZ, self._number * FRAME
        frame.time_base = fractions.Fraction(1, RATE_HZ)
        self._number += 1
        return frame


class WebRtcPeer(WebRtcClient):
    """One call. Events are taken in order."""

    def __init__(self) -> None:
        self.microphone = Microphone()
        super().__init__(self.microphone, self._take)
        self.events: list[Event] = []
        self.heard: list[Int16] = []
        """Frames of the agent's audio; none where it sent no silence."""
        self.location = ""
        self._came: asyncio.Queue[Event] = asyncio.Queue()
        self._listening: asyncio.Task[None] | None = None
        self.connection.on("track", self._listen)

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    async def accept(self, answer: httpx.Response) -> None:
        assert answer.status_code == 201, answer.text
        assert answer.headers["content-type"].startswith("application/sdp")
        self.location = answer.headers["location"]
        await self.connect(answer.text)

    async def until(self, kind: str, where: Callable[[Event], bool] | None = None) -> Event:
        """The next event of this type (that `where` takes)."""
        while True:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    event = await self._came.get()
            except TimeoutError:
                raise AssertionError(f"nothing came after {self.types[-5:]}") from None
            self.events.append(event)
            if event["type"] == kind and (where is None or where(event)):
                return event

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
        await super().close()

    def _take(self, message: str | bytes) -> None:
        event = json.loads(message)
        check_strictly(event)
        self._came.put_nowait(event)

    def _listen(self, track: aiortc.MediaStreamTrack) -> None:
        self._listening = asyncio.get_running_loop().create_task(self._hear(track))

    async def _hear(self, track: aiortc.MediaStreamTrack) -> None:
        try:
            while True:
                frame = await track.recv()
                assert isinstance(frame, av.AudioFrame)
                stereo: Int16 = frame.to_ndarray().astype(np.int16)
                self.heard.append(stereo[0, ::2])
        except MediaStreamError:
            return


@asynccontextmanager
async def webrtc_call(
    http: str, session: dict[str, Any] | None = None, model: str = "", key: str = ""
) -> AsyncIterator[WebRtcPeer]:
    """Open a call as OpenAI documents it: with a form where there is a `session`."""
    peer = WebRtcPeer()
    shown = {"authorization": f"Bearer {key}"} if key else {}
    try:
        async with httpx.AsyncClient(base_url=http, timeout=PATIENCE_S, headers=shown) as client:
            offer = await peer.offer()
            if session is None:
                answer = await client.post(
                    f"/v1/realtime/calls?model={model}",
                    content=offer,
                    headers={"content-type": "application/sdp"},
                )
            else:
                fields = {"sdp": (None, offer), "session": (None, json.dumps(session))}
                answer = await client.post("/v1/realtime/calls", files=fields)
        await peer.accept(answer)
        yield peer
    finally:
        await peer.close()
