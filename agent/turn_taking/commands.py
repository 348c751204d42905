"""Outputs of the turn-taking machine: what the session is to do, in this order."""

from dataclasses import dataclass, field
from typing import Literal

from latency_budget.account.turn import TurnId

from .end_of_turn import IN_OLDER_TRACES

CutReason = Literal["turn_detected", "client_cancelled"]


@dataclass(frozen=True, slots=True)
class AnnounceSpeech:
    """Tell the client that the caller speaks: it stops its playback on that."""

    utterance: int
    at_sample: int


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Start the final pass over what the utterance holds so far."""

    utterance: int
    revision: int


@dataclass(frozen=True, slots=True)
class CommitUtterance:
    """The utterance is the caller's message. `text` is None where the transcript comes later."""

    utterance: int
    text: str | None
    by_client: bool
    """The client committed it itself: no speech_stopped is due."""


@dataclass(frozen=True, slots=True)
class CompleteTranscript:
    """The transcript of an utterance that was committed before it was known."""

    utterance: int
    text: str


@dataclass(frozen=True, slots=True)
class FailTranscript:
    """The committed utterance will never have a transcript."""

    utterance: int


@dataclass(frozen=True, slots=True)
class DropUtterance:
    """No words were in it: close it without a message."""

    utterance: int
    announced: bool
    """`speech_started` was sent to the client."""
    was_echo: bool = False
    """It was the agent's own voice."""


@dataclass(frozen=True, slots=True)
class GuessReply:
    """Prepare, unseen and unheard, the reply to these words: the caller may be done."""

    turn: TurnId
    """Which it will be, if they are."""
    text: str


@dataclass(frozen=True, slots=True)
class DropGuess:
    """Nothing comes of the reply that is being prepared: forget it without a trace."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class StartReply:
    """Begin the reply; one that was guessed, if it still answers what was said."""

    turn: TurnId
    answer_after_ms: int = field(default=0, metadata={IN_OLDER_TRACES: 0})
    """Above 0, the turn is certain enough for an opener only: speak one, and let neither the answer
    be heard nor a tool run before this time has passed."""


@dataclass(frozen=True, slots=True)
class ReleaseOpener:
    """Let the opener in front of the reply be heard, and nothing behind it."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReleaseReply:
    """Let the reply be heard."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class CutReply:
    """Stop generating and playing; the history keeps what was heard."""

    turn: TurnId
    reason: CutReason


@dataclass(frozen=True, slots=True)
class HoldReply:
    """The caller speaks over the reply: its response ends, but the rest of it is kept."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ResumeReply:
    """It was no interruption: the held reply goes on, in a response of its own, from the first word
    that was not heard."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class DuckReply:
    """The caller speaks over the reply: the client is to turn it down. It goes on."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class UnduckReply:
    """It was no interruption: the client is to turn the reply up again."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReopenTurn:
    """The caller goes on: stop the reply, which never was."""

    turn: TurnId
    utterance: int
    """Goes on with the message that the reply answered, if it has words."""


@dataclass(frozen=True, slots=True)
class Apologize:
    """End the turn as failed, with a spoken apology from cache."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class AbandonReply:
    """End the turn as failed, as it is: its apology came to nothing."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class PromptCaller:
    """The reply that is begun next says the sentence kept for silent callers."""


@dataclass(frozen=True, slots=True)
class CommitSilence:
    """The caller's silence becomes a message without words, which is answered next."""

    silence_ms: int
    """Length of the silence, ms."""


@dataclass(frozen=True, slots=True)
class HangUp:
    """End the call: the caller has left it."""


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """Tell the client why its request makes no sense now."""

    code: Literal[
        "conversation_already_has_active_response",
        "response_cancel_not_active",
        "input_audio_buffer_commit_empty",
    ]


Command = (
    AnnounceSpeech
    | Transcribe
    | CommitUtterance
    | CompleteTranscript
    | FailTranscript
    | DropUtterance
    | GuessReply
    | DropGuess
    | StartReply
    | ReleaseOpener
    | ReleaseReply
    | CutReply
    | HoldReply
    | ResumeReply
    | DuckReply
    | UnduckReply
    | ReopenTurn
    | Apologize
    | AbandonReply
    | PromptCaller
    | CommitSilence
    | HangUp
    | RefuseRequest
)
