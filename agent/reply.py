"""One reply on its way: tokens become pieces, pieces become speech, speech is paced out.

Three tasks in one group, joined by a bounded queue, so that the second piece is generated while the
first is spoken. Cancelling `run` is the barge-in: the engine stops within a step, the voice within
a chunk, and nothing more is sent.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from latency_budget.clock import Clock
from latency_budget.deadline import Deadline
from latency_budget.marks import MarkName
from latency_budget.turn import TurnId
from tts.speakable import CutterConfig, PieceCutter, SpeakablePiece

from .conversation import ItemId, Modality
from .errors import StageError
from .notices import Notice, ReplyAudio, ReplyText, Usage
from .playback import HeardWord, Outgoing, Playback, duration_ns
from .playback_claims import PlaybackClaims
from .ports import ChatPort, Speech, VoicePort
from .settings import ResponseOptions, SessionSettings

MAX_PIECES: Final = 4
"""Pieces cut but not yet spoken. The engine is faster than speech; more would only be thrown away
at a barge-in."""

AUDIBLE: Final = 327
"""1 % of full scale: the first sample above it is the first that a caller can hear."""

CONTINUED_NS: Final = 5_000_000_000
"""Between signs that the reply goes on: a twelfth of what the turn-taking machine waits for one."""

_NO_ITEM: Final = ItemId("")

APOLOGY: Final = "Sorry, something went wrong on my side. Could you say that again?"


OnSound = Callable[[npt.NDArray[np.int16], int, int], None]
"""Takes samples, their rate, and when the first of them is heard (monotonic ns)."""


@dataclass(slots=True)
class Reply:
    """What is known of a reply. The session reads it, `ReplyRun` fills it."""

    turn: TurnId
    settings: SessionSettings
    options: ResponseOptions
    playback: Playback
    deadline: Deadline
    """When its first sound is due."""
    response_id: str = ""
    """Empty until it is announced, as is its item's."""
    item_id: ItemId = _NO_ITEM
    text: str = ""
    """As generated, so far, behind the opener if there is one."""
    opener_chars: int = 0
    """Of `text`: those of the opener and the blank behind it, which the model did not write."""
    first_char: int = 0
    """Of `text`: where this response begins, in which the reply was taken up again."""
    continues: ItemId | None = None
    """The item that has what was heard before."""
    shown_chars: int = 0
    """Of `text`, handed to the client, in this response or an earlier one."""
    usage: Usage = field(default_factory=Usage)
    usage_before: Usage = field(default_factory=Usage)
    """What earlier responses of it have been charged with."""
    is_complete: bool = False
    """Nothing will be added to `text`."""
    hit_limit: bool = False
    failed: str | None = None
    """Why it failed, in words for the client."""
    generated: bool = False
    """The conversation's own model made it: its context holds the reply's tokens."""
    spoken_before_s: float = 0.0
    """Sent by earlier responses of it."""
    first_audible_sample: int | None = None
    """Of the playback: where the first sound that a caller can hear was sent."""
    claims: PlaybackClaims = field(default_factory=PlaybackClaims)
    """What the client says of its playback."""
    has_speech: bool = False
    """Something of it was synthesized."""
    ended: bool = False
    """Its end was announced."""
    is_recorded: bool = False
    """Model and log know how it ended."""
    held_at: int | None = None
    """Characters heard of a reply that is held; None: it is not."""
    claimed_chars: int | None = None
    """Characters heard, by the client's own word; None: it has not said so."""
    goes_on: bool = False
    """It was taken up again, as another response: this one is `text` and no more."""
    taken_back: bool = False
    """It never was: nothing of it counts as heard, whatever the client played."""

    def begin_with(self, opener: str, speech: Speech) -> None:
        """Put these words in front of a reply that has no speech yet."""
        self.opener_chars = len(opener) + 1
        self.text = f"{opener} {self.text}"
        self.playback.push(speech.pcm, (0, self.opener_chars), speech.words)

    def queue(self, speech: Speech) -> None:
        """For playing: the next of what was generated, which stands behind the opener."""
        offset = self.opener_chars
        span = (speech.span[0] + offset, speech.span[1] + offset)
        words = tuple(HeardWord(w.char_end + offset, w.end_sample) for w in speech.words)
        self.playback.push(speech.pcm, span, words)
        self.has_speech = True

    @property
    def modality(self) -> Modality:
        return self.options.output_modality or self.settings.output_modality

    @property
    def speaks(self) -> bool:
        return self.modality == "audio"

    @property
    def spoken_s(self) -> float:
        """Of speech that was sent."""
        return self.spoken_before_s + self.playback.sent / self.playback.rate_hz

    @property
    def max_tokens(self) -> int | None:
        return self.options.max_output_tokens or self.settings.max_output_tokens


class Pulse:
    """Tells that something goes on, but not every time."""

    def __init__(self, clock: Clock) -> None:
        self.on_beat: Callable[[], None] = lambda: None
        self._clock = clock
        self._beat_ns = 0

    def touch(self) -> None:
        """It goes on."""
        now_ns = self._clock.now_ns()
        if now_ns - self._beat_ns >= CONTINUED_NS:
            self._beat_ns = now_ns
            self.on_beat()


class ReplyRun:
    """Drives one reply. Belongs to the session's task group; one `run` per instance."""

    def __init__(
        self,
        reply: Reply,
        voice: VoicePort,
        clock: Clock,
        notify: Callable[[Notice], None],
        mark: Callable[[MarkName, int], None],
        cutting: Callable[[], CutterConfig | None] = lambda: None,
    ) -> None:
        self.mark = mark
        """Where marks go; may be changed on the way."""
        self.reply = reply
        self.voice = voice
        self._cutting = cutting
        self._clock = clock
        self._notify = notify
        self._pieces: asyncio.Queue[SpeakablePiece | None] = asyncio.Queue(MAX_PIECES)
        self._wake = asyncio.Event()
        self._released = asyncio.Event()
        self._flowing = asyncio.Event()
        """Not held."""
        self._flowing.set()
        self._tell_played_until: Callable[[int], None] = lambda at_ns: None
        self.announced = asyncio.Event()
        """Set when the client knows of the reply. Nothing of it leaves before that."""
        self.is_sent = False
        """All of it was; the client may still be playing."""
        self.is_ready = False
        """Something of it could be heard or read."""
        self._has_sounded = False
        """Something of what was generated could be heard."""
        self.on_sound: OnSound = lambda pcm, rate_hz, at_ns: None
        """Called with whatever is sent, and when the client plays it."""
        self.on_audible: Callable[[], None] = lambda: None
        """Called once, when the first of the reply could be heard or read."""
        self.on_own_sound: Callable[[], None] = lambda: None
        """Called once, when the first sound of the reply behind its opener is ready."""
        self.pulse = Pulse(clock)
        """Beats while the reply is being sent."""

    def audible(self) -> None:
        """From here on something of it could be heard or read."""
        self.is_ready = True
        self.on_audible()

    def release(self) -> None:
        """Let the reply be heard."""
        self._released.set()

    def hold(self) -> None:
        """Send nothing more, and speak nothing that is not begun."""
        self._flowing.clear()
        self._wake.set()

    def go_on(self, rest: Reply) -> None:
        """Send what is left as this reply, and whatever else is still being made."""
        self.reply = rest
        self.is_sent = False
        self._flowing.set()
        self._wake.set()

    async def conclude(self) -> None:
        """Send what is left of a reply that is complete, once nothing holds it."""
        await self._flowing.wait()
        if self.reply.speaks:
            await self._pace()
        self._show(len(self.reply.text))

    async def run(self, chat: ChatPort) -> None:
        """Generate, speak and send; then `conclude`. Raises StageError where a stage failed."""
        self._tell_played_until = partial(chat.played_until, self.reply.turn)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._generate(chat))
                if self.reply.speaks:
                    group.create_task(self._speak())
                    group.create_task(self._pace())
        except* StageError as errors:
            raise _first_leaf(errors) from None

    async def apologize(self) -> None:
        """Have the cached apology said after whatever has been said, by `conclude`. Raises nothing
        of a stage."""
        reply = self.reply
        start = len(reply.text)
        reply.text += (" " if reply.text[-1:].strip() else "") + APOLOGY
        self._released.set()
        speech = await self.voice.apology() if reply.speaks else None
        if speech is not None:
            reply.playback.push(speech.pcm, (start, len(reply.text)), speech.words)
        reply.playback.finish()

    # --- tokens to pieces ---

    async def _generate(self, chat: ChatPort) -> None:
        first = self.reply
        self.mark(MarkName.REPLY_REQUESTED, self._clock.now_ns())
        cutter = PieceCutter(self._cutting() if first.speaks else None)
        tokens = chat.generate(
            first.turn,
            deadline_ns=first.deadline.at_ns,
            max_tokens=first.max_tokens,
            on_mark=lambda name, at_ns: self.mark(name, at_ns),
        )
        async with aclosing(tokens):
            async for token in tokens:
                reply = self.reply  # another response may have taken it up
                reply.usage = token.usage
                reply.hit_limit = token.finish_reason == "length"
                reply.text += token.text
                if reply.speaks:
                    for piece in cutter.push(token.text):
                        await self._put(piece)
                else:
                    await self._show_text()
        self.reply.is_complete = True
        if first.speaks:
            for piece in cutter.flush():
                await self._put(piece)
            await self._pieces.put(None)

    async def _put(self, piece: SpeakablePiece) -> None:
        if piece.index == 0:
            self.mark(MarkName.FIRST_PIECE, self._clock.now_ns())
        await self._pieces.put(piece)

    async def _show_text(self) -> None:
        if not self.is_ready:
            self.audible()
        await self._released.wait()
        await self._flowing.wait()
        self._show(len(self.reply.text))

    # --- pieces to speech ---

    async def _speak(self) -> None:
        while (piece := await self._pieces.get()) is not None:
            if piece.index == 0:
                self.mark(MarkName.TTS_START, self._clock.now_ns())
            elif self.is_ready:  # it may never be heard: what is ready is enough
                await self._released.wait()
                await self._flowing.wait()
            async for speech in self.voice.speak(piece):
                self.reply.queue(speech)
                self._tell_played_until(self.reply.playback.lasts_until_ns(self._clock.now_ns()))
                if not self._has_sounded and _is_audible(speech):
                    self._has_sounded = True
                    if self.is_ready:
                        self.on_own_sound()
                    else:
                        self.mark(MarkName.FIRST_AUDIBLE_READY, self._clock.now_ns())
                        self.audible()
                self._wake.set()
        self.reply.playback.finish()
        if not self.is_ready:  # no sound that the machine could release
            await self.announced.wait()
            self._released.set()
        self._wake.set()

    # --- speech to the client, in real time ---

    async def _pace(self) -> None:
        await self._released.wait()
        while True:
            await self._flowing.wait()
            self._wake.clear()
            playback = self.reply.playback
            for frame in playback.due(self._clock.now_ns()):
                self._send(frame)
                # Later than was told before, where it was held back or ran dry.
                self._tell_played_until(playback.lasts_until_ns(self._clock.now_ns()))
            if playback.all_sent:
                return
            at_ns = playback.next_due_ns()
            timeout_s = None if at_ns is None else max(0.0, (at_ns - self._clock.now_ns()) / 1e9)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()

    def _send(self, frame: Outgoing) -> None:
        reply = self.reply
        if reply.ended:
            return  # cut at the very moment at which this was due: cancelling comes a step later
        if frame.text is not None:
            self._show(frame.text[1])
        self._notify(ReplyAudio(reply.response_id, frame.pcm, reply.playback.rate_hz))
        self.on_sound(frame.pcm, reply.playback.rate_hz, frame.at_ns)
        self.pulse.touch()
        if reply.first_audible_sample is None and _max_abs(frame.pcm) > AUDIBLE:
            offset = int(np.argmax((frame.pcm > AUDIBLE) | (frame.pcm < -AUDIBLE)))
            reply.first_audible_sample = frame.first_sample + offset
            released_ns = self._clock.now_ns()
            offset_ns = duration_ns(reply.first_audible_sample, reply.playback.rate_hz)
            reply.claims.released(offset_ns, released_ns)
            self.mark(MarkName.RELEASED, released_ns)

    def _show(self, end: int) -> None:
        reply = self.reply
        if end > reply.shown_chars and not reply.ended:
            self.pulse.touch()
            delta = reply.text[reply.shown_chars : end]
            reply.shown_chars = end
            self._notify(ReplyText(reply.response_id, delta))


def _first_leaf(group: ExceptionGroup[StageError]) -> StageError:
    first = group.exceptions[0]
    return _first_leaf(first) if isinstance(first, ExceptionGroup) else first


def _max_abs(pcm: npt.NDArray[np.int16]) -> int:
    return max(int(pcm.max()), -int(pcm.min())) if pcm.size else 0


def _is_audible(speech: Speech) -> bool:
    return _max_abs(speech.pcm) > AUDIBLE
