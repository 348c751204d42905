"""A caller made of recordings: speaks them in real time, listens, and times what it hears.

As a microphone would, it sends 20 ms every 20 ms for as long as the call lasts, silence where it
has nothing to say. Frame n is due at start + (n + 1) * 20 ms: a sample can't be sent before it was
spoken, and due times that are computed from the start do not drift. What arrives is played by a
simulated loudspeaker (`playback.py`), so every time here is that of a person's ear:

    e2e_ear_ms   from the last voiced sample spoken to the first audible sample played
    cut_in       audible before that last voiced sample

The rule for "last voiced" is `asr.audio.last_voiced_sample`, the one that the server uses.

All decisions are made on the microphone's tick, by one task; the other only takes events in.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, Protocol

from agent.client import events as ev
from agent.client.errors import CallEndedError
from latency_budget.account.clock import Clock, SystemClock

from .microphone import FRAME_MS, Microphone, RecordingError, load_recording
from .playback import NS_PER_S, SimulatedPlayback
from .playback_reports import PlaybackReports
from .reconnect import Gap
from .spoken_turn import Int16, SpokenTurn

__all__ = ["CallPort", "Caller", "RecordingError", "SpokenTurn", "load_recording"]

NS_PER_MS: Final = 1_000_000
REST_MS: Final = 300
"""Quiet after a reply before it counts as over: the server's account of the turn comes behind it,
and people don't answer faster."""

TOO_LATE: Final = "response_cancel_not_active"
"""The reply that was to be cut short had just ended by itself."""

Sleep = Callable[[float], Awaitable[None]]


class CallPort(Protocol):
    """What a caller needs of a call. `agent.client.Call` is one."""

    extensions: bool

    @property
    def input_rate_hz(self) -> int: ...
    def events(self) -> AsyncIterator[ev.ClientEvent]: ...
    async def send_audio(self, pcm: Int16, rate_hz: int) -> bool: ...
    async def report_playback(self, item_id: str, played_ms: int) -> None: ...
    async def truncate(self, item_id: str, audio_end_ms: int) -> None: ...
    async def cancel(self) -> None: ...


class Caller:
    """One caller on one call. `run` must be running for anything to happen."""

    def __init__(
        self,
        call: CallPort,
        *,
        clock: Clock | None = None,
        sleep: Sleep = asyncio.sleep,
        on_event: Callable[[ev.ClientEvent], None] | None = None,
        record: bool = True,
        cut_after_s: float | None = None,
    ) -> None:
        """`on_event` sees every event as it comes. `record` keeps what was said
        and heard. `cut_after_s`:
        has enough of each answer once so much of it was heard, and cancels the rest."""
        self.exchanges: list[SpokenTurn] = []
        self.loudspeaker = SimulatedPlayback(record=record)
        self.microphone = Microphone(call.input_rate_hz, record=record)
        self.closed: ev.Closed | None = None
        """How the call ended, once it has."""
        self._call = call
        self._clock = SystemClock() if clock is None else clock
        self._sleep = sleep
        self._on_event = on_event or (lambda event: None)
        self._current: SpokenTurn | None = None
        """The one that was begun last: what comes back belongs to it."""
        self._open_replies: dict[str, SpokenTurn | None] = {}
        self._unanswered = False
        """The server has heard speech, and no reply has begun since."""
        self._restless_ns = 0
        """When there was last something to say, to hear or to wait for."""
        self._awaited: Callable[[int], bool] = lambda now_ns: False
        self._met = asyncio.Event()
        self._gives_up_ns = 0
        self._stopping = False
        self._reports = PlaybackReports(call)
        self.gap = Gap(call, self.loudspeaker, self.exchanges, self._open_replies)
        """Where the connection breaks."""
        self._cut_after_ns = None if cut_after_s is None else round(cut_after_s * NS_PER_S)
        self._cut: set[str] = set()

    def say(
        self, pcm: Int16, rate_hz: int, voiced_s: float | None = None, *, is_aside: bool = False
    ) -> SpokenTurn:
        """Speak int16 [n] with the next frame, or when all before it is said. `voiced_s`: up to
        where it is voiced, if that is known better than it can be heard. `is_aside`: no answer is
        wanted, and what comes back belongs to the exchange before."""
        exchange = self.microphone.add(pcm, rate_hz, voiced_s)
        if not is_aside:
            self.exchanges.append(exchange)
            return exchange
        exchange.is_aside = True
        if self._current is not None:
            self._current.has_aside = True
        return exchange

    async def ask(self, pcm: Int16, rate_hz: int, *, patience_s: float = 20.0) -> SpokenTurn:
        """Speak, and wait until the answer has been heard or `patience_s` have passed since the
        recording's end. Raises CallEndedError where the call ends first."""
        exchange = self.say(pcm, rate_hz)
        await self.wait_quiet(len(pcm) / rate_hz + patience_s)
        return exchange

    async def wait_quiet(self, patience_s: float) -> bool:
        """Until all is said, answered and played, and has been for a moment. False where that took
        longer than `patience_s`. One task at a time may wait. Raises CallEndedError."""
        return await self.wait_until(self.is_quiet, patience_s)

    async def wait_until(self, awaited: Callable[[int], bool], patience_s: float) -> bool:
        """Until something is so, given the time in ns; it is asked with every frame. Otherwise as
        `wait_quiet`."""
        self._restless_ns = self._clock.now_ns()
        self._gives_up_ns = self._restless_ns + round(patience_s * NS_PER_S)
        self._awaited = awaited
        self._met.clear()
        await self._met.wait()
        if self.closed is not None:
            raise CallEndedError(f"The call has ended: {self.closed.code} {self.closed.reason}.")
        return awaited(self._clock.now_ns())

    def is_quiet(self, now_ns: int) -> bool:
        """Nothing to say, to hear or to wait for since a moment."""
        if (
            self.microphone.busy
            or self._unanswered
            or self._open_replies
            or self.loudspeaker.playing(now_ns)
        ):
            self._restless_ns = now_ns
        return now_ns - self._restless_ns >= REST_MS * NS_PER_MS

    def stop(self) -> None:
        """Put the microphone down: `run` returns. The call stays open."""
        self._stopping = True

    async def run(self) -> None:
        """Speak and listen until `stop`, or until the call ends."""
        try:
            async with asyncio.TaskGroup() as group:
                ears = group.create_task(self._listen())
                try:
                    await self._speak()
                    ears.cancel()
                except CallEndedError:
                    await ears  # they hear how it ended
        finally:
            self._met.set()

    # --- the microphone ---

    async def _speak(self) -> None:
        start_ns = self._clock.now_ns()
        frame_number = dropped_ns = 0
        while not self._stopping and self.closed is None:
            frame_ns = start_ns + frame_number * FRAME_MS * NS_PER_MS
            frame_number += 1
            due_ns = frame_ns + FRAME_MS * NS_PER_MS
            await self._sleep(max(0, due_ns - self._clock.now_ns()) / NS_PER_S)
            frame, begun = self.microphone.frame(frame_ns)
            if begun is not None and not begun.is_aside:
                self._current = begun
                self._unanswered = begun.last_voiced_ns is not None
            if due_ns > dropped_ns:
                is_sent = await self._call.send_audio(frame, self.microphone.rate_hz)
                # It may have taken a while to notice: what was due by now is not sent later.
                dropped_ns = 0 if is_sent else self._clock.now_ns()
            await self._tick(self._clock.now_ns())

    async def _tick(self, now_ns: int) -> None:
        await self._reports.running(self.loudspeaker, now_ns)
        if self._cut_after_ns is not None:
            await self._cut_short(now_ns - self._cut_after_ns)
        if self._awaited(now_ns) or now_ns >= self._gives_up_ns:
            self._met.set()

    async def _cut_short(self, since_ns: int) -> None:
        """Cancel what has been audible since then, unless it came too early: a caller who is cut in
        on goes on speaking."""
        exchange = self._current
        if exchange is None or exchange.last_voiced_ns is None:
            return
        for response_id in self._open_replies.keys() - self._cut:
            onset_ns = self.loudspeaker.onset_ns(response_id)
            if onset_ns is not None and exchange.last_voiced_ns <= onset_ns <= since_ns:
                self._cut.add(response_id)
                self.microphone.hush()
                await self._call.cancel()

    # --- the ears ---

    async def _listen(self) -> None:
        async for event in self._call.events():
            self._on_event(event)
            match event:
                case ev.Closed():
                    self.closed = event
                case ev.SpeechStarted():
                    self._unanswered = True
                    await self._fall_silent(event.at_ns, barged_in=True)
                case ev.Duck(item_id, at_ns):
                    self.loudspeaker.duck(item_id, at_ns)
                    if self._current is not None and self.loudspeaker.playing(at_ns):
                        self._current.ducked(at_ns, self.microphone.rate_hz)
                case ev.Unduck(item_id, at_ns):
                    self.loudspeaker.unduck(item_id, at_ns)
                    if self._current is not None:
                        self._current.unducked()
                case ev.ReplyAudio():
                    self.loudspeaker.push(
                        event.response_id, event.item_id, event.pcm, event.rate_hz, event.at_ns
                    )
                    exchange = self._open_replies.get(event.response_id)
                    if exchange is not None:
                        exchange.account(self.loudspeaker)
                case ev.ReplyDone():
                    await self._reply_done(event)
                case ev.Reconnecting() | ev.Resumed() | ev.Restarted():
                    self._unanswered = await self.gap.take(event)
                case _:
                    self._take_note(event)

    def _take_note(self, event: ev.ClientEvent) -> None:
        """What belongs to the exchange that was begun last."""
        exchange = self._current
        if isinstance(event, ev.ReplyStarted):
            self._unanswered = False
            self._open_replies[event.response_id] = exchange
            if exchange is not None:
                exchange.reply_began(event.response_id, event.at_ns)
        elif exchange is None:
            return
        elif isinstance(event, ev.Transcript):
            exchange.understood(event.text)
        elif isinstance(event, ev.TurnReport):
            exchange.reported(event.turn)
        elif isinstance(event, ev.ServerError) and not (self._cut and event.code == TOO_LATE):
            exchange.errors.append(event.message)

    async def _reply_done(self, event: ev.ReplyDone) -> None:
        if event.status == "cancelled":
            await self._fall_silent(event.at_ns)
        if event.reason == "turn_detected":
            self._unanswered = True  # the caller went on speaking, and that will be answered
        exchange = self._open_replies.pop(event.response_id, None)
        if exchange is None:
            return
        exchange.interrupted |= event.reason == "turn_detected"
        exchange.agent_text = f"{exchange.agent_text} {event.text}".strip()
        if event.error_message is not None:
            exchange.errors.append(event.error_message)
        exchange.account(self.loudspeaker)

    async def _fall_silent(self, at_ns: int, *, barged_in: bool = False) -> None:
        """Stop playing and tell the server how much was heard."""
        position = self.loudspeaker.flush(at_ns)
        if position is None:
            return
        for exchange in self.exchanges:
            exchange.account(self.loudspeaker)
        if barged_in and self._current is not None:
            self._current.silenced(at_ns, self.microphone.rate_hz)
        await self._reports.stopped(position)
