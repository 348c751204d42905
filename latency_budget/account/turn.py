"""Turn and session ids, stages and spans: the vocabulary that every package shares."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

TurnId = NewType("TurnId", int)
"""Counts a session's turns from 1. Events and commands of an older turn are dropped and counted."""

SessionId = NewType("SessionId", str)


class Stage(StrEnum):
    """Stage of a turn. The names are used in the store, metrics, JSON and pages."""

    CAPTURE = "capture"
    """From the last voiced sample until the server has it."""
    ENDPOINT = "endpoint"
    """Silence until the endpointer decides that the caller has finished."""
    ASR = "asr"
    """The final pass over the utterance."""
    LLM_PREFILL = "llm_prefill"
    """From the request to the language model until its first token."""
    LLM_CLAUSE = "llm_clause"
    """From the first token until there is a piece worth speaking."""
    TOOL = "tool"
    TTS = "tts"
    """From the first piece until its first audible sample."""
    PACING = "pacing"
    """Audio that was ready and waited to be released."""
    TRANSPORT = "transport"
    """From release at the server until it is heard."""


@dataclass(frozen=True, slots=True)
class Span:
    """One interval of work of one stage in one turn."""

    stage: Stage
    start_ns: int
    end_ns: int
    """Monotonic, not before `start_ns`."""

    def shifted(self, ns: int) -> "Span":
        """Copy of the span with `ns` added to its times."""
        return Span(self.stage, self.start_ns + ns, self.end_ns + ns)
