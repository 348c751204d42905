"""Playback reports of the simulated caller, and the port by which it uses a call."""

from collections.abc import AsyncIterator
from typing import Final, Protocol

from agent.client import events as ev

from .playback import Int16, Position, SimulatedPlayback

REPORT_MS: Final = 200
"""Interval of the reports. History is cut to what was heard, and a word takes about 300 ms."""


class CallPort(Protocol):
    """A call, as the simulated caller uses it: `agent.client.Call`, or a fake of the tests."""

    extensions: bool

    @property
    def input_rate_hz(self) -> int: ...
    def events(self) -> AsyncIterator[ev.ClientEvent]: ...
    async def send_audio(self, pcm: Int16, rate_hz: int) -> bool: ...
    async def cancel(self) -> None: ...
    async def report_playback(self, item_id: str, played_ms: int) -> None: ...
    async def truncate(self, item_id: str, audio_end_ms: int) -> None: ...


class PlaybackReports:
    """Playback reports of one caller."""

    def __init__(self, call: CallPort) -> None:
        self._call = call
        self._reported: Position | None = None

    async def running(self, speaker: SimulatedPlayback, now_ns: int) -> None:
        """Report the position in the reply, if a report is due."""
        position = speaker.position(now_ns)
        if position is None or not self._call.extensions or position == self._reported:
            return
        before = self._reported
        is_new = before is None or before.item_id != position.item_id
        if is_new or not speaker.playing(now_ns) or self._advanced_ms(position) >= REPORT_MS:
            await self._report(position)

    async def stopped(self, position: Position) -> None:
        """Report where the loudspeaker was stopped: the rest was never heard."""
        if self._call.extensions:
            await self._report(position)
        else:
            await self._call.truncate(position.item_id, position.played_ms)

    def _advanced_ms(self, position: Position) -> int:
        return position.played_ms - (self._reported.played_ms if self._reported else 0)

    async def _report(self, position: Position) -> None:
        self._reported = position
        await self._call.report_playback(position.item_id, position.played_ms)
