"""Records of held dialogues: what each turn brought. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from .domains import Arguments

Interruption = Literal["obeyed", "ended", "ignored", "late"]
"""What became of an answer that the caller talked over: the agent stopped; it ended by itself
before it had to be stopped; it went on; or it was over before the caller began."""


@dataclass(frozen=True, slots=True)
class SpokenFigures:
    """What a turn was like as sound."""

    heard: str
    """The recognizer's transcript of the caller's line."""
    num_words: int
    """Words of the line, as they are spoken."""
    word_errors: int
    """Words of them that the transcript has wrong, not, or too many."""
    ear_ms: float | None
    """From the last voiced sample to the first audible sample; None without an answer."""
    cut_in: bool
    """The agent was audible before the line was over."""
    interruption: Interruption | None = None
    """What became of the answer before, where this line was to interrupt it."""
    stopped_ms: float | None = None
    """From the line's first voiced sample until that answer was turned down or silent."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What a turn brought."""

    caller: str
    reply: str
    calls: list[tuple[str, Arguments]]
    problems: list[str]
    calls_right: bool = True
    """The turn made the calls that it had to make, and none that it must not."""
    spoken: SpokenFigures | None = None
    """Only over voice."""


@dataclass(slots=True)
class DialogueRecord:
    """What a dialogue brought."""

    id: str
    category: str
    turns: list[TurnResult] = field(default_factory=list)
    state_problem: str = ""
    num_history_checked: int = 0
    """Number of replies whose words in the server's history were compared with the audio heard."""
    history_problems: list[str] = field(default_factory=list)
    """Replies of which the history holds other words than were heard."""
    errors: list[str] = field(default_factory=list)
    """Errors of the call: it broke, or the server sent some."""

    @property
    def is_passed(self) -> bool:
        broken = self.state_problem or self.history_problems or self.errors
        return not broken and not any(turn.problems for turn in self.turns)

    @property
    def calls_right(self) -> bool:
        return all(turn.calls_right for turn in self.turns)

    @property
    def is_misheard(self) -> bool:
        """True if the recognizer has a word of the caller wrong."""
        return any(turn.spoken is not None and turn.spoken.word_errors for turn in self.turns)
