"""The named instants of a turn.

A mark is made where the thing happens, with the clock's reading there and then, and reaches the
turn's ledger later through the session's loop. Marks of one turn may therefore arrive slightly out
of order; their times, not their arrival, say what came first.
"""

from dataclasses import dataclass
from enum import StrEnum

from .actions import ActionTaken
from .turn import TurnId


class MarkName(StrEnum):
    """What happened. The names stand in traces and events."""

    SPEECH_STARTED = "speech_started"
    """The detector heard the caller begin."""
    CALLER_LAST_VOICED = "caller_last_voiced"
    """The caller's last voiced frame ended: sample position mapped to the clock by the session.
    The origin of a spoken turn. May move later while the turn is open. A typed turn has none."""
    AUDIO_RECEIVED = "audio_received"
    """The server received that last voiced sample."""
    SPEECH_PAUSED = "speech_paused"
    """The voice activity detector saw the pause."""
    ASR_START = "asr_start"
    """A final pass over the utterance began (partials are not marked)."""
    ASR_FINAL = "asr_final"
    ASKED = "asked"
    """The client ended the turn itself, or asked for the reply."""
    ENDPOINT = "endpoint"
    """The turn was decided over."""
    GREETING = "greeting"
    """Given words are spoken, and nobody asked: such a turn has no origin, and no model in it."""
    REPLY_REQUESTED = "reply_requested"
    """The engine was asked. In a typed turn also the arrival of the message: its origin."""
    LLM_FIRST_TOKEN = "llm_first_token"
    FIRST_PIECE = "first_piece"
    """The first piece worth speaking was cut."""
    TTS_START = "tts_start"
    TTS_FIRST_CHUNK = "tts_first_chunk"
    """The first synthesized samples, possibly silent. For information: no stage ends here."""
    FIRST_AUDIBLE_READY = "first_audible_ready"
    """The first audible sample was synthesized and could have been released."""
    PACE_START = "pace_start"
    """The reply could be heard from here on, and is held back on purpose: answers are not to come
    sooner than the settings say."""
    PACE_END = "pace_end"
    OPENER = "opener"
    """The reply was late: words kept at hand are said in front of it."""
    RELEASED = "released"
    """The first audible sample was handed to the transport."""
    HEARD = "heard"
    """The client played that sample, by its reports. Each that makes it earlier is marked."""
    HEARD_DOUBTED = "heard_doubted"
    """Its reports can't be true: of what was not sent, before it was released, or going back."""
    REPLY_DONE = "reply_done"
    """The last sample of the reply was handed to the transport."""
    INTERRUPTED = "interrupted"
    REOPENED = "reopened"
    """The caller went on with the turn before, whose reply was taken back: this one goes on with
    it."""
    TOOL_START = "tool_start"
    TOOL_DONE = "tool_done"
    DISCARDED = "discarded"
    """Speculative work of this turn was thrown away: the caller went on speaking."""
    LLM_WASTED = "llm_wasted"
    """What the language model had computed for a guess that was thrown away: counts, no time."""
    ACTED = "acted"
    """Something was done lest the turn be late, or it is known now what that saved."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One instant of one turn."""

    turn: TurnId
    name: MarkName
    at_ns: int
    """Monotonic. All marks of a session count from the same origin."""
    prompt_tokens: int = 0
    """Of `llm_wasted`: prefilled."""
    output_tokens: int = 0
    """Of `llm_wasted`: generated."""
    taken: ActionTaken | None = None
    """Of `acted`."""
