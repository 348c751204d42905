"""Acting before a turn is late: a prediction, a ladder of actions, and what each of them brings.

Theory of operation
-------------------
*Prediction.* What a reply needs is a chain of links (`stage_latencies.py`). Of a turn under way
the links that
lie behind are known, and those ahead are taken to last as long as four in five of the latest turns
(`latency_window.py`). Before a turn, the whole chain of the latest turns stands for it
(`predicted_ms`).
The wait for the end of the turn is not predicted, because it must not be shortened: it belongs to
the caller.

*Ladder.* Some actions change how the next turn is listened to, or who answers it, and are switched
on and off after a turn (`STANDING`). As long as the chain is predicted to end after the budget, the
next of them whose saving is worth having is switched on, one at a time, so that it is known what
each brings. The others are decided within a turn: whoever prepares a reply asks whether its first
clause is to be short, or whether an opener is due, with the prediction of that turn in hand.

*Hysteresis.* After a switch only turns count that began after it; nothing more is done before there
are MIN_TURNS of them. Actions are given up one at a time, the last one first, where the chain has
been well below the budget (CALM) for CALM_TURNS turns running. Where it is needed again soon after,
twice as many calm turns are asked for the next time: a load that stays costs a few late turns in
ever longer intervals.

*Does it pay?* See `action_effect.py`. What does not is set aside for SET_ASIDE_TURNS turns, and
whoever looks is told.

*Several calls* share one policy, because they share the stages. Each turn is held against its own
budget, but none against less than the operator allows: a client that wants more can't have others
served worse for it.

Pure: no clock, no thread; a recorded session replays it (`python -m latency_budget`). It knows
times and names of actions; what these do is the business of those who ask. Nothing here changes a
word that was heard: actions apply to what is not begun.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from latency_budget.account.actions import Action, ActionTaken
from latency_budget.account.turn_record import NS_PER_MS, TurnRecord

from .action_effect import MIN_SAVING_MS, MIN_TURNS, ActionEffect
from .latency_window import LIKELY, WINDOW, LatencyWindow, quantile
from .stage_latencies import Progress, StageLatencies, lags_of

CAPTIONS_MS: Final = 50.0
"""What partial transcripts are worth: people read them, and the language model reads along. At the
embedded models' 150 ms a pass they cost 16 ms."""

CALM: Final = 0.85
"""Of the budget. Nearer to 1, an action would be on and off by turns."""

CALM_TURNS: Final = 8
MAX_CALM_TURNS: Final = 512
"""Before an action is given up: at first, and at most."""

SET_ASIDE_TURNS: Final = 200
"""Until an action that did not pay may try again: the load may have changed by then."""

PARTIAL_EVERY_MS: Final = 600.0
"""Between two partial passes, while the caller speaks."""

HUSH_MS: Final = 32.0
"""Silence after which the pass begins that brings the final words."""

SHORTEST_WINDOW_MS: Final = 10_000.0
"""Of audio that a pass takes in at least, silence included: the time of a pass grows with what is
beyond it."""

WINDOW_MARGIN_MS: Final = 2_200.0
"""Of that silence."""

LONG_MS: Final = 8_000.0
"""Of speech: from there on the older part of an utterance is settled early."""

STANDING: Final = (
    *(Action.PAUSE_SOONER, Action.TAIL_DECODE, Action.SKIP_PARTIALS, Action.SMALL_MODEL),
)
"""Switched on and off between turns, in this order."""

_NEVER_LEFT_OUT: Final = frozenset({Action.SMALL_MODEL})
"""A turn without it would have the history computed anew, twice."""

Target = Callable[[StageLatencies], float | None]
"""The time that an action works on, in ms."""


def _sum(*names: str) -> Target:
    def target(lags: StageLatencies) -> float | None:
        values: list[float | None] = [getattr(lags, name) for name in names]
        known = [value for value in values if value is not None]
        return sum(known) if len(known) == len(values) else None

    return target


def _of_long(target: Target) -> Target:
    return lambda lags: target(lags) if (lags.speech_ms or 0.0) >= LONG_MS else None


TARGETS: Final[Mapping[Action, Target]] = {
    Action.PAUSE_SOONER: _sum("words_ms", "wait_ms"),
    Action.SHORT_CLAUSE: _sum("clause_ms", "tts_ms"),
    Action.TAIL_DECODE: _of_long(_sum("words_ms")),
    Action.SKIP_PARTIALS: _sum("words_ms", "wait_ms", "prefill_ms"),
    Action.SMALL_MODEL: _sum("prefill_ms", "clause_ms"),
}

SHORT_SHARE: Final = 0.5
"""Of a first clause and its sound that a short one leaves, until it was measured: three words where
six are usual."""

SMALL_SHARE: Final = 0.5
"""The same of a model's time that a smaller one takes. Nobody would load one that is nearer."""


@dataclass(frozen=True, slots=True)
class ActionState:
    """How an action stands, for those who watch."""

    action: Action
    is_on: bool
    """Of those that are decided within a turn: it may be."""
    is_set_aside: bool
    """It did not pay."""
    times: int
    """Turns in which it was taken."""
    predicted_ms: float
    """Summed over those turns."""
    saved_ms: float
    """Summed over those for which it is known."""
    times_set_aside: int


class Policy:
    """Of one service: stages are shared, so what is learned from one call holds for all. One
    thread."""

    def __init__(self, available: Collection[Action] = frozenset(Action)) -> None:
        """`available`: what can be done here; nothing: it only predicts."""
        self.recent: Final = LatencyWindow()
        self._rungs = {action: ActionEffect() for action in Action if action in available}
        self._history: deque[StageLatencies] = deque(maxlen=MIN_TURNS)
        self._chains: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        """From the last voiced sample to the ear but for the wait for the turn's end, and the
        budget; of turns since the last switch."""
        self._turns = 0
        self._tries = 0
        """Turns that went without something."""
        self._calm_turns = 0
        self._patience = CALM_TURNS
        """Calm turns until an action is given up."""
        self._given_up_at = 0
        """Number of the turn."""

    # --- before a turn ---

    def standing(self) -> tuple[ActionTaken, ...]:
        """What is called for in the turn that begins now, beside what is decided within it. Ask
        once a turn."""
        on = [self._rungs[action] for action in self._on]
        taken = [ActionTaken(action, self._saving_ms(action)) for action in self._on]
        may_try = [n for n, each in enumerate(self._on) if each not in _NEVER_LEFT_OUT]
        if may_try and not on[may_try[-1]].called_for():
            tried = may_try[self._tries % len(may_try)]
            self._tries += 1
            taken[tried] = replace(taken[tried], left_out=True)
        return tuple(taken)

    def predicted_ms(self) -> float | None:
        """From the caller's last voiced sample to the first sound, had it not to be waited for
        whether the turn is over. None before there were turns enough."""
        if len(self._chains) < MIN_TURNS:
            return None
        return quantile([chain_ms for chain_ms, _ in self._chains], LIKELY)

    # --- within a turn ---

    def short_clause(self, progress: Progress, total_ms: int) -> ActionTaken | None:
        """Whether the reply that is being asked for is to begin with a short piece."""
        saving_ms = self._saving_ms(Action.SHORT_CLAUSE)
        ready_ns, after_ms = self.recent.ready_ns(progress), self.recent.likely_ms("after_ms")
        is_known = ready_ns is not None and self._turns >= MIN_TURNS
        if not self._may(Action.SHORT_CLAUSE) or saving_ms < MIN_SAVING_MS or not is_known:
            return None
        assert ready_ns is not None
        late_ms = (ready_ns - progress.voiced_ns) / NS_PER_MS + (after_ms or 0.0) - total_ms
        if late_ms <= 0:
            return None
        is_taken = self._rungs[Action.SHORT_CLAUSE].called_for()
        return ActionTaken(Action.SHORT_CLAUSE, saving_ms, left_out=not is_taken)

    def opener(self, progress: Progress) -> ActionTaken | None:
        """Words kept at hand, said now, and how long they are likely to be heard before the reply.
        None where they have not been worth it."""
        if not self._may(Action.OPENER):
            return None
        ready_ns = self.recent.ready_ns(progress)
        left_ms = 0.0 if ready_ns is None else (ready_ns - progress.now_ns) / NS_PER_MS
        return ActionTaken(Action.OPENER, left_ms)

    # --- after a turn ---

    def observe(self, record: TurnRecord, total_ms: int) -> TurnRecord:
        """Learn from a turn that is over and was held to this budget. Gives the record back with
        what its actions saved; without those that found nothing to do in it."""
        lags = lags_of(record)
        if lags is None:
            return record
        self._turns += 1
        actions = [self._count(each, lags) for each in (*record.actions, *record.left_out)]
        record = replace(
            record, actions=tuple(each for each in actions if each and not each.left_out)
        )
        for action, rung in self._rungs.items():
            is_used = rung.is_on or action not in STANDING
            if is_used and not rung.pays:
                rung.set_aside(self._turns + SET_ASIDE_TURNS)
                self._switched()
        self.recent.add(lags)
        self._history.append(lags)
        called_for = {each.action for each in (*record.actions, *record.left_out)}
        if lags.ready_ms is not None and called_for & set(STANDING) == self._needed(lags):
            self._chains.append((lags.ready_ms + (lags.after_ms or 0.0), total_ms))
        self._climb()
        return record

    def states(self) -> list[ActionState]:
        """In the order of the ladder."""
        return [
            ActionState(
                action,
                is_on=rung.is_on if action in STANDING else self._may(action),
                is_set_aside=rung.aside_until > self._turns,
                times=rung.times,
                predicted_ms=rung.predicted_ms,
                saved_ms=rung.saved_ms,
                times_set_aside=rung.times_set_aside,
            )
            for action, rung in self._rungs.items()
        ]

    # --- inside ---

    @property
    def _on(self) -> list[Action]:
        return [each for each in STANDING if each in self._rungs and self._rungs[each].is_on]

    def _needed(self, lags: StageLatencies) -> set[Action]:
        """What a turn that began after the last switch called for."""
        is_long = (lags.speech_ms or 0.0) >= LONG_MS
        return {each for each in self._on if each is not Action.TAIL_DECODE or is_long}

    def _may(self, action: Action) -> bool:
        rung = self._rungs.get(action)
        return rung is not None and rung.aside_until <= self._turns

    def _count(self, taken: ActionTaken, lags: StageLatencies) -> ActionTaken | None:
        """Count an action of this turn in, and say what it saved. None: it found nothing to do."""
        rung = self._rungs.get(taken.action)
        if rung is None:
            return taken
        target = TARGETS.get(taken.action)
        if target is None:
            return rung.told(taken)
        time_ms = target(lags)
        if time_ms is None and taken.action is Action.TAIL_DECODE:
            return None
        return rung.compared(taken, time_ms)

    def _climb(self) -> None:
        """Go up the ladder where the next turn is likely to be late, and down where none is."""
        if len(self._chains) < MIN_TURNS:
            return
        part = quantile([chain_ms / total_ms for chain_ms, total_ms in self._chains], LIKELY)
        if part > 1.0:
            self._calm_turns = 0
            self._go_up()
            return
        self._calm_turns = self._calm_turns + 1 if part < CALM else 0
        if self._on and self._calm_turns >= self._patience:
            self._given_up_at = self._turns
            self._rungs[self._on[-1]].switch_off()
            self._switched()

    def _go_up(self) -> None:
        """Switch on the next action that is worth it."""
        for action in STANDING:
            is_free = self._may(action) and not self._rungs[action].is_on
            if not is_free or self._saving_ms(action) < MIN_SAVING_MS:
                continue
            times = [TARGETS[action](lags) for lags in self._history]
            self._rungs[action].switch_on([time_ms for time_ms in times if time_ms is not None])
            is_again = self._given_up_at and self._turns - self._given_up_at <= self._patience
            self._patience = min(2 * self._patience, MAX_CALM_TURNS) if is_again else CALM_TURNS
            self._switched()
            return

    def _switched(self) -> None:
        """What is known of turns before this says nothing about those to come."""
        self._chains.clear()
        self._calm_turns = 0

    def _saving_ms(self, action: Action) -> float:
        """What it is likely to save: as measured, or by what is known of the stages."""
        rung, recent = self._rungs.get(action), self.recent
        if rung is not None and rung.measured_ms is not None:
            return max(0.0, rung.measured_ms)
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
    """What partial passes add to the wait for words that come so long after the last sound.

    A pass of p ms that begins every PARTIAL_EVERY_MS is under way in p / PARTIAL_EVERY_MS of all
    pauses, for half of p on average: words = HUSH_MS + p + p^2 / (2 PARTIAL_EVERY_MS), solved for
    p.
    """
    delay_ms = max(0.0, words_ms - HUSH_MS)
    every_ms = PARTIAL_EVERY_MS
    pass_ms = every_ms * (math.sqrt(1 + 2 * delay_ms / every_ms) - 1)
    return delay_ms - pass_ms
