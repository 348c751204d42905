"""Actions of the latency policy, carried out in one session.

The policy knows times and names (`latency_budget/enforcement/policy.py`); here each
action becomes a setting of the speech input, of the text chunker or of the chat, and back. Actions
of a whole turn are carried out when the caller begins to speak; actions within a turn are asked for
at the moment of use. Each action taken is a mark of its turn.
"""

from dataclasses import replace
from typing import Final

from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.settings import TurnDetection
from agent.session.context.prefill_scheduler import IdlePrefill
from agent.session.ports.stage_ports import FULL_EFFORT, ChatPort, Effort, SpeechInputPort
from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.budget import Budget
from latency_budget.account.clock import Clock
from latency_budget.account.turn import TurnId
from latency_budget.account.turn_record import NS_PER_MS
from latency_budget.enforcement.policy import Policy
from latency_budget.enforcement.stage_latencies import Progress, progress_of
from tts.text_chunker import CutterConfig

SLOW_PASS_MS: Final = 350.0
"""Median pass of the recognizer (ms) from which on none begins at a short pause. In virtual
time, 64 commands: with passes of 250 ms p95 is 720 so and 792 without the short pauses, with 350
ms 861 and 792, with 450 ms 1093 and 821; p50 is some 60 ms later without, always."""

SHORT_WORDS: Final = 2
SHORT_CHARS: Final = 6
"""Least words and characters of a shortened first piece, so that it sounds like a beginning."""

SHORT_MAX_WORDS: Final = 3
"""Words after which a first piece without punctuation ends at the best gap between them. The fourth
word has begun by then: at three times the usual 16 ms a token that is 150 ms, where a sentence of
seven words takes 350. Fewer words are over before the next piece is there."""


PIECE_TO_EAR_MS: Final = 60.0
"""From the first piece to its sound at the ear, until it was measured: voice 30-40 ms, sending 12.
"""


def shortened(cutting: CutterConfig) -> CutterConfig:
    """This chunking with a first piece of a few words."""
    return replace(
        cutting,
        opening_min_words=min(cutting.opening_min_words, SHORT_WORDS),
        opening_min_chars=min(cutting.opening_min_chars, SHORT_CHARS),
        opening_max_words=SHORT_MAX_WORDS,
    )


class BudgetActions:
    """Carries out the policy's actions in one session, and records them."""

    def __init__(
        self,
        policy: Policy,
        clock: Clock,
        log: TurnRecorder,
        ears: SpeechInputPort,
        chat: ChatPort,
        detection: TurnDetection | None,
        prefill: IdlePrefill,
    ) -> None:
        """`detection`: the client's turn detection."""
        self._detection = detection
        self._prefill = prefill
        self._policy = policy
        self._clock = clock
        self._log = log
        self._ears = ears
        self._chat = chat
        self._effort = FULL_EFFORT
        self._is_small = False
        """The small model generates the next responses."""
        self._standing: tuple[TurnId, tuple[ActionTaken, ...]] | None = None
        """The newest turn when the policy was asked last, and the actions of the turn behind it."""

    def detects(self, detection: TurnDetection | None) -> None:
        """Follow a change of the client's turn detection. With push-to-talk (None) no beginning of
        speech is detected, so every action is withdrawn."""
        self._detection = detection
        if detection is None:
            self._effort = FULL_EFFORT
            self._use_small_model(small=False)
        self._ears.set_detection(detection, self._effort)

    def speech_began(self, turn: TurnId, *, is_overlap: bool) -> None:
        """Carry out the actions of the turn that the caller begins, or goes on with. `turn`: the
        newest one; noise and a backchannel begin none. `is_overlap`: the agent can be heard, and
        partial transcripts decide whether it continues."""
        if self._standing is None or self._standing[0] != turn:
            self._standing = turn, self._policy.active()
        _, standing = self._standing
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
        """Chunking of the response that the model is asked for now."""
        progress = self._progress(turn)
        if progress is None:
            return plain
        taken = self._policy.short_clause(progress, _own_total_ms(self._log.budget_of(turn)))
        if taken is None:
            return plain
        self._log.acted(taken, progress.now_ns, turn)
        return plain if taken.left_out else shortened(plain)

    def piece_due_ns(self, turn: TurnId) -> int | None:
        """Time by which the first piece of a response must be known to be heard within the budget,
        ns. None where no caller was heard."""
        progress = self._progress(turn)
        if progress is None:
            return None
        to_ear_ms = self._policy.recent.middle_sum_ms("tts_ms", "after_ms") or PIECE_TO_EAR_MS
        total_ms = self._log.budget_of(turn).total_ms
        return progress.voiced_ns + round((total_ms - to_ear_ms) * NS_PER_MS)

    def opener(self, turn: TurnId) -> ActionTaken | None:
        """The opener action with its predicted saving; None where it is not worth it."""
        progress = self._progress(turn)
        if progress is None:
            return None
        return self._policy.opener(progress)

    def opened(self, turn: TurnId, taken: ActionTaken, saved_ms: float | None = None) -> None:
        """Record an opener, or what it saved once that is known."""
        taken = replace(taken, saved_ms=saved_ms)
        self._log.acted(taken, self._clock.now_ns(), turn)

    def _use_small_model(self, *, small: bool) -> None:
        before, self._is_small = self._is_small, self._chat.use_small_model(small=small)
        if self._is_small is not before:
            self._prefill.changed()  # it has the whole history to read, and now there is time

    def _progress(self, turn: TurnId) -> Progress | None:
        return progress_of(self._log.so_far(turn).at, self._clock.now_ns())


def _own_total_ms(budget: Budget) -> int:
    """Budget without the silence that the client asked for, which says nothing about the stages."""
    return budget.total_ms - budget.widened_ms
