"""The two automata of turn-taking, as tables, and the diagram drawn from them.

`python -m agent.turn_taking.tables` prints the diagram (Mermaid), as it stands in README.md.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from . import events as ev


class Caller(StrEnum):
    QUIET = "quiet"
    SPEAKING = "speaking"
    PAUSING = "pausing"


class Agent(StrEnum):
    IDLE = "idle"
    PREPARING = "preparing"
    OPENING = "opening"
    SPEAKING = "speaking"
    TRAILING = "trailing"
    HELD = "held"


class Signal(StrEnum):
    """Transition that the coupling causes in an automaton, beside the events from outside."""

    CLOSED = "utterance closed"
    BEGUN = "reply begun"
    CUT = "reply cut"
    HELD = "reply held"
    RESUMED = "reply resumed"


Cause = type | Signal

CALLER: Final[dict[tuple[Caller, Cause], Caller]] = {
    (Caller.QUIET, ev.SpeechStarted): Caller.SPEAKING,
    (Caller.SPEAKING, ev.SpeechPaused): Caller.PAUSING,
    (Caller.SPEAKING, ev.AudioStalled): Caller.PAUSING,
    (Caller.SPEAKING, Signal.CLOSED): Caller.QUIET,
    (Caller.PAUSING, ev.SilenceGrew): Caller.PAUSING,
    (
        Caller.PAUSING,
        ev.SpeechPaused,
    ): Caller.PAUSING,  # stalled audio came back and paused
    (Caller.PAUSING, ev.AudioStalled): Caller.PAUSING,
    (Caller.PAUSING, ev.SpeechResumed): Caller.SPEAKING,
    (Caller.PAUSING, Signal.CLOSED): Caller.QUIET,
}

AGENT: Final[dict[tuple[Agent, Cause], Agent]] = {
    (Agent.IDLE, Signal.BEGUN): Agent.PREPARING,
    (Agent.TRAILING, Signal.BEGUN): Agent.PREPARING,
    (Agent.PREPARING, ev.ReplyAudible): Agent.SPEAKING,
    (Agent.PREPARING, ev.ReplyFailed): Agent.SPEAKING,  # the apology
    (Agent.PREPARING, ev.ReplySent): Agent.TRAILING,  # a reply without a word
    (Agent.PREPARING, ev.OpenerAudible): Agent.OPENING,
    (Agent.OPENING, ev.ReplyAudible): Agent.SPEAKING,
    (Agent.OPENING, ev.ReplyFailed): Agent.SPEAKING,
    (Agent.OPENING, ev.ReplySent): Agent.TRAILING,  # nothing behind the opener
    (Agent.SPEAKING, ev.ReplyFailed): Agent.SPEAKING,
    (Agent.SPEAKING, ev.ReplySent): Agent.TRAILING,
    (Agent.TRAILING, ev.ReplyPlayed): Agent.IDLE,
    (Agent.PREPARING, Signal.CUT): Agent.IDLE,
    (Agent.OPENING, Signal.CUT): Agent.IDLE,
    (Agent.SPEAKING, Signal.CUT): Agent.IDLE,
    (Agent.TRAILING, Signal.CUT): Agent.IDLE,
    (Agent.SPEAKING, Signal.HELD): Agent.HELD,
    (Agent.TRAILING, Signal.HELD): Agent.HELD,
    (Agent.HELD, Signal.RESUMED): Agent.SPEAKING,
    (Agent.HELD, Signal.CUT): Agent.IDLE,
}


class IllegalEvent(RuntimeError):
    """An event that can't happen in this state: a bug of its sender."""


State = TypeVar("State", Caller, Agent)


def next_state(table: Mapping[tuple[State, Cause], State], state: State, cause: Cause) -> State:
    """Raises IllegalEvent, naming state and cause, for a pair that is not in the table."""
    try:
        return table[state, cause]
    except KeyError:
        who = type(state).__name__.lower()
        raise IllegalEvent(f"{cause_name(cause)} while the {who} is {state.value}") from None


def cause_name(cause: Cause) -> str:
    return cause.value if isinstance(cause, Signal) else cause.__name__


def diagram() -> str:
    """Both automata as one Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for title, edges in (
        ("caller", [(a, c, b) for (a, c), b in CALLER.items()]),
        ("agent", [(a, c, b) for (a, c), b in AGENT.items()]),
    ):
        lines.append(f"  state {title} {{")
        lines += [
            f"    {title}_{a.value} --> {title}_{b.value}: {cause_name(cause)}"
            for a, cause, b in edges
        ]
        lines.append("  }")
    return "\n".join(lines)


if __name__ == "__main__":
    print(diagram())
