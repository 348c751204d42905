"""State of the turn-taking machine between two events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from latency_budget.account.turn import TurnId

from .commands import Command
from .dialogue.agent_question import NO_QUESTION, AgentQuestion, question_of
from .end_of_turn import TurnRules
from .end_of_turn_model import PauseHistory
from .tables import AGENT, CALLER, Agent, Caller, Cause, Signal, next_state
from .thresholds import MAX_QUESTION_CHARS

BEFORE_THE_FIRST = TurnId(0)


@dataclass(slots=True)
class Overlap:
    """Speech over the agent's audio that is not settled yet: interruption or not."""

    turn: TurnId
    onset: int
    """First voiced sample of the utterance, 16 kHz."""
    began_ns: int
    """Time of the onset's event, ns."""
    deadline_ns: int | None
    """Time at which it is settled without words, ns; None: only words settle it."""
    end: int | None = None
    """First silent sample of the current pause, 16 kHz; None while the caller speaks, and where the
    audio stopped."""
    heard: str = ""
    left: str = ""
    """Response text already played, and the rest: see ReplyStands."""
    words: str | None = None
    """Newest partial transcript; None before the first pass."""
    has_failed: bool = False
    """The held response can not resume: one of its stages failed meanwhile."""
    is_ducked: bool = False
    """The client plays the response at a lower volume."""


@dataclass(slots=True)
class TurnState:
    """Whole state of the machine."""

    rules: TurnRules
    caller: Caller = Caller.QUIET
    agent: Agent = Agent.IDLE
    turn: TurnId = BEFORE_THE_FIRST
    stale_events: int = 0
    utterance: int = 0
    """Number of the newest utterance."""
    announced: bool = False
    """`speech_started` was sent for the current utterance."""
    revision: int = 0
    """Revision of the utterance's final transcript: one per pause."""
    silence_ms: int = 0
    text: str | None = None
    """Transcript up to the current pause; None while its final pass runs."""
    sound: float | None = None
    """Audio turn model's log-odds that the current pause ends the turn; None: not known yet."""
    message_end: tuple[str, float] | None = None
    """Newest words of the utterance that the language model has read, and its log-probability that
    they end a message."""
    last_brief: tuple[str, int] | None = None
    """Newest words that were taken for a backchannel by their length, and when (ns)."""
    own_pauses: PauseHistory = field(default_factory=PauseHistory)
    """This caller's pauses inside turns."""
    caller_has_spoken: bool = False
    """The caller has said or typed something in this call, perhaps at another server."""
    question: AgentQuestion = NO_QUESTION
    """What the agent asked last, as far as the caller heard it."""
    question_before: AgentQuestion = NO_QUESTION
    """What it had asked before the current response."""
    guess: str | None = None
    """Words that a preemptive response is being prepared for; None: none is."""
    num_guesses: int = 0
    """Preemptive responses started for the current utterance."""
    awaited: dict[int, int] = field(default_factory=dict)
    """Utterances committed before their transcript, with the revision that brings it."""
    wanted: bool = False
    """A response begins as soon as it may."""
    away: bool = False
    """The client is disconnected: no response begins."""
    answers_caller: bool = False
    """The caller's last words are or will be answered because the turn was over."""
    audible_ns: int | None = None
    """Time of the current response's first audio, ns; None: not audible, or held meanwhile."""
    has_called: bool = False
    """The current response has called a function of the client, which asks for the next one."""
    unheard_cut: bool = False
    """The current utterance cut a response of which nothing counts as heard, and which begins anew
    if there are no words."""
    overlap: Overlap | None = None
    """Unsettled overlap of the current utterance with the current response."""
    apologized: bool = False
    """The current response failed; late events of its stages are stale."""
    num_background: int = 0
    """Tools that run in the background: the caller waits for the agent."""
    awaits_caller: bool = False
    """The agent spoke last, or will: the caller is expected to answer."""
    idle_since_ns: int | None = None
    """Start of the silence of both parties, ns; None while one is busy."""
    num_prompts: int = 0
    """Idle prompts in a row."""
    pause_deadline_ns: int | None = None
    """Deadline of the next pause (SPEAKING) or of its end (PAUSING), ns."""
    awaited_deadline_ns: int | None = None
    reply_deadline_ns: int | None = None
    """Deadline of the agent's next step, ns; None in IDLE."""

    def move_caller(self, cause: Cause) -> None:
        self.caller = next_state(CALLER, self.caller, cause)

    def move_agent(self, cause: Cause) -> None:
        self.agent = next_state(AGENT, self.agent, cause)

    def is_current(self, utterance: int) -> bool:
        return utterance == self.utterance and self.caller is not Caller.QUIET

    def is_pause(self, utterance: int, revision: int) -> bool:
        """True if this is the current pause."""
        pausing = self.caller is Caller.PAUSING
        return pausing and (utterance, revision) == (self.utterance, self.revision)

    @property
    def message_end_log_prob(self) -> float | None:
        """Log-probability that the words before the current pause end a message; None: not known,
        or known of other words."""
        if self.message_end is None or self.text is None:
            return None
        words, log_prob = self.message_end
        return log_prob if _words(self.text) and _words(words).endswith(_words(self.text)) else None

    def agent_said(self, text: str) -> None:
        """Note what the agent asks with the newest words that were heard of its response. An
        apology, and a response without words, leave the question as it was."""
        if self.apologized or not text.strip():
            self.question = self.question_before
        elif self.rules.uses_questions:
            self.question = self._question_in(text)

    def _question_in(self, text: str) -> AgentQuestion:
        return question_of(
            text[-MAX_QUESTION_CHARS:],
            is_greeting=not self.caller_has_spoken,
            language=self.rules.language,
        )

    def close_utterance(self) -> None:
        self.move_caller(Signal.CLOSED)
        self.announced = False
        self.text = None
        self.pause_deadline_ns = None

    def stale(self) -> list[Command]:
        self.stale_events += 1
        return []


def _words(text: str) -> str:
    """Text without letter case and the punctuation at its end, which the final pass may change."""
    return text.casefold().rstrip(" .,;:?!…-—")


Handlers = Mapping[type, Callable[[TurnState, Any, int], list[Command]]]
"""Handler per event type: (state, event, now_ns) -> commands."""
