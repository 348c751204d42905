"""Simulated caller: speaks recordings in real time, plays the answers, and measures latency at the
ear.

Like a microphone, it sends 20 ms every 20 ms for as long as the call lasts, silence where there is
nothing to say. Frame n is due at start + (n + 1) * 20 ms: a sample can't be sent before it was
spoken, and due times that are computed from the start do not drift. What arrives is played by a
simulated loudspeaker (`playback.py`), so every time here is that of a person's ear:

    e2e_ear_ms   from the last voiced sample spoken to the first audible sample played
    cut_in       audible before that last voiced sample

The rule for "last voiced" is `asr.audio.last_voiced_sample`, the one that the server uses.

Where the connection breaks, the loudspeaker stops, as a person hears nothing more; once it is back
the caller reports how much was played, so that the agent knows what was heard. Speech in between is
lost.

All decisions are made on the microphone's tick, by one task; the other only receives events.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from agent.client import events as ev
from agent.client.errors import CallEndedError
from latency_budget.account.clock import Clock, SystemClock

from .microphone import FRAME_MS, Microphone, RecordingError, load_recording
from .playback import NS_PER_S, Position, SimulatedPlayback
from .playback_reports import CallPort, PlaybackReports
from .spoken_turn import Int16, SpokenTurn

__all__ = ["CallPort", "RecordingError", "SimulatedCaller", "SpokenTurn", "load_recording"]

NS_PER_MS: Final = 1_000_000
REPORTS_S: Final = 3.0
"""Time in s to wait for the report of the newest turn, from the end of its reply. The server sends
it 2.5 s after the reply's first sound, when it knows whether it cut in."""

REST_MS: Final = 300
"""Quiet after a reply before it counts as over: the server's report of the turn follows it, and
people don't answer faster."""

TOO_LATE: Final = "response_cancel_not_active"
"""Error code of a cancellation that came just after the reply had ended."""

Sleep = Callable[[float], Awaitable[None]]


class SimulatedCaller:
    """One caller on one call. Works while `run` runs."""

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
        """`on_event` is called with every event. `record` keeps what was said and heard.
        `cut_after_s`: cancels each answer once so many seconds of it were heard."""
        self.exchanges: list[SpokenTurn] = []
        self.loudspeaker = SimulatedPlayback(record=record)
        self.microphone = Microphone(call.input_rate_hz, record=record)
        self.closed: ev.Closed | None = None
        """The end of the call; None before it."""
        self._call = call
        self._clock = SystemClock() if clock is None else clock
        self._sleep = sleep
        self._on_event = on_event or (lambda event: None)
        self._current: SpokenTurn | None = None
        """The turn that was begun last: transcripts and replies belong to it."""
        self._open_replies: dict[str, SpokenTurn | None] = {}
        self._replied: dict[str, SpokenTurn | None] = {}
        """Turn of each response: reports come late, and some of them after the next turn began."""
        self._unreported = ""
        """The newest response, until the server reports its turn."""
        self._unanswered = False
        """The server has detected speech, and no reply has begun since."""
        self._last_busy_ns = 0
        """Last time with something to say, to play or to wait for."""
        self._awaited: Callable[[int], bool] = lambda now_ns: False
        self._met = asyncio.Event()
        self._gives_up_ns = 0
        self._stopping = False
        self._reports = PlaybackReports(call)
        self.num_resumed = 0
        """Times that the call went on after the connection had broken."""
        self.num_restarted = 0
        """Times that another call began in its place: the agent has forgotten everything."""
        self._stopped_at: Position | None = None
        """Playback position when the connection broke."""
        self._cut_after_ns = None if cut_after_s is None else round(cut_after_s * NS_PER_S)
        self._cut: set[str] = set()

    def say(
        self, pcm: Int16, rate_hz: int, voiced_s: float | None = None, *, is_aside: bool = False
    ) -> SpokenTurn:
        """Speak int16 [n] with the next frame, or after the recordings before it. `voiced_s`: end
        of the speech in it, where that is known better than by its level. `is_aside`: no answer is
        wanted, and what comes back belongs to the turn before."""
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
        """Wait until everything is said, answered and played, for REST_MS. Returns False where that
        takes longer than `patience_s`. One task at a time may wait. Raises CallEndedError."""
        return await self.wait_until(self.is_quiet, patience_s)

    async def wait_until(self, awaited: Callable[[int], bool], patience_s: float) -> bool:
        """Wait for a condition, which is called with the time in ns at every frame. Otherwise like
        `wait_quiet`."""
        self._last_busy_ns = self._clock.now_ns()
        self._gives_up_ns = self._last_busy_ns + round(patience_s * NS_PER_S)
        self._awaited = awaited
        self._met.clear()
        await self._met.wait()
        if self.closed is not None:
            raise CallEndedError(f"The call has ended: {self.closed.code} {self.closed.reason}.")
        return awaited(self._clock.now_ns())

    def is_quiet(self, now_ns: int) -> bool:
        """True where there was nothing to say, to play or to wait for during REST_MS."""
        if (
            self.microphone.busy
            or self._unanswered
            or self._open_replies
            or self.loudspeaker.playing(now_ns)
        ):
            self._last_busy_ns = now_ns
        return now_ns - self._last_busy_ns >= REST_MS * NS_PER_MS

    async def wait_reports(self) -> None:
        """Wait until the server has reported the newest turn, and with it all before, for REPORTS_S
        at most. Raises CallEndedError."""
        if self._call.extensions:
            await self.wait_until(lambda now_ns: not self._unreported, REPORTS_S)

    def stop(self) -> None:
        """Stop speaking and listening: `run` returns. The call stays open."""
        self._stopping = True

    async def run(self) -> None:
        """Speak and listen until `stop`, or until the call ends."""
        try:
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(self._listen())
                try:
                    await self._speak()
                    listening.cancel()
                except CallEndedError:
                    await listening  # it receives the reason of the end
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
        """Cancel replies that have been audible since then, unless they came too early: a caller
        who is cut in on goes on speaking."""
        exchange = self._current
        if exchange is None or exchange.last_voiced_ns is None:
            return
        for response_id in self._open_replies.keys() - self._cut:
            onset_ns = self.loudspeaker.onset_ns(response_id)
            if onset_ns is not None and exchange.last_voiced_ns <= onset_ns <= since_ns:
                self._cut.add(response_id)
                self.microphone.hush()
                await self._call.cancel()

    # --- events ---

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
                    self._unanswered = await self._connection_changed(event)
                case _:
                    self._note(event)

    def _note(self, event: ev.ClientEvent) -> None:
        """Assign an event to the turn that was begun last."""
        exchange = self._current
        if isinstance(event, ev.ReplyStarted):
            self._unanswered = False
            self._open_replies[event.response_id] = exchange
            self._replied[event.response_id] = exchange
            self._unreported = event.response_id
            if exchange is not None:
                exchange.reply_began(event.response_id, event.at_ns)
        elif isinstance(event, ev.TurnReport):
            if event.response_id in ("", self._unreported):
                self._unreported = ""
            owner = self._replied.get(event.response_id, exchange)
            if owner is not None:
                owner.reported(event.turn)
        elif exchange is None:
            return
        elif isinstance(event, ev.Transcript):
            exchange.understood(event.text)
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
        exchange.interrupted |= event.reason == "turn_detected" and not exchange.is_early(
            event.response_id
        )
        exchange.agent_text = f"{exchange.agent_text} {event.text}".strip()
        if event.error_message is not None:
            exchange.errors.append(event.error_message)
        exchange.account(self.loudspeaker)

    async def _connection_changed(self, event: ev.Reconnecting | ev.Resumed | ev.Restarted) -> bool:
        """Returns True where there is something to wait for: the connection, or a reply."""
        match event:
            case ev.Reconnecting(at_ns=at_ns):
                self._stopped_at = self.loudspeaker.flush(at_ns) or self._stopped_at
                self._open_replies.clear()
                for exchange in self.exchanges:
                    exchange.account(self.loudspeaker)
                return True
            case ev.Resumed(will_answer=will_answer):
                self.num_resumed += 1
                stopped, self._stopped_at = self._stopped_at, None
                if stopped is not None:
                    await self._call.truncate(stopped.item_id, stopped.played_ms)
                return will_answer
            case ev.Restarted():
                self.num_restarted += 1
                self._stopped_at = None
                return False

    async def _fall_silent(self, at_ns: int, *, barged_in: bool = False) -> None:
        """Stop playing, and report how much was heard."""
        position = self.loudspeaker.flush(at_ns)
        if position is None:
            return
        for exchange in self.exchanges:
            exchange.account(self.loudspeaker)
        if barged_in and self._current is not None:
            self._current.silenced(at_ns, self.microphone.rate_hz)
        await self._reports.stopped(position)
