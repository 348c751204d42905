"""What the latency budget's policy decides, done in one session.

The policy knows times and names (`latency_budget/enforcement/policy.py`); here the names get their
meaning:
which setting of the ears, of the piece cutter, of the chat an action changes, and back. What it
decides before a turn is done when the caller begins to speak; what it decides within a turn is
asked for by whoever is about to act. Each action taken is a mark of its turn.
"""

from dataclasses import replace
from typing import Final

from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.settings import TurnDetection
from agent.session.context.prefill_scheduler import IdlePrefill
from agent.session.ports.stage_ports import FULL_EFFORT, ChatPort, EarsPort, Effort
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.budget import Budget
from latency_budget.account.clock import Clock
from latency_budget.account.turn import TurnId
from latency_budget.enforcement.policy import Policy
from latency_budget.enforcement.stage_latencies import Progress, progress_of
from tts.text_chunker import CutterConfig

SLOW_PASS_MS: Final = 350.0
"""A pass of the recognizer that takes as long is not begun at a short pause any more. In virtual
time, 64 commands: with passes of 250 ms p95 is 720 so and 792 without the short pauses, with 350
ms 861 and 792, with 450 ms 1093 and 821; p50 is some 60 ms later without, always."""

SHORT_WORDS: Final = 2
SHORT_CHARS: Final = 6
"""Of a first piece that has to be short: the least, so that it is heard as a beginning."""

SHORT_MAX_WORDS: Final = 3
"""Without any mark after so many words, it ends at the best gap between them. The fourth word has
begun by then: at three times the usual 16 ms a token that is 150 ms, where a sentence of seven
words takes 350. Fewer words are over before the next piece is there."""


def shortened(cutting: CutterConfig) -> CutterConfig:
    """The same with a first piece of a few words."""
    return replace(
        cutting,
        opening_min_words=min(cutting.opening_min_words, SHORT_WORDS),
        opening_min_chars=min(cutting.opening_min_chars, SHORT_CHARS),
        opening_max_words=SHORT_MAX_WORDS,
    )


class BudgetActions:
    """Belongs to one session."""

    def __init__(
        self,
        policy: Policy,
        clock: Clock,
        log: TurnRecorder,
        ears: EarsPort,
        chat: ChatPort,
        detection: TurnDetection | None,
        warming: IdlePrefill,
    ) -> None:
        """`detection`: how the client wants the end of a turn to be found."""
        self._detection = detection
        self._warming = warming
        self._policy = policy
        self._clock = clock
        self._log = log
        self._ears = ears
        self._chat = chat
        self._effort = FULL_EFFORT
        self._is_small = False
        """The next replies are the smaller model's."""

    def detects(self, detection: TurnDetection | None) -> None:
        """The client wants the end of a turn to be found in another way. Where it says so itself,
        nobody hears a caller begin, and nothing is to stay as it is now."""
        self._detection = detection
        if detection is None:
            self._effort = FULL_EFFORT
            self._use_small_model(small=False)
        self._ears.set_detection(detection, self._effort)

    def speech_began(self, *, is_overlap: bool) -> None:
        """Do what the turn that the caller begins calls for. `is_overlap`: the agent can be heard,
        and partial words tell whether to go on."""
        standing = self._policy.active()
        if is_overlap:
            standing = tuple(t for t in standing if t.action is not Action.SKIP_PARTIALS)
        actions = {taken.action for taken in standing if not taken.left_out}
        skips_partials = Action.SKIP_PARTIALS in actions
        pass_ms = self._policy.recent.middle_ms("pass_ms") or 0.0
        effort = Effort(
            pauses_sooner=Action.PAUSE_SOONER in actions,
            decodes_tail=Action.TAIL_DECODE in actions,
            skips_partials=skips_partials,
            pauses_later=skips_partials and pass_ms >= SLOW_PASS_MS,
        )
        if effort != self._effort:
            self._effort = effort
            self._ears.set_detection(self._detection, effort)
        self._use_small_model(small=Action.SMALL_MODEL in actions)
        for taken in standing:
            if taken.action is not Action.SMALL_MODEL or self._is_small:
                self._log.acted(taken, self._clock.now_ns())

    def cutting(self, turn: TurnId, plain: CutterConfig) -> CutterConfig:
        """How the reply that is being asked for is to be cut."""
        progress = self._progress(turn)
        if progress is None:
            return plain
        taken = self._policy.short_clause(progress, _own_total_ms(self._log.budget))
        if taken is None:
            return plain
        self._log.acted(taken, progress.now_ns, turn)
        return plain if taken.left_out else shortened(plain)

    def opener(self, turn: TurnId) -> ActionTaken | None:
        """Whether an opener is worth saying now, and what it is likely to save."""
        progress = self._progress(turn)
        if progress is None:
            return None
        return self._policy.opener(progress)

    def opened(self, turn: TurnId, taken: ActionTaken, saved_ms: float | None = None) -> None:
        """An opener was said; or it is known what it saved."""
        taken = replace(taken, saved_ms=saved_ms)
        self._log.acted(taken, self._clock.now_ns(), turn)

    def _use_small_model(self, *, small: bool) -> None:
        before, self._is_small = self._is_small, self._chat.use_small_model(small=small)
        if self._is_small is not before:
            self._warming.changed()  # it has the whole history to read, and now there is time

    def _progress(self, turn: TurnId) -> Progress | None:
        return progress_of(self._log.so_far(turn).at, self._clock.now_ns())


def _own_total_ms(budget: Budget) -> int:
    """Without the wait that the client asked for, which says nothing about the chain."""
    return budget.total_ms - budget.widened_ms
