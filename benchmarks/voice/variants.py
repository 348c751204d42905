"""Variants under comparison: the service, and the service without one of its parts.

The naive order is what pipelines do that wait for each stage: half a second of silence ends the
turn, then the words are recognized, then a sentence is generated, then it is spoken. Each part that
is left out here is one thing that the service does instead, so its gain can be stated alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

NAIVE_SILENCE_MS: Final = 500
"""OpenAI's own default, and that of most frameworks."""

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "guess": ("--set", "agent.guess=false"),
    "preview": ("--set", "agent.preview=false"),
    "first-clause": ("--set", "agent.first_clause=false"),
    "early-words": ("--set", f"asr.pause_ms={NAIVE_SILENCE_MS}", "--set", "asr.early_ms=0"),
    "early-pass": ("--set", "asr.early_ms=0"),
    "end-of-turn": (),
    "enforcement": ("--set", "latency_budget.enforce=false"),
}
"""What can be left out, and how a server does without it: the reply that is prepared in the pause;
the words that the model reads while they are said; the short clause with which replies begin, and
which is spoken by itself (whole sentences in its place); the words that are recognized at the first
pause; those that are recognized before it is one; the end of turn that is told by words and sound
(a fixed silence in its place); what is done where an answer is about to be late."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to answer."""

    name: str
    without: tuple[str, ...] = ()
    """Of `PARTS`."""

    @property
    def serve_args(self) -> list[str]:
        """For a server that answers like this."""
        return [argument for part in self.without for argument in PARTS[part]]

    @property
    def turn_detection(self) -> dict[str, Any] | None:
        """What a caller asks this server for; None: its default."""
        if "end-of-turn" not in self.without:
            return None
        return {"type": "server_vad", "silence_duration_ms": NAIVE_SILENCE_MS}


WHOLE: Final = Way("whole")


def ways(*, naive: bool, without: Sequence[str]) -> list[Way]:
    """The whole service first, then each part left out alone, then all of them."""
    found = [WHOLE, *(Way(f"without {part}", (part,)) for part in dict.fromkeys(without))]
    return [*found, Way("naive", tuple(PARTS))] if naive else found
