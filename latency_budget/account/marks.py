"""Marks: the named instants of a turn.

A mark is made where the event happens, with the clock's reading at that moment, and reaches the
turn's ledger later through the session's loop. Marks of one turn may therefore arrive slightly out
of order; their times, not their arrival, say what came first.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .actions import ActionTaken
from .turn import TurnId

AUDIBLE: Final = 327
"""Threshold of audible samples (int16), 1 % of full scale. Latencies end at the first sample above
it: it is part of their definition."""


class MarkName(StrEnum):
    """Name of a mark. The names are used in traces and events."""

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
    """The turn was decided over, or certain enough to be over for an early opener."""
    GREETING = "greeting"
    """The agent speaks a fixed greeting: such a turn has no origin, and no model takes part."""
    REPLY_REQUESTED = "reply_requested"
    """The language model was asked. In a typed turn also the arrival of the message: its origin."""
    LLM_FIRST_TOKEN = "llm_first_token"
    FIRST_PIECE = "first_piece"
    """The chunker gave out the first piece worth speaking."""
    TTS_START = "tts_start"
    TTS_FIRST_CHUNK = "tts_first_chunk"
    """The first synthesized samples, possibly silent. For information: no stage ends here."""
    FIRST_AUDIBLE_READY = "first_audible_ready"
    """The first audible sample was synthesized and could have been released."""
    PACE_START = "pace_start"
    """The reply is ready and is held back on purpose from here on, because the settings forbid an
    earlier answer (`pace_ms`)."""
    PACE_END = "pace_end"
    OPENER = "opener"
    """A prepared phrase is played in front of the reply: it was late, or its turn is not certain
    enough to be over for an answer."""
    EARLY_OPENER = "early_opener"
    """That phrase is played because the turn is not certain enough to be over for an answer. Such a
    turn is not answered before `answer_audible`."""
    RELEASED = "released"
    """The first audible sample was handed to the transport."""
    ANSWER_AUDIBLE = "answer_audible"
    """The first audible sample of the answer behind an early opener is played, by what was sent
    when."""
    HEARD = "heard"
    """The client reported that it played that sample. Each report that makes it earlier is
    marked."""
    HEARD_DOUBTED = "heard_doubted"
    """The client's reports can't be true: they are of samples that were not sent, or of a time
    before the release, or go back."""
    REPLY_DONE = "reply_done"
    """The last sample of the reply was handed to the transport."""
    INTERRUPTED = "interrupted"
    """The reply was cut, and not because its client was lost."""
    REOPENED = "reopened"
    """The caller went on with the previous turn, whose reply was cancelled: this turn continues
    it."""
    CUT_IN = "cut_in"
    """The caller had not finished: speech of the same turn began here, within two seconds of the
    first audible sample. Known when its words are."""
    WITHDRAWN = "withdrawn"
    """The caller went on before anything was audible, or nothing but an early opener, and the reply
    was cancelled. The time is that of the caller's first voiced sample."""
    TOOL_START = "tool_start"
    TOOL_DONE = "tool_done"
    DISCARDED = "discarded"
    """Speculative work of this turn was thrown away: the caller went on speaking."""
    LLM_WASTED = "llm_wasted"
    """Tokens that the language model computed for a discarded speculative reply: counts, no
    time."""
    LLM_CONDENSED = "llm_condensed"
    """The oldest turns of the call were condensed before this turn, while nobody waited: tokens of
    the context before and after, no time."""
    ACTED = "acted"
    """An action was taken against a late turn, or its saving is known now."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One instant of one turn."""

    turn: TurnId
    name: MarkName
    at_ns: int
    """Monotonic. All marks of a session count from the same origin."""
    prompt_tokens: int = 0
    """Prefilled tokens, with `llm_wasted`; those of the context before, with `llm_condensed`."""
    output_tokens: int = 0
    """Generated tokens, with `llm_wasted`; those of the context after, with `llm_condensed`."""
    taken: ActionTaken | None = None
    """The action, with `acted`."""
