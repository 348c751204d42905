"""Stages without models, for sessions in tests: they act at once on every request."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from agent.errors import ClientError, StageError
from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.api.settings import AUTO_TRUNCATION, Truncation, TurnDetection
from agent.session.ports.playback import HeardWord
from agent.session.ports.stage_ports import (
    APOLOGY,
    FULL_EFFORT,
    ChatMessage,
    Condensed,
    CondensingGoal,
    ContextUse,
    Effort,
    OnMark,
    ReplyToken,
    Speech,
    SpeechResult,
    Tools,
)
from agent.turn_taking import events as ev
from asr.recognition.recognizer import AS_LOADED, TranscriptionOptions
from latency_budget.account.turn import TurnId
from tts.text_chunker import SpeakablePiece

SAMPLES_PER_CHAR = 1200
"""50 ms at 24 kHz: a word of five letters takes a quarter of a second."""


SPOKEN_SAMPLES: Final = 14_400
"""Length of an utterance, at 16 kHz: a shorter one over the agent may be a sound of listening."""


@dataclass(frozen=True)
class Calling:
    """A reply that calls tools, perhaps after some words."""

    text: str
    calls: tuple[ModelCall, ...]


class FakeChat:
    """A model that gives prepared replies and notes all requests."""

    def __init__(self, replies: Sequence[str | Exception | Calling] = ()) -> None:
        self.replies = list(replies)
        self.calls: list[tuple[str, object]] = []
        self.hold: asyncio.Event | None = None
        """Set: generation waits for it before the first token."""
        self.num_left_out = 0
        self.is_small = False
        self.has_small = True
        self.warming: asyncio.Event | None = None
        """Set: a warm-up waits for it."""
        self.warmed = asyncio.Event()
        """A warm-up has begun."""
        self.generating = asyncio.Event()
        """A reply has begun."""
        self.max_chars = 1 << 30
        """Longer messages are refused when they are checked."""
        self.refused_tools: StageError | None = None
        """Raised when tools are checked."""
        self.may_call: list[Tools | None] = []
        """Tools of each reply, in order."""
        self.deadlines_ns: list[int] = []
        """Of the replies that were asked for."""
        self.refusals: list[StageError] = []
        """Raised in place of what is committed next."""
        self.played_until_ns: list[int] = []
        self.closed = False
        self.truncation = AUTO_TRUNCATION
        self.max_tokens: list[int | None] = []
        """Limits of the replies that were asked for."""
        self.use: ContextUse | None = None
        """What is in the context."""
        self.condensing: asyncio.Event | None = None
        """Set: condensing waits for it."""
        self.condensed: list[Condensed | StageError | None] = []
        """What the next attempts to condense come to."""

    async def check(self, message: ChatMessage) -> None:
        if len(message.text) > self.max_chars:
            raise StageError("llm", f"the context holds {self.max_chars}", refused=True)

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        self.calls.append(("system", text))
        if examples is not None:
            self.calls.append(("examples", tuple(examples)))

    async def check_tools(self, tools: Tools) -> None:
        self.calls.append(("check tools", tools))
        if self.refused_tools is not None:
            raise self.refused_tools

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        self.calls.append(("tools", definitions))

    async def commit(self, message: ChatMessage) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        told = message.calls if message.calls and not message.text else message.text
        self.calls.append((message.role, told))

    async def take_back(self) -> None:
        self.calls.append(("take back", None))

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        self.num_left_out = 0
        self.calls.append(("reset", tuple((each.role, each.text) for each in messages)))
        if summary:
            self.calls.append(("summary", summary))

    def set_truncation(self, truncation: Truncation) -> None:
        self.truncation = truncation

    def context_use(self) -> ContextUse | None:
        return self.use

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        self.calls.append(("condense", goal))
        if self.condensing is not None:
            try:
                await self.condensing.wait()
            except asyncio.CancelledError:
                self.calls.append(("condense cancelled", goal))
                raise
        done = self.condensed.pop(0) if self.condensed else None
        if isinstance(done, StageError):
            raise done
        return done

    async def truncate_reply(self, num_chars: int) -> None:
        self.calls.append(("truncate", num_chars))

    async def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        self.calls.append(("generate", turn))
        self.max_tokens.append(max_tokens)
        self.deadlines_ns.append(deadline_ns)
        self.may_call.append(tools)
        self.generating.set()
        if self.hold is not None:
            await self.hold.wait()
        reply = self.replies.pop(0) if self.replies else "Fine."
        if isinstance(reply, Exception):
            raise reply
        text, calls = (reply.text, reply.calls) if isinstance(reply, Calling) else (reply, ())
        words = text.split(" ")
        for index, word in enumerate(words):
            last = index == len(words) - 1
            text = word if last else word + " "
            reason, told = ("stop", calls) if last else (None, ())
            yield ReplyToken(text, Usage(10, 5, index + 1), reason, told)
            await asyncio.sleep(0)

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        self.played_until_ns.append(at_ns)

    async def preview(self, text: str) -> None:
        self.calls.append(("preview", text))
        self.warmed.set()
        if self.warming is not None:
            try:
                await self.warming.wait()
            except asyncio.CancelledError:
                self.calls.append(("preview cancelled", text))
                raise

    def use_small_model(self, *, small: bool) -> bool:
        self.is_small = small and self.has_small
        return self.is_small

    async def close(self) -> None:
        self.closed = True


class FakeVoice:
    """Speaks every character for 50 ms, as a constant tone."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault

    async def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]:
        if self.fault is not None:
            raise self.fault
        yield speech_of(piece.text, piece.span)

    async def opener(self, text: str) -> Speech | None:
        return speech_of(text, (0, len(text))) if self.fault is None else None

    async def apology(self, text: str = APOLOGY) -> Speech | None:
        return Speech(np.full(2400, 5000, np.int16), (0, 0), ())


def speech_of(text: str, span: tuple[int, int]) -> Speech:
    words = [
        HeardWord(span[0] + end, end * SAMPLES_PER_CHAR)
        for end in range(1, len(text) + 1)
        if end == len(text) or (text[end] == " " and text[end - 1] != " ")
    ]
    pcm = np.full(len(text) * SAMPLES_PER_CHAR, 5000, np.int16)
    return Speech(pcm, span, tuple(words))


class _DeafEars:
    """Speech input for audio to which no recognizer listens."""

    def __init__(self) -> None:
        self.num_played = 0

    def played(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None:
        self.num_played += len(pcm)

    def end_sample(self, utterance: int) -> int:
        return 16_000 * utterance

    def duration_s(self, utterance: int) -> float:
        return 1.0


class FakeEars(_DeafEars):
    """Hears what the test says, and transcribes to what it has laid ready."""

    def __init__(self) -> None:
        super().__init__()
        self.last_audio_ns = 0
        self.received = 60 * 16_000.0
        self.resumed_ns = 0
        self.utterance = 0
        self.words: dict[int, str] = {}
        """Transcript of each utterance. One that is missing stays outstanding."""
        self.closed: list[int] = []
        self.fed: list[int] = []
        self.detection: TurnDetection | None = None
        self.transcription = AS_LOADED
        self.takes_prompts = True
        self._tell: Callable[[SpeechResult], None] = lambda heard: None
        self.effort = FULL_EFFORT
        self.running = asyncio.Event()
        self._pauses = 0
        """The utterance that may go on."""

    async def run(self, tell: Callable[[SpeechResult], None]) -> None:
        self._tell = tell
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._tell = lambda heard: None

    async def feed(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> None:
        self.fed.append(len(pcm))

    def transcribe(self, utterance: int, revision: int) -> None:
        if utterance in self.words:
            text = self.words[utterance]
            self.hear(ev.TranscriptReady(utterance, revision, text))

    def close(self, utterance: int, *, was_echo: bool = False) -> None:
        self.closed.append(utterance)

    def set_detection(self, detection: TurnDetection | None, effort: Effort = FULL_EFFORT) -> None:
        self.detection = detection
        self.effort = effort

    def set_transcription(self, options: TranscriptionOptions) -> bool:
        if options.language not in (None, "en", "de", "pt"):
            param = "session.audio.input.transcription.language"
            raise ClientError(f"{param!r} can be en, de, pt.", code="invalid_value", param=param)
        self.transcription = options
        return self.takes_prompts or not options.prompt

    async def commit(self) -> int:
        if not self._pauses == self.utterance > 0:
            self.utterance += 1
        self._pauses = 0
        return self.utterance

    async def clear(self) -> int:
        self._pauses = 0
        return self.utterance

    # --- what tests do ---

    def hear(self, news: ev.Event | SpeechResult) -> None:
        """Tell of it, from the loop as the real ears do."""
        heard = news if isinstance(news, SpeechResult) else SpeechResult(self.utterance, news)
        asyncio.get_running_loop().call_soon(self._tell, heard)

    def say(self, text: str) -> None:
        """A whole utterance, from its first word to a silence that ends any turn."""
        self.utterance += 1
        number = self.utterance
        self.words[number] = text
        self.hear(ev.SpeechStarted(number, 1600 * number))
        self.hear(ev.SpeechPaused(number, 1600 * number + SPOKEN_SAMPLES))
        self.hear(ev.SilenceGrew(number, 5000))

    def pause(self, text: str) -> None:
        """Speech, and then a silence of which it can't be said yet whether it ends a turn. Speech
        that paused before goes on."""
        if self._pauses == self.utterance > 0:
            self.resume()
        else:
            self._pauses = self.utterance = self.utterance + 1
            self.hear(ev.SpeechStarted(self.utterance, 1600 * self.utterance))
        self.words[self.utterance] = text
        self.hear(ev.SpeechPaused(self.utterance, 1600 * self.utterance + SPOKEN_SAMPLES))

    def resume(self) -> None:
        """The pause was none."""
        self.hear(ev.SpeechResumed(self.utterance, 1600 * self.utterance + SPOKEN_SAMPLES + 1600))

    def fall_silent(self) -> None:
        """The pause was the end of the turn."""
        self.hear(ev.SilenceGrew(self._pauses, 5000))
        self._pauses = 0
