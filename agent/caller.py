"""A caller made of recordings: speaks them in real time, listens, and times what it hears.

As a microphone would, it sends 20 ms every 20 ms for as long as the call lasts, silence where it
has nothing to say. Frame n is due at start + (n + 1) * 20 ms: a sample can't be sent before it was
spoken, and due times that are computed from the start do not drift. What arrives is played by a
simulated loudspeaker (`loudspeaker.py`), so every time here is that of a person's ear:

    e2e_ear_ms   from the last voiced sample spoken to the first audible sample played
    cut_in       audible before that last voiced sample

The rule for "last voiced" is `asr.audio.last_voiced_sample`, the one that the server uses.

All decisions are made on the microphone's tick, by one task; the other only takes events in.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from asr.audio import RATE_HZ as VOICED_RATE_HZ
from asr.audio import last_voiced_sample
from latency_budget.clock import Clock, SystemClock

from . import client_events as ev
from .client_errors import CallEndedError
from .loudspeaker import NS_PER_S, Loudspeaker, Position

FRAME_MS: Final = 20
NS_PER_MS: Final = 1_000_000
REPORT_MS: Final = 200
"""Between reports of playback. History is cut to what was heard, and a word takes about 300 ms."""
REST_MS: Final = 300
"""Quiet after a reply before it counts as over: the server's account of the turn comes behind it,
and people don't answer faster."""

Int16 = npt.NDArray[np.int16]
Float32 = npt.NDArray[np.float32]
Sleep = Callable[[float], Awaitable[None]]


class CallPort(Protocol):
    """What a caller needs of a call. `agent.client.Call` is one."""

    extensions: bool

    @property
    def input_rate_hz(self) -> int: ...
    def events(self) -> AsyncIterator[ev.ClientEvent]: ...
    async def send_audio(self, pcm: Int16, rate_hz: int) -> None: ...
    async def report_playback(self, item_id: str, played_ms: int) -> None: ...
    async def truncate(self, item_id: str, audio_end_ms: int) -> None: ...


class RecordingError(ValueError):
    """A file that can't be spoken. The message says why."""


def load_recording(path: Path) -> tuple[Int16, int]:
    """WAV, FLAC or OGG to int16 [n], mono, and its rate. Raises RecordingError."""
    try:
        pcm, rate_hz = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise RecordingError(f"{path} is not a recording that can be read: {error}") from None
    if not len(pcm):
        raise RecordingError(f"{path} has no samples.")
    return _to_int16(np.nan_to_num(pcm.mean(axis=1))), int(rate_hz)


@dataclass(slots=True)
class Exchange:
    """One recording spoken, and what came back. Filled while it happens."""

    number: int
    """From 1."""
    pcm: Int16
    """In the call's rate."""
    voiced_samples: int | None
    """Of `pcm`, up to and with the last voiced one; None for a recording without speech."""
    started_ns: int | None = None
    """When its first sample was spoken; None while it waits for its turn."""
    last_voiced_ns: int | None = None
    caller_text: str = ""
    """As the server understood it."""
    agent_text: str = ""
    replies: list[str] = field(default_factory=list)
    """Response ids, in order."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """The server's accounts of its turns: more than one where it took a pause for the end."""
    errors: list[str] = field(default_factory=list)
    e2e_ear_ms: float | None = None
    """None where nothing was heard after the last voiced sample."""
    cut_in: bool = False
    interrupted: bool = False
    reply_s: float = 0.0
    """Of speech that came out of the loudspeaker."""

    @property
    def answered(self) -> bool:
        return self.e2e_ear_ms is not None

    def turn_json(self) -> dict[str, Any]:
        """The server's last account, with what only the ear knows put in."""
        report = self.reports[-1] if self.reports else {}
        return {
            "turn": report.get("turn", self.number),
            "caller_text": self.caller_text,
            "agent_text": self.agent_text,
            "e2e_ear_ms": self.e2e_ear_ms,
            "e2e_server_ms": report.get("e2e_server_ms"),
            "cut_in": self.cut_in,
            "interrupted": self.interrupted,
            "stages": report.get("stages", {}),
            "reply_s": self.reply_s,
        }


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
    ) -> None:
        """`on_event` sees every event as it comes. `record` keeps what was heard."""
        self.exchanges: list[Exchange] = []
        self.loudspeaker = Loudspeaker(record=record)
        self.closed: ev.Closed | None = None
        """How the call ended, once it has."""
        self._call = call
        self._clock = SystemClock() if clock is None else clock
        self._sleep = sleep
        self._on_event = on_event
        self._rate_hz = call.input_rate_hz
        self._frame = self._rate_hz * FRAME_MS // 1000
        self._waiting: deque[Exchange] = deque()
        self._speaking: tuple[Exchange, int] | None = None
        """The recording in the microphone, and how many of its samples were sent."""
        self._current: Exchange | None = None
        """The one that was begun last: what comes back belongs to it."""
        self._open_replies: dict[str, Exchange | None] = {}
        self._unanswered = False
        """The server has heard speech, and no reply has begun since."""
        self._restless_ns = 0
        """When there was last something to say, to hear or to wait for."""
        self._rested = asyncio.Event()
        self._gives_up_ns = 0
        self._stopping = False
        self._reported: Position | None = None

    def say(self, pcm: Int16, rate_hz: int) -> Exchange:
        """Speak int16 [n] with the next frame, or when all before it is said."""
        sound = pcm.astype(np.float32) / np.float32(32768)
        wire = _to_int16(_resample(sound, rate_hz, self._rate_hz))
        last = last_voiced_sample(_resample(sound, rate_hz, VOICED_RATE_HZ))
        voiced = None if last is None else (last + 1) * self._rate_hz // VOICED_RATE_HZ
        exchange = Exchange(len(self.exchanges) + 1, wire, voiced)
        self.exchanges.append(exchange)
        self._waiting.append(exchange)
        return exchange

    async def ask(self, pcm: Int16, rate_hz: int, *, patience_s: float = 20.0) -> Exchange:
        """Speak, and wait until the answer has been heard or `patience_s` have passed since the
        recording's end. Raises CallEndedError where the call ends first."""
        exchange = self.say(pcm, rate_hz)
        await self.wait_quiet(len(pcm) / rate_hz + patience_s)
        return exchange

    async def wait_quiet(self, patience_s: float) -> bool:
        """Until all is said, answered and played, and has been for a moment. False where that took
        longer than `patience_s`. One task at a time may wait. Raises CallEndedError."""
        self._restless_ns = self._clock.now_ns()
        self._gives_up_ns = self._restless_ns + round(patience_s * NS_PER_S)
        self._rested.clear()
        await self._rested.wait()
        if self.closed is not None:
            raise CallEndedError(f"The call has ended: {self.closed.code} {self.closed.reason}.")
        return not self._busy(self._clock.now_ns())

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
            self._rested.set()

    # --- the microphone ---

    async def _speak(self) -> None:
        start_ns = self._clock.now_ns()
        frame_number = 0
        while not self._stopping and self.closed is None:
            frame_ns = start_ns + frame_number * FRAME_MS * NS_PER_MS
            frame_number += 1
            due_ns = frame_ns + FRAME_MS * NS_PER_MS
            await self._sleep(max(0, due_ns - self._clock.now_ns()) / NS_PER_S)
            await self._call.send_audio(self._next_frame(frame_ns), self._rate_hz)
            await self._tick(self._clock.now_ns())

    def _next_frame(self, frame_ns: int) -> Int16:
        """The 20 ms that begin at `frame_ns`: speech as long as there is some, else silence."""
        if self._speaking is None and self._waiting:
            self._speaking = self._begin(self._waiting.popleft(), frame_ns), 0
        if self._speaking is None:
            return np.zeros(self._frame, np.int16)
        exchange, sent = self._speaking
        frame = exchange.pcm[sent : sent + self._frame]
        sent += len(frame)
        self._speaking = (exchange, sent) if sent < len(exchange.pcm) else None
        return np.pad(frame, (0, self._frame - len(frame)))

    def _begin(self, exchange: Exchange, at_ns: int) -> Exchange:
        exchange.started_ns = at_ns
        if exchange.voiced_samples is not None:
            exchange.last_voiced_ns = at_ns + exchange.voiced_samples * NS_PER_S // self._rate_hz
            self._unanswered = True
        self._current = exchange
        return exchange

    async def _tick(self, now_ns: int) -> None:
        position = self.loudspeaker.position(now_ns)
        if position is not None and self._worth_reporting(position, now_ns):
            await self._report(position)
        if self._busy(now_ns):
            self._restless_ns = now_ns
        rested = now_ns - self._restless_ns >= REST_MS * NS_PER_MS
        if rested or now_ns >= self._gives_up_ns:
            self._rested.set()

    def _busy(self, now_ns: int) -> bool:
        return bool(
            self._waiting
            or self._speaking is not None
            or self._unanswered
            or self._open_replies
            or self.loudspeaker.playing(now_ns)
        )

    def _worth_reporting(self, position: Position, now_ns: int) -> bool:
        before = self._reported
        if not self._call.extensions or position == before:
            return False
        if before is None or before.item_id != position.item_id:
            return True
        advanced_ms = position.played_ms - before.played_ms
        return advanced_ms >= REPORT_MS or not self.loudspeaker.playing(now_ns)

    async def _report(self, position: Position) -> None:
        self._reported = position
        await self._call.report_playback(position.item_id, position.played_ms)

    # --- the ears ---

    async def _listen(self) -> None:
        async for event in self._call.events():
            if self._on_event is not None:
                self._on_event(event)
            match event:
                case ev.Closed():
                    self.closed = event
                case ev.SpeechStarted():
                    self._unanswered = True
                    await self._fall_silent(event.at_ns)
                case ev.ReplyAudio():
                    self.loudspeaker.push(
                        event.response_id, event.item_id, event.pcm, event.rate_hz, event.at_ns
                    )
                    self._account(self._open_replies.get(event.response_id))
                case ev.ReplyDone():
                    await self._reply_done(event)
                case _:
                    self._take_note(event)

    def _take_note(self, event: ev.ClientEvent) -> None:
        """What belongs to the exchange that was begun last."""
        exchange = self._current
        if isinstance(event, ev.ReplyStarted):
            self._unanswered = False
            self._open_replies[event.response_id] = exchange
            if exchange is not None:
                exchange.replies.append(event.response_id)
        elif exchange is None:
            return
        elif isinstance(event, ev.Transcript):
            exchange.caller_text = f"{exchange.caller_text} {event.text}".strip()
        elif isinstance(event, ev.TurnReport):
            exchange.reports.append(event.turn)
        elif isinstance(event, ev.ServerError):
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
        self._account(exchange)

    async def _fall_silent(self, at_ns: int) -> None:
        """Stop playing and tell the server how much was heard."""
        position = self.loudspeaker.flush(at_ns)
        if position is None:
            return
        for exchange in self.exchanges:
            self._account(exchange)
        if self._call.extensions:
            await self._report(position)
        else:
            await self._call.truncate(position.item_id, position.played_ms)

    def _account(self, exchange: Exchange | None) -> None:
        """The times at the ear, from what has been or will be played."""
        if exchange is None or exchange.last_voiced_ns is None:
            return
        speaker, spoken_ns = self.loudspeaker, exchange.last_voiced_ns
        onsets = [speaker.onset_ns(reply) for reply in exchange.replies]
        known = [onset for onset in onsets if onset is not None]
        exchange.cut_in = any(onset < spoken_ns for onset in known)
        after = [onset - spoken_ns for onset in known if onset >= spoken_ns]
        exchange.e2e_ear_ms = min(after) / NS_PER_MS if after else None
        exchange.reply_s = sum(speaker.played_s(reply) for reply in exchange.replies)


def _resample(sound: Float32, rate_hz: int, wanted_hz: int) -> Float32:
    """The whole recording at once, so that nothing is held back while it is spoken. As float32:
    soxr's int16 output is dithered, and silence must stay silent."""
    if rate_hz == wanted_hz:
        return sound
    resampled: Float32 = soxr.resample(sound, rate_hz, wanted_hz, quality="HQ")
    return resampled


def _to_int16(sound: Float32) -> Int16:
    return np.clip(np.rint(sound * 32768), -32768, 32767).astype(np.int16)
