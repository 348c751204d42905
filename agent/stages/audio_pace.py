"""Pace of callers' audio: beside others, none is heard much faster than people speak.

A client may send a recording as fast as it likes, and alone it is heard as fast as the detector
runs. Beside other callers each second of it costs them a share of every stage behind the detector:
recognizer passes, previews, turns. So then a call's audio is taken from a bucket that fills with
time. What does not fit waits in the call's own queue (`call_audio.py`), and in the end with its
client. Meanwhile the call has few and short recognizer passes (`SLOWED_EFFORT` in
`speech_input.py`), and no partial transcripts: who sends faster than people speak does not talk by
them, and others wait for each pass that has begun.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from latency_budget.account.clock import Clock

FASTEST: Final = 1.25
"""Seconds of audio in a second. At 1, a client whose network stood still would be late for the
rest of its call: it sends a second of audio a second. Higher takes more from the others: beside a
caller 15 times too fast the p95 of another's turns was 1334 ms at 1.5, 1110 at 1.25 (8 turns)."""

BURST_S: Final = 5.0
"""Audio that is taken at once. Lower, and the jitter of a bad network, which comes in bursts,
delays the audio. Higher: so many seconds of work that others wait for come at once."""

RECENT_NS: Final = 5_000_000_000
"""Time without audio after which a call is no other for this purpose: its client is lost, mute, or
types."""

CHECK_S: Final = 0.25
"""Longest sleep before the others are counted again."""


class AudioPace:
    """The calls that share the stages of a server. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: set[CallPace] = set()

    def join(self) -> "CallPace":
        """Pace of a new call, until its `leave`."""
        call = CallPace(self._clock, self._has_others, self._calls.discard)
        self._calls.add(call)
        return call

    def _has_others(self, call: "CallPace") -> bool:
        since_ns = self._clock.now_ns() - RECENT_NS
        return any(each is not call and each.taken_ns >= since_ns for each in self._calls)


class CallPace:
    """Pace of one call. Belongs to one event loop."""

    def __init__(
        self,
        clock: Clock,
        has_others: Callable[["CallPace"], bool],
        leave: Callable[["CallPace"], None],
    ) -> None:
        self._clock = clock
        self._has_others = has_others
        self._leave = leave
        self._room_s = BURST_S
        """Audio that may be taken at once; negative where a batch was larger than that."""
        self._filled_ns = clock.now_ns()
        self.taken_ns = self._filled_ns
        """When audio was taken last, or waited to be; the call's beginning before that."""

    def leave(self) -> None:
        """The call is over. Does nothing the second time."""
        self._leave(self)

    async def take(self, audio_s: float, on_wait: Callable[[], None]) -> bool:
        """Wait until this much audio may be processed, and count it. Returns True where that took
        a wait; `on_wait` is called before it."""
        self._fill()
        waits = self._room_s <= 0 and self._has_others(self)
        if waits:
            on_wait()
            while self._room_s <= 0 and self._has_others(self):
                await asyncio.sleep(min(-self._room_s / FASTEST + 0.001, CHECK_S))
                self._fill()
        self._room_s = max(self._room_s, 0.0) - audio_s
        return waits

    def _fill(self) -> None:
        now_ns = self._clock.now_ns()
        self._room_s = min(BURST_S, self._room_s + (now_ns - self._filled_ns) / 1e9 * FASTEST)
        self._filled_ns = self.taken_ns = now_ns
