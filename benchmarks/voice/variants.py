"""Variants under comparison: the service, and the service without one of its parts.

The naive variant is a pipeline that waits for each stage: half a second of silence ends the turn,
then the words are recognized, then a sentence is generated, then it is spoken. Each part that can
be left out is one thing that the service does instead, so that its gain is measured alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

NAIVE_SILENCE_MS: Final = 500
"""Silence in ms that ends a turn: the default of OpenAI and of most frameworks."""

PARTS: Final[dict[str, tuple[str, ...]]] = {
    "guess": ("--set", "agent.guess=false"),
    "preview": ("--set", "agent.preview=false"),
    "first-clause": ("--set", "agent.first_clause=false"),
    "early-words": ("--set", f"asr.pause_ms={NAIVE_SILENCE_MS}", "--set", "asr.early_ms=0"),
    "early-pass": ("--set", "asr.early_ms=0"),
    "end-of-turn": (),
    "enforcement": ("--set", "latency_budget.enforce=false"),
}
"""Parts that can be left out, with the server's arguments that do so: preemptive generation in the
pause; prefill of the words while they are said; the opening clause, which is spoken by itself
(whole sentences in its place); recognition at the first pause; recognition before it is one; the
end of turn by words and sound (a fixed silence in its place); actions against late answers."""


@dataclass(frozen=True, slots=True)
class ServiceVariant:
    """One variant of the service."""

    name: str
    without: tuple[str, ...] = ()
    """Names of the parts left out, keys of `PARTS`."""

    @property
    def serve_args(self) -> list[str]:
        """Command-line arguments of a server of this variant."""
        return [argument for part in self.without for argument in PARTS[part]]

    @property
    def turn_detection(self) -> dict[str, Any] | None:
        """`turn_detection` that a client requests of this server; None: the default."""
        if "end-of-turn" not in self.without:
            return None
        return {"type": "server_vad", "silence_duration_ms": NAIVE_SILENCE_MS}


WHOLE: Final = ServiceVariant("whole")


def variants(*, naive: bool, without: Sequence[str]) -> list[ServiceVariant]:
    """Variants to compare: the whole service, then each part left out alone, then all of them."""
    found = [
        WHOLE,
        *(ServiceVariant(f"without {part}", (part,)) for part in dict.fromkeys(without)),
    ]
    return [*found, ServiceVariant("naive", tuple(PARTS))] if naive else found
