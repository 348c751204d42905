"""The vocabulary of turns and time that every other package shares."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

TurnId = NewType("TurnId", int)
"""Counts a session's turns from 1. Events and commands of an older turn are dropped and counted."""

SessionId = NewType("SessionId", str)


class Stage(StrEnum):
    """Where the time of a turn goes. The names stand in the store, metrics, JSON and pages."""

    CAPTURE = "capture"
    """From the last voiced sample until the server has it."""
    ENDPOINT = "endpoint"
    """Waiting to tell "finished" from "thinking"."""
    ASR = "asr"
    """The final pass over the utterance."""
    LLM_PREFILL = "llm_prefill"
    """From asking the engine until its first token."""
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
    """One stretch of work of one stage in one turn."""

    stage: Stage
    start_ns: int
    end_ns: int
    """Monotonic, not before `start_ns`."""

    def shifted(self, ns: int) -> "Span":
        """The same on a clock that is so far ahead."""
        return Span(self.stage, self.start_ns + ns, self.end_ns + ns)
