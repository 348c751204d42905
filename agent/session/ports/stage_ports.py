"""How a session reaches its stages, wherever they run.

Small async ports: the same for a stage on a thread of this process, in another process, or on
another machine. Nothing here imports a model.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from agent.errors import ClientError
from agent.session.api.conversation import ItemId, ModelCall
from agent.session.api.server_events import Usage
from agent.session.api.settings import TurnDetection
from agent.turn_taking import events as ev
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import TurnId
from tts.text_chunker import SpeakablePiece

from .playback import HeardWord, Outgoing, Playback


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message as the language model sees it."""

    role: Literal["system", "user", "assistant", "tool"]
    """"tool": what a call gave."""
    text: str
    calls: tuple[ModelCall, ...] = ()
    """The assistant's, after the text."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What a reply may call."""

    definitions: tuple[str, ...]
    """A function each, in JSON: its name, description and parameters."""
    choice: str = "auto"
    """"auto", "required", or the name of the one that is to be called."""
    in_parallel: bool = True
    """Several at once."""


@dataclass(frozen=True, slots=True)
class ReplyToken:
    """Some more of a reply."""

    text: str
    """Safe to show."""
    usage: Usage
    """Of the reply so far."""
    finish_reason: str | None = None
    """On the last chunk: "stop", "length", ..."""
    calls: tuple[ModelCall, ...] = ()
    """Those that are complete with this chunk. No text follows them."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Something heard, on its way to the machine, the client and the log."""

    utterance: int
    event: ev.Event | None = None
    partial: tuple[str, int] | None = None
    """Text so far, and how many of its characters will not change any more. Empty: there was a
    pass, and it found no words."""
    paused_ns: int | None = None
    """When the detector saw a pause."""
    decode_ns: tuple[int, int] | None = None
    """Start and end of a final pass."""
    last_voiced_ns: tuple[int, int] | None = None
    """When the last voiced sample was spoken, and when it was received."""
    refused: ClientError | None = None
    """Audio that could not be taken in."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How a call is listened to where time is short. The default: as the settings say."""

    pauses_sooner: bool = False
    """A shorter silence counts as a pause."""
    decodes_tail: bool = False
    """The older part of a long utterance is recognized early."""
    skips_partials: bool = False
    """No partial transcripts but those of a voice that has just dropped."""
    pauses_later: bool = False
    """A longer silence counts as a pause, and nothing is recognized before it."""


FULL_EFFORT: Final = Effort()


class EarsPort(Protocol):
    """The ears of one session. Nothing is heard unless `run` is running."""

    utterance: int
    """The newest one that began."""
    received: float
    """16 kHz samples so far."""
    resumed_ns: int
    """When the client was back after a gap in its audio that is no silence of the caller's."""

    @property
    def last_audio_ns(self) -> int:
        """When the last audio came in or was listened to: now, while some waits."""
        ...

    async def run(self, tell: Callable[[Heard], None]) -> None:
        """Listen until cancelled; `tell` is called on this loop, in order."""
        ...

    async def feed(self, pcm: npt.NDArray[np.int16], rate_hz: int) -> None:
        """Audio from the caller, mono. Waits while the ears are behind."""
        ...

    def transcribe(self, utterance: int, revision: int) -> None:
        """Start a final pass; its end is told as TranscriptReady or TranscriptFailed."""
        ...

    def close(self, utterance: int, *, was_echo: bool = False) -> None:
        """The utterance is over. Speech that goes on belongs to a new one. `was_echo`: it was the
        agent's own voice."""
        ...

    def played(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None:
        """The agent's voice, which comes out of the caller's loudspeaker from then on (monotonic):
        it may come back. Cheap: called for every frame."""
        ...

    def set_detection(self, detection: TurnDetection | None, effort: Effort = FULL_EFFORT) -> None:
        """Follow the client's turn detection from the next frame on."""
        ...

    async def commit(self) -> int:
        """All audio since the last commit is one utterance. Returns its number.

        Raises ClientError where there is none, StageError where the ears are broken.
        """
        ...

    async def clear(self) -> int:
        """Forget all audio since the last commit. Returns the newest utterance's number."""
        ...

    def end_sample(self, utterance: int) -> int:
        """First sample after the speech of an utterance, as far as it is known."""
        ...

    def duration_s(self, utterance: int) -> float:
        """Of its speech. Asked once, at the end."""
        ...


OnMark = Callable[[MarkName, int], None]
"""Takes a mark of the stage's own and its time in monotonic ns. Called on the event loop."""


class ChatPort(Protocol):
    """One conversation in a language model. Token ids are the model's business."""

    async def check(self, message: ChatMessage) -> None:
        """Raise StageError, `refused`, where this message is too long to be ever taken. The role
        "system" asks for `set_system`."""
        ...

    async def set_system(self, text: str) -> None: ...

    async def check_tools(self, tools: Tools) -> None:
        """Raise StageError, `refused`, where the model can't be told of these, or its calls can't
        be made to fit what they take."""
        ...

    async def set_tools(self, definitions: tuple[str, ...]) -> None:
        """Tell the model of these tools and no others, as `Tools` has them."""
        ...

    async def commit(self, message: ChatMessage) -> None:
        """The next message is complete."""
        ...

    async def take_back(self) -> None:
        """The last user message, and whatever was answered to it, never were."""
        ...

    async def reset(self, messages: Sequence[ChatMessage]) -> None:
        """Replace the history (not the system prompt)."""
        ...

    async def truncate_reply(self, num_chars: int) -> None:
        """Keep what starts before this character of the last reply; 0 forgets the reply."""
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
        """Answer. Closing the generator stops the work within one step.

        `deadline_ns` is when the first sound is due: it orders what waits for the model. `tools`:
        what the reply may call, of those that the model was told of.
        """
        ...

    def played_until(self, turn: TurnId, at_ns: int) -> None:
        """The speech made of this turn's reply so far will be heard until then (monotonic): others
        may go first. A hint, and cheap: called for every frame."""
        ...

    async def preview(self, text: str) -> None:
        """Prefill, when nothing better is to be done, what is known so far and this beginning of
        the user's next message. It may go on in any way. Returns when that is done."""
        ...

    def use_small_model(self, *, small: bool) -> bool:
        """Whose the next replies are to be; whether they are the smaller model's: where there is
        one, and it works. The history moves with the next message or preview."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Speech:
    """Some speech at the session's output rate."""

    pcm: npt.NDArray[np.int16]
    span: tuple[int, int]
    """Characters of the reply that it speaks."""
    words: tuple[HeardWord, ...]


class VoicePort(Protocol):
    """A voice at the session's output rate."""

    def speak(self, piece: SpeakablePiece) -> AsyncIterator[Speech]: ...

    async def opener(self, text: str) -> Speech | None:
        """Words kept from the start for late replies, their span that of the text; None where these
        are not kept. Nothing is synthesized."""
        ...

    async def apology(self) -> Speech | None:
        """Sound kept from the start, for when nothing else works. Its span is empty."""
        ...


class ToolsPort(Protocol):
    """Tools that run on the server."""

    @property
    def definitions(self) -> tuple[str, ...]:
        """A function each, as `Tools` has them."""
        ...

    def has(self, name: str) -> bool:
        """Whether a tool of this name is one of them."""
        ...

    async def run(self, call: ModelCall, item_id: ItemId) -> str:
        """What the call gave, as text for the model; also that it failed, or took too long.
        `item_id`: of the reply that called. Cancelling this stops the tool."""
        ...


class RecordingPort(Protocol):
    """Takes down what is said in a call. Methods return at once and raise nothing."""

    def caller(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None:
        """The caller's sound, mono, received at this time."""
        ...

    def agent(self, playback: Playback, frame: Outgoing) -> None:
        """What is sent of a reply."""
        ...

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None:
        """By the client's word this sample of the reply was played then."""
        ...

    def cut(self, playback: Playback, num_samples: int) -> None:
        """So many samples of the reply were played, and no more will be."""
        ...


class NoRecording:
    """Of a call that is not recorded."""

    def caller(self, pcm: npt.NDArray[np.int16], rate_hz: int, at_ns: int) -> None: ...

    def agent(self, playback: Playback, frame: Outgoing) -> None: ...

    def heard(self, playback: Playback, sample: int, at_ns: int) -> None: ...

    def cut(self, playback: Playback, num_samples: int) -> None: ...


NO_RECORDING: Final = NoRecording()


APOLOGY: Final = "Sorry, something went wrong on my side. Could you say that again?"
