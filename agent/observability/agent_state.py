"""Agent state of a call (listening, hearing, thinking, speaking, waiting) for pages and operators.

Nothing is decided or remembered here. Who has the floor is what the turn-taking machine says; the
stage is what the marks say of the turn that is running or of the one that may come, guesses
included. Both are looked at when one of them may have changed, and told where they have.
"""

from collections.abc import Callable
from typing import Final, Literal

from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.tables import Agent, Caller
from latency_budget.account.turn import Stage

from .turn_recorder import TurnRecorder

State = Literal["listening", "hearing", "thinking", "speaking", "waiting"]
"""listening: nobody speaks. hearing: the caller does. thinking: the caller paused, and is answered
if that was all. speaking: the agent can be heard. waiting: the client was lost, and may come back.
"""

OnState = Callable[[State, Stage | None], None]


class CallState:
    """Belongs to one session."""

    def __init__(self, machine: TurnTaking, log: TurnRecorder, tell: OnState) -> None:
        self._machine = machine
        self._log = log
        self._tell = tell
        self._last: tuple[State, Stage | None] = ("listening", None)
        log.on_change = self.look

    def look(self) -> None:
        """Tell, where it is another one."""
        state = state_of(self._machine)
        now = state, self._stage() if state == "thinking" else None
        if now != self._last:
            self._last = now
            self._tell(*now)

    def _stage(self) -> Stage | None:
        machine = self._machine
        if machine.awaits_words:
            return Stage.ASR
        decided = machine.agent is Agent.PREPARING
        return self._log.so_far(machine.turn if decided else None).at_work(decided=decided)


_OF_AGENT: Final[dict[Agent, State]] = {
    Agent.PREPARING: "thinking",
    Agent.SPEAKING: "speaking",
    Agent.TRAILING: "speaking",
}


def state_of(machine: TurnTaking) -> State:
    """Of a call whose client is there."""
    if machine.agent in _OF_AGENT:
        return _OF_AGENT[machine.agent]
    if machine.caller is Caller.SPEAKING:
        return "hearing"
    if machine.caller is Caller.PAUSING or machine.is_asked:
        return "thinking"
    return "listening"
