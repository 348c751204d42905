"""A call that is a script, and a caller on it whose time passes as it sleeps."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import numpy.typing as npt

from agent.client import events as ev
from agent.client.simulated_caller.caller import SimulatedCaller
from latency_budget.account.clock import ManualClock

MS = 1_000_000
RATE_HZ = 24_000
Int16 = npt.NDArray[np.int16]

Script = dict[int, list[Callable[[int], ev.ClientEvent]]]
"""Frames that the server sends when it gets frame n (from 0), given the time."""


class ScriptedCall:
    """Stands for `agent.client.Call`."""

    extensions = True
    input_rate_hz = RATE_HZ

    def __init__(self, clock: ManualClock, script: Script) -> None:
        self.frames: list[tuple[int, Int16]] = []
        self.reports: list[tuple[int, str, int]] = []
        self.truncated: list[tuple[str, int]] = []
        self.cancelled: list[int] = []
        """Before which frames."""
        self._clock = clock
        self._script = script
        self._events: asyncio.Queue[ev.ClientEvent] = asyncio.Queue()

    async def events(self) -> AsyncIterator[ev.ClientEvent]:
        while True:
            event = await self._events.get()
            yield event
            if isinstance(event, ev.Closed):
                return

    async def send_audio(self, pcm: Int16, rate_hz: int) -> bool:
        assert rate_hz == RATE_HZ
        for event in self._script.get(len(self.frames), []):
            self._events.put_nowait(event(self._clock.now_ns()))
        self.frames.append((self._clock.now_ns() // MS, pcm))
        return True

    async def report_playback(self, item_id: str, played_ms: int) -> None:
        self.reports.append((self._clock.now_ns() // MS, item_id, played_ms))

    async def truncate(self, item_id: str, audio_end_ms: int) -> None:
        self.truncated.append((item_id, audio_end_ms))

    async def cancel(self) -> None:
        self.cancelled.append(len(self.frames))


class Scene:
    """A caller on a scripted call; time passes as the caller sleeps."""

    def __init__(self, script: Script, *, extensions: bool = True, late_ms: int = 0) -> None:
        self.clock = ManualClock(5 * MS)
        self.call = ScriptedCall(self.clock, script)
        self.call.extensions = extensions
        self.seen: list[ev.ClientEvent] = []
        self._late_ms = late_ms
        self.caller = SimulatedCaller(
            self.call, clock=self.clock, sleep=self.sleep, on_event=self.seen.append
        )

    async def sleep(self, seconds: float) -> None:
        for advance_ms in (0, seconds * 1000 + self._late_ms):
            self.clock.advance_ms(advance_ms)
            for _ in range(20):  # let everything else happen at this point in time
                await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SimulatedCaller]:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.caller.run())
            yield self.caller
            self.caller.stop()


def speech(ms: int, rate_hz: int = RATE_HZ) -> Int16:
    count = rate_hz * ms // 1000
    return (np.sin(np.arange(count) * 2 * np.pi * 300 / rate_hz) * 8000).astype(np.int16)


def loud(ms: int) -> Int16:
    return np.full(RATE_HZ * ms // 1000, 5000, np.int16)


def started(number: int = 1) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.ReplyStarted(f"r{number}", now)


def audio(pcm: Int16, number: int = 1) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.ReplyAudio(f"r{number}", f"i{number}", pcm, RATE_HZ, now)


def done(
    number: int = 1, status: str = "completed", reason: str | None = None
) -> Callable[[int], ev.ClientEvent]:
    return lambda now: ev.ReplyDone(f"r{number}", status, reason, "Yes.", None, {}, now)


def heard(now: int) -> ev.ClientEvent:
    return ev.SpeechStarted("u1", 0, now)


def understood(now: int) -> ev.ClientEvent:
    return ev.Transcript("u1", "hello", now)


def report(now: int) -> ev.ClientEvent:
    turn = {"turn": 7, "e2e_server_ms": 90.0, "paced_ms": 30.0, "stages": {"asr": {}}}
    return ev.TurnReport(turn, now)


ANSWERED: Script = {
    2: [heard],
    # 400 ms of speech are frames 0..19; the reply comes with frame 29.
    29: [understood, started(), audio(np.zeros(240, np.int16)), audio(loud(100))],
    32: [audio(loud(40)), done(), report],
}
