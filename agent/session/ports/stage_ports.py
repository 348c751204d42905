"""Ports of the stages: the interfaces by which a session reaches them, wherever they run.

Small async ports: the same for a stage on a thread of this process, in another process, or on
another machine. Nothing here imports a model.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

import languages
from agent.errors import ClientError
from agent.session.api.conversation import ItemId, ModelCall
from agent.session.api.server_events import Usage
from agent.session.api.settings import Truncation, TurnDetection
from agent.turn_taking import events as ev
from asr.recognition.recognizer import TranscriptionOptions
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from tts.text_chunker import SpeakablePiece

from .playback import HeardWord, Outgoing, Playback

APOLOGY: Final = languages.ENGLISH.sentences.apology


def apology_in(language: str) -> str:
    """The apology in a call's language; in English where there is none in it."""
    return (languages.profile_of(language) or languages.ENGLISH).sentences.apology


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a language model's history."""

    role: Literal["system", "user", "assistant", "tool"]
    """"tool": the result of a call."""
    text: str
    calls: tuple[ModelCall, ...] = ()
    """Calls of the assistant, after the text."""


NO_RESULT: Final = "There is no result yet."
"""Stands for the result of a call where something is told behind it."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools that a response may call."""

    definitions: tuple[str, ...]
    """One function each, as JSON: its name, description and parameters."""
    choice: str = "auto"
    """"auto", "required", the name of the one that is to be called, or "none": they are shown, and
    the reply must be text."""
    in_parallel: bool = True
    """The model may call several at once."""


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """Next piece of a generated reply."""

    text: str
    """Safe to show. Empty while the model thinks or writes a call."""
    usage: Usage
    """Tokens of the reply so far."""
    finish_reason: str | None = None
    """On the last chunk: "stop", "length", ..."""
    calls: tuple[ModelCall, ...] = ()
    """Calls that are complete with this piece. No text follows them."""


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Tokens of a conversation's context."""

    length: int
    """All that the context holds."""
    num_fixed: int
    """Instructions, tools and examples."""
    num_turns: int
    """Summary and turns."""
    num_reserved: int
    """Kept free for a reply."""


@dataclass(frozen=True, slots=True)
class CondensingGoal:
    """What a context is to be after its oldest turns were condensed."""

    max_kept_tokens: int
    """Tokens of the turns that stay as they are."""
    max_summary_tokens: int


@dataclass(frozen=True, slots=True)
class Condensed:
    """A summary that took the place of a conversation's oldest messages."""

    summary: tuple[str, ...]
    """Its sentences: all that the model knows of older messages."""
    num_left_out: int
    """Messages since the last `reset`, its own included, that the model had lost before."""
    roles: tuple[str, ...]
    """Roles of the messages that the summary replaced, in order, after those."""
    num_tokens_before: int
    """Tokens of the context."""
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SpeechResult:
    """Result of the speech input, for the machine, the client and the log."""

    utterance: int
    event: ev.Event | None = None
    partial: tuple[str, int] | None = None
    """Text so far, and how many of its characters will not change any more. Empty: a recognition
    pass found no words."""
    onset_ns: int | None = None
    """Time at which the first voiced sample was spoken, ns, with SpeechStarted."""
    paused_ns: int | None = None
    """Time at which the detector saw a pause, ns."""
    decode_ns: tuple[int, int] | None = None
    """Start and end of a final pass."""
    last_voiced_ns: tuple[int, int] | None = None
    """Times at which the last voiced sample was spoken, and was received, ns."""
    refused: ClientError | None = None
    """Error of audio that could not be accepted."""
    language: str = ""
    """Language in which the caller speaks, where it was to be found and is certain; else empty."""
    slowed_to: float | None = None
    """The caller's audio comes faster than beside others it is taken: so many times as fast as it
    was spoken."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Savings in speech input where latency is short. The default: none."""

    pauses_sooner: bool = False
    """A shorter silence counts as a pause."""
    decodes_tail: bool = False
    """The older part of a long utterance is recognized early."""
    skips_partials: bool = False
    """No partial transcripts but those of a voice that has just dropped."""
    pauses_later: bool = False
    """A longer silence counts as a pause, and nothing is recognized before it."""


FULL_EFFORT: Final = Effort()


class SpeechInputPort(Protocol):
    """Speech input of one session: VAD, endpointing and recognition. Nothing is detected unless
    `run` is running."""

    utterance: int
    """Number of the newest utterance that began."""
    received: float
    """Samples received so far, at 16 kHz."""
    resumed_ns: int
    """Time of the client's reconnection (monotonic ns): the gap before it is no silence of the
    caller."""

    @property
    def last_audio_ns(self) -> int:
        """Time at which the last audio was received or processed (monotonic ns): now, while some is
        queued."""
        ...

    async def run(self, tell: Callable[[SpeechResult], None]) -> None:
        """Listen until cancelled; `tell` is called on this loop, in order."""
        ...

    async def feed(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> None:
        """Add mono audio of the caller. Waits while the speech input is behind."""
        ...

    def transcribe(self, utterance: int, revision: int) -> None:
        """Start a final pass; it ends with TranscriptReady or TranscriptFailed."""
        ...

    def close(self, utterance: int, *, was_echo: bool = False) -> None:
        """End the utterance. Speech that continues belongs to a new one. `was_echo`: it was the
        agent's own voice."""
        ...

    def played(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None:
        """Add a frame of the agent's voice as echo reference; the caller's loudspeaker plays it
        from `at_ns` (monotonic) on. Cheap: called for every frame."""
        ...

    def set_detection(self, detection: TurnDetection | None, effort: Effort = FULL_EFFORT) -> None:
        """Follow the client's turn detection from the next frame on."""
        ...

    def set_transcription(self, options: TranscriptionOptions) -> bool:
        """Recognize in this language and with this prompt from the next pass on.

        False: the recognizer takes no prompt, so there is none. Raises ClientError for a language
        that it does not know; then nothing has changed.
        """
        ...

    async def commit(self) -> int:
        """All audio since the last commit is one utterance. Returns its number; where speech is
        detected and nobody has spoken since the last utterance ended, that one's.

        Raises ClientError where there is none, StageError where speech input is broken.
        """
        ...

    async def clear(self) -> int:
        """Forget all audio since the last commit. Returns the newest utterance's number."""
        ...

    def end_sample(self, utterance: int) -> int:
        """First sample after the speech of an utterance, as far as known."""
        ...

    def duration_s(self, utterance: int) -> float:
        """Duration of an utterance's speech. Called once, at the end."""
        ...


OnMark = Callable[[MarkName, int], None]
"""Receives a stage's mark and its time in monotonic ns. Called on the event loop."""


class ChatPort(Protocol):
    """One conversation in a language model. Token ids are the model's business."""

    async def check(self, message: ChatMessage) -> None:
        """Raise StageError, `refused`, where this message is too long for the context. The role
        "system" stands for `set_system`."""
        ...

    async def set_system(self, text: str, examples: Sequence[ChatMessage] | None = None) -> None:
        """Replace the instructions and, where given, the examples. Raises StageError, having
        changed nothing."""
        ...

    async def check_tools(self, tools: Tools) -> None:
        """Raise StageError, `refused`, where the model can't take these tools, or its calls can't
        be constrained to their schemas."""
        ...

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        """Replace the tools in the prompt, given as `Tools.definitions`."""
        ...

    async def commit(self, message: ChatMessage) -> None:
        """Append a complete message."""
        ...

    async def take_back(self) -> None:
        """Remove the last user message and the reply to it."""
        ...

    async def reset(self, messages: Sequence[ChatMessage], summary: tuple[str, ...] = ()) -> None:
        """Replace the history (not the system prompt). `summary` stands for messages before it, in
        sentences that `condense` returned."""
        ...

    async def truncate_reply(self, num_chars: int) -> None:
        """Keep the tokens that start before this character of the last reply; 0 removes it."""
        ...

    def generate(
        self,
        turn: TurnId,
        *,
        deadline_ns: int,
        max_tokens: int | None,
        on_mark: OnMark,
        tools: Tools | None = None,
    ) -> AsyncGenerator[ReplyToken, None]:
        """Generate a reply. Closing the generator stops the work within one step.

        `deadline_ns` is when the first sound is due: requests to the model are ordered by it.
        `tools`: those of `set_tools` that the reply may call.
        """
        ...

    def set_truncation(self, truncation: Truncation) -> None:
        """Rule by which the oldest messages leave the context, from the next prompt on."""
        ...

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        """Hint that the speech of this turn's reply lasts until then (monotonic ns): other requests
        may go first. Cheap: called for every frame."""
        ...

    async def preview(self, text: str) -> None:
        """Prefill the history and this beginning of the user's next message, at the lowest
        priority. The message may continue in any way. Returns when that is done."""
        ...

    @property
    def num_left_out(self) -> int:
        """Messages that the model has lost since the last `reset`, its own included, and those that
        a summary took the place of."""
        ...

    def context_use(self) -> ContextUse | None:
        """Tokens of the context; None where that is not known, or nothing is to be condensed."""
        ...

    async def condense(self, goal: CondensingGoal) -> Condensed | None:
        """Replace the oldest messages by a summary, at the lowest priority; returns when the new
        context is computed and has taken the place of the old one.

        None where there was nothing to replace. Cancelled, it has changed nothing, and the next
        call goes on from there. Raises StageError.
        """
        ...

    def use_small_model(self, *, small: bool) -> bool:
        """Choose the model of the next replies. Returns whether they are the small model's: only
        where there is one that works. The history moves with the next message or preview."""
        ...

    async def close(self) -> None: ...


OnMessageEnd = Callable[[str, float], None]
"""Receives the words of the user's newest message and the natural logarithm of the probability that
it ends there. Called on the event loop."""


@runtime_checkable
class ScoresMessageEnd(Protocol):
    """A `ChatPort` whose model can say how likely a message ends. Others do without: the end of the
    turn is then decided by sound and words alone."""

    def watch_message_end(self, tell: OnMessageEnd) -> None:
        """Call `tell` from now on, once for each preview and reply that is asked for, when the
        model has read the words: before the reply's first token. Where another model generates the
        reply, the score may come somewhat later, or not at all."""
        ...


@dataclass(frozen=True, slots=True)
class Speech:
    """Synthesized speech at the session's output rate."""

    pcm: npt.NDArray[np.int16]
    span: tuple[int, int]
    """Characters of the text that it speaks, as (first, end)."""
    words: tuple[HeardWord, ...]


class VoicePort(Protocol):
    """Speech synthesis at the session's output rate."""

    def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]: ...

    async def opener(self, text: str) -> Speech | None:
        """Cached speech of these words, their span that of the text; None where they are not
        cached. Nothing is synthesized."""
        ...

    async def apology(self, text: str = APOLOGY) -> Speech | None:
        """Cached apology, for when a stage has failed. Its span is empty."""
        ...


class ToolsPort(Protocol):
    """Tools that run on the server."""

    @property
    def definitions(self) -> tuple[str, ...]:
        """One function each, as `Tools.definitions`."""
        ...

    def has(self, name: str) -> bool:
        """True if a tool of this name is one of them."""
        ...

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        """Run a tool. Returns its result as text for the model, also where it failed or timed out.
        `item_id`: item of the reply that called. Cancelling this stops the tool."""
        ...

    def handoff_to(self, name: str) -> str | None:
        """The agent to which this tool hands the call; None for any other tool. It is not run: the
        session switches."""
        ...

    def is_background(self, name: str) -> bool:
        """True if no response waits for this tool: its result comes later."""
        ...


class RecordingPort(Protocol):
    """Recording of one call's audio. Methods return at once and raise nothing."""

    def caller(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None:
        """Add mono audio of the caller, received at `at_ns` (monotonic)."""
        ...

    def agent(self, playback: Playback, frame: Outgoing) -> None:
        """Add a frame that is sent of a reply."""
        ...

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None:
        """The client reports that this sample of the reply was played at `at_ns`."""
        ...

    def cut(self, playback: Playback, num_samples: int) -> None:
        """No more than `num_samples` of the reply were played."""
        ...


class NoRecording:
    """A `RecordingPort` that records nothing."""

    def caller(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None: ...

    def agent(self, playback: Playback, frame: Outgoing) -> None: ...

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None: ...

    def cut(self, playback: Playback, num_samples: int) -> None: ...


NO_RECORDING: Final = NoRecording()
