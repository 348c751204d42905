"""Inputs of the turn-taking machine: what happened, as facts.

`utterance` counts stretches of the caller's speech, `turn` counts replies (and with them turns),
`at_sample` counts 16 kHz microphone samples since the session began. Every event is a flat record
of JSON scalars, because a session's trace is a list of them and replaying it must give the same
commands.
"""

from dataclasses import dataclass, field

from asr.speech_detection.endpointing import SilenceGrew as SilenceGrew
from asr.speech_detection.endpointing import SpeechPaused as SpeechPaused
from asr.speech_detection.endpointing import SpeechResumed as SpeechResumed
from asr.speech_detection.endpointing import SpeechStarted as SpeechStarted
from latency_budget.account.turn import TurnId

from .end_of_turn import IN_OLDER_TRACES, TurnRules


@dataclass(frozen=True, slots=True)
class AudioStalled:
    """No audio arrives any more in the middle of an utterance (muted, or a network gap)."""

    utterance: int


@dataclass(frozen=True, slots=True)
class BufferCommitted:
    """The client said that the caller is done (push-to-talk)."""

    utterance: int


@dataclass(frozen=True, slots=True)
class BufferCleared:
    """The client threw the audio away."""

    utterance: int


@dataclass(frozen=True, slots=True)
class TranscriptReady:
    """The final pass over an utterance is done. Empty text: nothing was said."""

    utterance: int
    revision: int
    """Which pass: 1 for the first pause of the utterance, 2 for the second, ..."""
    text: str


@dataclass(frozen=True, slots=True)
class PauseJudged:
    """The turn model has heard how the utterance sounds up to a pause."""

    utterance: int
    revision: int
    """Revision, as in `TranscriptReady`."""
    log_odds: float
    """Log-odds that the turn is over; 0 is even."""


@dataclass(frozen=True, slots=True)
class MessageEndScored:
    """The language model has read the caller's words so far, and knows how likely they end
    there."""

    utterance: int
    text: str
    """The words; after a re-opened turn with those before them."""
    log_prob: float
    """Natural logarithm of the probability that the end of the message or a sentence-final mark
    follows the last word."""


@dataclass(frozen=True, slots=True)
class TranscriptFailed:
    """The recognizer raised or hung."""

    utterance: int
    revision: int


@dataclass(frozen=True, slots=True)
class ReplyRequested:
    """The client asked for a reply."""

    caller_has_spoken: bool = field(default=False, metadata={IN_OLDER_TRACES: False})
    """The conversation has a message of the caller's, such as a typed one."""


@dataclass(frozen=True, slots=True)
class FollowUpRequested:
    """The client asked for the reply to what its tool gave, which the present reply has called:
    that one may end first."""


@dataclass(frozen=True, slots=True)
class ReplyCancelled:
    """The client asked to stop the reply in progress."""


@dataclass(frozen=True, slots=True)
class OpenerAudible:
    """An early opener is in front of the reply, and ready."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReplyAudible:
    """The first sound (or text) of the reply is ready. Behind an early opener: that of the answer,
    when it may be heard and the opener is about to end."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReplyContinued:
    """More of the reply was handed to the transport, or its tools run. Told every few seconds."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReplyCalledClient:
    """The reply has called a function of the client, which asks for the next one with the
    result."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReplySent:
    """The last of the reply has been handed to the transport."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReplyPlayed:
    """The last sample should have been heard by now."""

    turn: TurnId
    text: str = field(default="", metadata={IN_OLDER_TRACES: ""})
    """The newest words that were heard of it, at most `MAX_QUESTION_CHARS`; empty: not known."""


@dataclass(frozen=True, slots=True)
class ReplyFailed:
    """The language model or the voice raised or hung."""

    turn: TurnId


@dataclass(frozen=True, slots=True)
class ReplyStands:
    """Progress of the reply that the caller speaks over: the answer to HoldReply and DuckReply."""

    turn: TurnId
    heard: str
    """The words that were heard."""
    left: str
    """Words of the reply beyond them so far."""


@dataclass(frozen=True, slots=True)
class WordsHeard:
    """Words recognized so far of an utterance that goes on, while the machine checks an overlap.
    Empty text: no word."""

    utterance: int
    text: str


@dataclass(frozen=True, slots=True)
class BackgroundChanged:
    """A tool in the background of the call has begun or ended."""

    num_running: int
    """Tools that run in the background now."""


@dataclass(frozen=True, slots=True)
class ClientLost:
    """The client's connection broke, and the call waits for it: no audio goes either way."""

    unheard: bool
    """The present reply had not been heard at all, not a word of it, and has called no function of
    the client."""


@dataclass(frozen=True, slots=True)
class ClientBack:
    """It has another connection."""


@dataclass(frozen=True, slots=True)
class CallTakenOver:
    """First event of a call that began at another server, and whose client is on its way here."""

    answer_due: bool
    """The caller waits for an answer."""
    caller_has_spoken: bool = field(default=False, metadata={IN_OLDER_TRACES: False})
    """The conversation has a message of the caller's."""


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The client changed its turn detection."""

    rules: TurnRules


Event = (
    SpeechStarted
    | SpeechPaused
    | SilenceGrew
    | SpeechResumed
    | AudioStalled
    | BufferCommitted
    | BufferCleared
    | TranscriptReady
    | PauseJudged
    | MessageEndScored
    | TranscriptFailed
    | ReplyRequested
    | FollowUpRequested
    | ReplyCancelled
    | OpenerAudible
    | ReplyAudible
    | ReplyContinued
    | ReplyCalledClient
    | ReplySent
    | ReplyPlayed
    | ReplyFailed
    | ReplyStands
    | WordsHeard
    | BackgroundChanged
    | ClientLost
    | ClientBack
    | CallTakenOver
    | RulesChanged
)
