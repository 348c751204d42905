"""Latency policy: predicts late turns, and takes the actions that save time.

Theory of operation
-------------------
*Prediction.* A reply needs a chain of stages (`stage_latencies.py`). Of a turn under way the stages
that are over are known, and those ahead are predicted by the 80th percentile of the latest turns
(`latency_window.py`). Before a turn, the whole chain of the latest turns stands for it
(`predicted_ms`). The wait for the end of the turn is not predicted, because it must not be
shortened: the caller may still be thinking.

*Escalation.* Some actions change how the next turn is recognized, or which model answers it, and
are switched on and off after a turn (`PERSISTENT`). As long as the chain is predicted to end after
the budget, the next of them with a saving of MIN_SAVING_MS or more is switched on, one at a time,
so that the saving of each can be measured. The others are decided within a turn: the session asks
whether the first clause of a reply should be short, or an opener is due, with the prediction of
that turn.

*Hysteresis.* After a switch only turns count that began after it; there is no further switch before
MIN_TURNS of them. Actions are switched off one at a time, the last one first, where the chain has
been well below the budget (CALM) for CALM_TURNS consecutive turns. Where an action is needed again
soon after, twice as many calm turns are needed the next time: a load that stays costs a few late
turns in ever longer intervals.

*Verification.* An action that does not pay (`action_effect.py`) is suspended for SET_ASIDE_TURNS
turns; `states` shows it.

*Several calls* share one policy, because they share the stages. Each turn is compared with its own
budget, but none with less than the operator's: a client that asks for a shorter wait must not make
other calls worse.

Pure: no clock, no thread; a recorded session replays it (`python -m latency_budget`). The policy
knows times and names of actions; the session carries them out. Nothing here changes words that were
heard: actions apply to work that has not begun.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.turn_record import NS_PER_MS, TurnRecord
from latency_budget.statistics.report import percentile

from .action_effect import MIN_SAVING_MS, MIN_TURNS, ActionEffect
from .latency_window import LIKELY, WINDOW, LatencyWindow
from .stage_latencies import Progress, StageLatencies, stage_latencies_of

CAPTIONS_MS: Final = 50.0
"""Partial transcripts that cost less are kept: people read them, and the language model is
prefilled with them. At the embedded models' 150 ms a pass they cost 16 ms."""

CALM: Final = 0.85
"""Share of the budget below which a turn is calm. Nearer to 1, an action would alternate."""

CALM_TURNS: Final = 8
MAX_CALM_TURNS: Final = 512
"""Calm turns before an action is switched off: at first, and at most."""

SET_ASIDE_TURNS: Final = 200
"""Turns until an action that did not pay may be tried again: the load may have changed by then."""

PARTIAL_EVERY_MS: Final = 600.0
"""Interval of the partial passes while the caller speaks."""

HUSH_MS: Final = 32.0
"""Silence after which the pass begins that brings the final words."""

SHORTEST_WINDOW_MS: Final = 10_000.0
"""Shortest audio window of a recognizer pass, silence included: the time of a pass grows with what
is beyond it."""

WINDOW_MARGIN_MS: Final = 2_200.0
"""Silence within that window."""

LONG_MS: Final = 8_000.0
"""Length of speech from which on the older part of an utterance is recognized early."""

PERSISTENT: Final = (
    Action.PAUSE_SOONER,
    Action.TAIL_DECODE,
    Action.SKIP_PARTIALS,
    Action.SMALL_MODEL,
)
"""Actions that are switched on and off between turns, in this order."""

_NEVER_HELD_OUT: Final = frozenset({Action.SMALL_MODEL})
"""Actions that are never left out to measure them: switching models recomputes the history,
twice."""

Target = Callable[[StageLatencies], float | None]
"""The time that an action works on, in ms."""


def _sum(*names: str) -> Target:
    def target(latencies: StageLatencies) -> float | None:
        values: list[float | None] = [getattr(latencies, name) for name in names]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return target


def _of_long(target: Target) -> Target:
    return lambda latencies: target(latencies) if (latencies.speech_ms or 0.0) >= LONG_MS else None


TARGETS: Final[Mapping[Action, Target]] = {
    Action.PAUSE_SOONER: _sum("words_ms", "wait_ms"),
    Action.SHORT_CLAUSE: _sum("clause_ms", "tts_ms"),
    Action.TAIL_DECODE: _of_long(_sum("words_ms")),
    Action.SKIP_PARTIALS: _sum("words_ms", "wait_ms", "prefill_ms"),
    Action.SMALL_MODEL: _sum("prefill_ms", "clause_ms"),
}

SHORT_SHARE: Final = 0.5
"""Time of a short first clause and its sound, as a share of the usual one, until it was measured:
three words instead of six."""

SMALL_SHARE: Final = 0.5
"""Time of the smaller model as a share of the large one's, until it was measured. A model that is
less fast would not be worth its memory."""


@dataclass(frozen=True, slots=True)
class ActionState:
    """State of one action, for metrics and reports."""

    action: Action
    is_on: bool
    """Switched on; an action that is decided within a turn: allowed."""
    is_set_aside: bool
    """Suspended, because it did not pay."""
    times: int
    """Turns in which it was taken."""
    predicted_ms: float
    """Predicted saving, summed over those turns."""
    saved_ms: float
    """Measured saving, summed over those turns for which it is known."""
    times_set_aside: int


class Policy:
    """Latency policy of one service: stages are shared, so what one call shows holds for all. One
    thread."""

    def __init__(self, available: Collection[Action] = frozenset(Action)) -> None:
        """`available`: the actions that this service can take; empty: the policy only predicts."""
        self.recent: Final = LatencyWindow()
        self._effects = {action: ActionEffect() for action in Action if action in available}
        self._history: deque[StageLatencies] = deque(maxlen=MIN_TURNS)
        self._chains: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        """Chain of each turn since the last switch: ms from the last voiced sample to the ear
        without the wait for the turn's end, and the turn's budget in ms."""
        self._turns = 0
        self._tries = 0
        """Turns in which an action was left out to measure it."""
        self._calm_turns = 0
        self._cooldown_turns = CALM_TURNS
        """Calm turns until an action is switched off."""
        self._given_up_at = 0
        """Number of the turn at which an action was last switched off."""

    # --- before a turn ---

    def active(self) -> tuple[ActionTaken, ...]:
        """The persistent actions of the turn that begins now. Call it once a turn: one of them may
        be left out, to measure it."""
        on = [self._effects[action] for action in self._on]
        taken = [ActionTaken(action, self._saving_ms(action)) for action in self._on]
        may_try = [n for n, each in enumerate(self._on) if each not in _NEVER_HELD_OUT]
        if may_try and not on[may_try[-1]].called_for():
            tried = may_try[self._tries % len(may_try)]
            self._tries += 1
            taken[tried] = replace(taken[tried], left_out=True)
        return tuple(taken)

    def predicted_ms(self) -> float | None:
        """Predicted ms from the caller's last voiced sample to the first sound, without the wait
        for the end of the turn. None before MIN_TURNS turns."""
        if len(self._chains) < MIN_TURNS:
            return None
        return percentile([chain_ms for chain_ms, _ in self._chains], LIKELY)

    # --- within a turn ---

    def short_clause(self, progress: Progress, total_ms: int) -> ActionTaken | None:
        """The action that the reply that is being requested begins with a short piece; None where
        that is not needed or not worth it."""
        saving_ms = self._saving_ms(Action.SHORT_CLAUSE)
        ready_ns, after_ms = self.recent.ready_ns(progress), self.recent.likely_ms("after_ms")
        is_known = ready_ns is not None and self._turns >= MIN_TURNS
        if not self._allowed(Action.SHORT_CLAUSE) or saving_ms < MIN_SAVING_MS or not is_known:
            return None
        assert ready_ns is not None
        late_ms = (ready_ns - progress.voiced_ns) / NS_PER_MS + (after_ms or 0.0) - total_ms
        if late_ms <= 0:
            return None
        is_taken = self._effects[Action.SHORT_CLAUSE].called_for()
        return ActionTaken(Action.SHORT_CLAUSE, saving_ms, left_out=not is_taken)

    def opener(self, progress: Progress) -> ActionTaken | None:
        """The action that a prepared phrase is played now, with the predicted ms until the reply.
        None where it is suspended or not available."""
        if not self._allowed(Action.OPENER):
            return None
        ready_ns = self.recent.ready_ns(progress)
        left_ms = 0.0 if ready_ns is None else (ready_ns - progress.now_ns) / NS_PER_MS
        return ActionTaken(Action.OPENER, left_ms)

    # --- after a turn ---

    def observe(self, record: TurnRecord, total_ms: int) -> TurnRecord:
        """Learn from a finished turn with this budget. Returns the record with the measured savings
        of its actions, without those that had nothing to do in it."""
        latencies = stage_latencies_of(record)
        if latencies is None:
            return record
        self._turns += 1
        actions = [self._count(each, latencies) for each in (*record.actions, *record.left_out)]
        record = replace(
            record, actions=tuple(each for each in actions if each and not each.left_out)
        )
        for action, effect in self._effects.items():
            is_used = effect.is_on or action not in PERSISTENT
            if is_used and not effect.pays:
                effect.set_aside(self._turns + SET_ASIDE_TURNS)
                self._restart_window()
        self.recent.add(latencies)
        self._history.append(latencies)
        called_for = {each.action for each in (*record.actions, *record.left_out)}
        if latencies.ready_ms is not None and called_for & set(PERSISTENT) == self._needed(
            latencies
        ):
            self._chains.append((latencies.ready_ms + (latencies.after_ms or 0.0), total_ms))
        self._adjust()
        return record

    def states(self) -> list[ActionState]:
        """State of every available action, in the order of `Action`."""
        return [
            ActionState(
                action,
                is_on=effect.is_on if action in PERSISTENT else self._allowed(action),
                is_set_aside=effect.suspended_until > self._turns,
                times=effect.times,
                predicted_ms=effect.predicted_ms,
                saved_ms=effect.saved_ms,
                times_set_aside=effect.times_set_aside,
            )
            for action, effect in self._effects.items()
        ]

    # --- inside ---

    @property
    def _on(self) -> list[Action]:
        return [each for each in PERSISTENT if each in self._effects and self._effects[each].is_on]

    def _needed(self, latencies: StageLatencies) -> set[Action]:
        """The persistent actions that a turn has which began after the last switch."""
        is_long = (latencies.speech_ms or 0.0) >= LONG_MS
        return {each for each in self._on if each is not Action.TAIL_DECODE or is_long}

    def _allowed(self, action: Action) -> bool:
        effect = self._effects.get(action)
        return effect is not None and effect.suspended_until <= self._turns

    def _count(self, taken: ActionTaken, latencies: StageLatencies) -> ActionTaken | None:
        """Count an action of this turn, and return it with its saving. None: it had nothing to
        do."""
        effect = self._effects.get(taken.action)
        if effect is None:
            return taken
        target = TARGETS.get(taken.action)
        if target is None:
            return effect.observed(taken)
        time_ms = target(latencies)
        if time_ms is None and taken.action is Action.TAIL_DECODE:
            return None
        return effect.compared(taken, time_ms)

    def _adjust(self) -> None:
        """Switch an action on where the next turn is likely to be late, and off after calm
        turns."""
        if len(self._chains) < MIN_TURNS:
            return
        part = percentile([chain_ms / total_ms for chain_ms, total_ms in self._chains], LIKELY)
        if part > 1.0:
            self._calm_turns = 0
            self._escalate()
            return
        self._calm_turns = self._calm_turns + 1 if part < CALM else 0
        if self._on and self._calm_turns >= self._cooldown_turns:
            self._given_up_at = self._turns
            self._effects[self._on[-1]].switch_off()
            self._restart_window()

    def _escalate(self) -> None:
        """Switch on the next action that is worth it."""
        for action in PERSISTENT:
            is_free = self._allowed(action) and not self._effects[action].is_on
            if not is_free or self._saving_ms(action) < MIN_SAVING_MS:
                continue
            times = [TARGETS[action](latencies) for latencies in self._history]
            self._effects[action].switch_on([time_ms for time_ms in times if time_ms is not None])
            is_again = self._given_up_at and self._turns - self._given_up_at <= self._cooldown_turns
            self._cooldown_turns = (
                min(2 * self._cooldown_turns, MAX_CALM_TURNS) if is_again else CALM_TURNS
            )
            self._restart_window()
            return

    def _restart_window(self) -> None:
        """Drop the turns before a switch: they do not predict those after it."""
        self._chains.clear()
        self._calm_turns = 0

    def _saving_ms(self, action: Action) -> float:
        """Predicted saving of an action: as measured, else estimated from the stages."""
        effect, recent = self._effects.get(action), self.recent
        if effect is not None and effect.measured_ms is not None:
            return max(0.0, effect.measured_ms)
        match action:
            case Action.PAUSE_SOONER:
                pass_ms = recent.middle_ms("pass_ms")
                return HUSH_MS if pass_ms is not None and pass_ms < HUSH_MS / 4 else 0.0
            case Action.SHORT_CLAUSE:
                return (1 - SHORT_SHARE) * recent.middle_sum_ms("clause_ms", "tts_ms")
            case Action.TAIL_DECODE:
                window_ms = (recent.most_ms("speech_ms") or 0.0) + WINDOW_MARGIN_MS
                beyond = max(0.0, 1 - SHORTEST_WINDOW_MS / window_ms)
                return (recent.middle_ms("pass_ms") or 0.0) * beyond
            case Action.SKIP_PARTIALS:
                cost_ms = _partials_cost_ms(recent.middle_ms("words_ms") or 0.0)
                return cost_ms if cost_ms >= CAPTIONS_MS else 0.0
            case Action.SMALL_MODEL:
                return (1 - SMALL_SHARE) * recent.middle_sum_ms("prefill_ms", "clause_ms")
            case Action.OPENER:
                return 0.0


def _partials_cost_ms(words_ms: float) -> float:
    """The wait that partial passes add to words that come so long after the last sound, in ms.

    A pass of p ms that begins every PARTIAL_EVERY_MS is under way in p / PARTIAL_EVERY_MS of all
    pauses, for half of p on average: words = HUSH_MS + p + p^2 / (2 PARTIAL_EVERY_MS), solved for
    p.
    """
    delay_ms = max(0.0, words_ms - HUSH_MS)
    every_ms = PARTIAL_EVERY_MS
    pass_ms = every_ms * (math.sqrt(1 + 2 * delay_ms / every_ms) - 1)
    return delay_ms - pass_ms
