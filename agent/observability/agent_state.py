"""Agent state of a call (listening, hearing, thinking, speaking, waiting) for pages and operators.

Nothing is decided here. The state is derived from the turn-taking machine; the stage is derived
from the marks of the current turn, or of the turn to come, preemptive generation included. Both are
recomputed when either may have changed, and reported when they have.
"""

from collections.abc import Callable
from typing import Final, Literal

from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.turn import Stage

from .turn_recorder import TurnRecorder

State = Literal["listening", "hearing", "thinking", "speaking", "waiting"]
"""listening: neither side speaks. hearing: the caller speaks. thinking: the caller paused, and is
answered if the turn has ended. speaking: the agent is audible. waiting: the client's connection was
lost and may be resumed.
"""

OnState = Callable[[State, Stage | None], None]


class AgentStateReporter:
    """Reporter of one session's state and stage; belongs to its session."""

    def __init__(self, machine: TurnTaking, log: TurnRecorder, tell: OnState) -> None:
        self._machine = machine
        self._log = log
        self._tell = tell
        self._last: tuple[State, Stage | None] = ("listening", None)
        log.on_change = self.look

    def look(self) -> None:
        """Report the state and the stage if either has changed."""
        state = state_of(self._machine)
        now = state, self.stage() if state == "thinking" else None
        if now != self._last:
            self._last = now
            self._tell(*now)

    def stage(self) -> Stage | None:
        """The stage that the caller waits for, while the agent thinks."""
        machine = self._machine
        if machine.awaits_words:
            return Stage.ASR
        decided = machine.agent in (Agent.PREPARING, Agent.OPENING)
        return self._log.so_far(machine.turn if decided else None).at_work(decided=decided)


_OF_AGENT: Final[dict[Agent, State]] = {
    Agent.PREPARING: "thinking",
    Agent.OPENING: "speaking",
    Agent.SPEAKING: "speaking",
    Agent.TRAILING: "speaking",
}


def state_of(machine: TurnTaking) -> State:
    """State of a call whose client is connected."""
    if machine.agent in _OF_AGENT:
        return _OF_AGENT[machine.agent]
    if machine.caller is Caller.SPEAKING:
        return "hearing"
    if machine.caller is Caller.PAUSING or machine.is_asked:
        return "thinking"
    return "listening"
