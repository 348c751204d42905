"""What the turn-taking machine remembers between two events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latency_budget.account.turn import TurnId

from .commands import Command
from .end_of_turn import TurnRules
from .end_of_turn_model import PauseHistory
from .tables import AGENT, CALLER, Agent, Caller, Cause, Signal, next_state

BEFORE_THE_FIRST = TurnId(0)


@dataclass(slots=True)
class Overlap:
    """The caller speaks while the agent can be heard, and it is not known yet what that means."""

    turn: TurnId
    onset: int
    """Sample of the utterance's first voice."""
    began_ns: int
    deadline_ns: int | None
    """When it is settled without words, if there are none by then."""
    heard: str = ""
    left: str = ""
    """Of the reply: see ReplyStands."""
    words: str | None = None
    """As last understood; None before the first pass over them."""
    has_failed: bool = False
    """The held reply can't go on: a stage of it failed meanwhile."""
    is_ducked: bool = False
    """The client plays the reply on, turned down."""


@dataclass(slots=True)
class TurnState:
    """All that the machine remembers."""

    rules: TurnRules
    caller: Caller = Caller.QUIET
    agent: Agent = Agent.IDLE
    turn: TurnId = BEFORE_THE_FIRST
    stale_events: int = 0
    utterance: int = 0
    """The newest utterance heard of."""
    announced: bool = False
    """The client was told that the caller speaks."""
    revision: int = 0
    """Of the utterance's final pass: one for each pause."""
    silence_ms: int = 0
    text: str | None = None
    """Of the present pause; None while its final pass runs."""
    sound: float | None = None
    """The turn model's log-odds that the present pause ends the turn, once it is known."""
    own_pauses: PauseHistory = field(default_factory=PauseHistory)
    """Of this caller, inside turns."""
    guess: str | None = None
    """What a reply is being prepared for, as long as the caller may go on."""
    num_guesses: int = 0
    """Of the present utterance."""
    awaited: dict[int, int] = field(default_factory=dict)
    """Utterances committed without their words, and the revision that will bring them."""
    wanted: bool = False
    """A reply is to begin as soon as it can."""
    away: bool = False
    """The client has no connection: no reply begins."""
    answers_caller: bool = False
    """What the caller said last is answered, or will be, because the turn was over."""
    audible_ns: int | None = None
    """Since when the present reply can be heard; None: it can't, or has been held meanwhile."""
    unheard_cut: bool = False
    """The present utterance cut a reply of which nothing counts as heard."""
    overlap: Overlap | None = None
    """Of the present utterance with the present reply, until it is settled."""
    apologized: bool = False
    """The present reply has ended as failed: its stages may still answer, late."""
    awaits_caller: bool = False
    """The last word was the agent's, or will be."""
    idle_since_ns: int | None = None
    """When everybody came to rest; None while somebody is busy."""
    num_prompts: int = 0
    """How often in a row the caller was asked for a word."""
    pause_deadline_ns: int | None = None
    """While SPEAKING: of the pause that is to come. While PAUSING: of its end."""
    awaited_deadline_ns: int | None = None
    reply_deadline_ns: int | None = None
    """Of the agent's next step, in every state but IDLE."""

    def move_caller(self, cause: Cause) -> None:
        self.caller = next_state(CALLER, self.caller, cause)

    def move_agent(self, cause: Cause) -> None:
        self.agent = next_state(AGENT, self.agent, cause)

    def is_current(self, utterance: int) -> bool:
        return utterance == self.utterance and self.caller is not Caller.QUIET

    def is_pause(self, utterance: int, revision: int) -> bool:
        """The present one, so named."""
        pausing = self.caller is Caller.PAUSING
        return pausing and (utterance, revision) == (self.utterance, self.revision)

    def close_utterance(self) -> None:
        self.move_caller(Signal.CLOSED)
        self.announced = False
        self.text = None
        self.pause_deadline_ns = None

    def stale(self) -> list[Command]:
        self.stale_events += 1
        return []


Handlers = Mapping[type, Callable[[TurnState, Any, int], list[Command]]]
"""What each type of event does to the state, at this time."""
