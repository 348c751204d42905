"""Adaptive draft length: as many tokens as pay, by costs that are measured while running.

A draft of k tokens takes the time of drafting them and that of a step of k + 1 rows, and brings one
token more than the number of right ones. The length with the most tokens per time is taken, and it
may be 0: only drafts that promise `_MIN_GAIN` over none are made. Measured are

- the acceptance rate, separately for a draft's first token and for those behind a right one: an
  n-gram's later tokens are nearly always right once the first is; and for each grade that the
  drafter gives its proposals (`Draft.grade`), since an n-gram that reads back is as surely right as
  it is wrong in free talk. Until it is drafted, the best grade is assumed;
- the time of drafting by length, in one-row steps of the target model, so that a loaded machine
  changes nothing as long as both models suffer alike;
- the time of reading text that the drafter has not seen (a draft model's cache): it is spread over
  the tokens that the reply can be expected to have still;
- the steps' times, `decoding_costs`, which all drafters share.

*Probes.* What does not pay is tried now and then, since it may pay when the text changes. Each
drafter has its share of `PROBE_SHARE` of the decoding time to lose by that; a probe waits until its
estimated cost has been saved up, and is charged with what it really lost. One that costs more than
`_MAX_PROBE` steps is never made.

Where drafting takes next to no time (n-grams), drafts that do not pay are still made, and compared
with the tokens that the model chooses, without rows of their own: so the acceptance rate follows
the text at once. Only rows that may have become cheaper are left for probes.

*Cold start.* A drafter that was never measured is tried `NUM_TRIALS` times, whatever it costs, but
not where it had to read a long text first. The service's warm-up pays for these.

Time decides only how fast a reply comes, never what is in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from llm_engine.config import MAX_DRAFT_TOKENS

from .decoding_costs import NUM_FIRST, DecodingCosts

_INITIAL_ACCEPTANCE: Final = 0.5
"""Acceptance rate that is assumed until some tokens were checked."""
_PRIOR_TOKENS: Final = 3
"""Checked tokens that the assumption counts for. Lower: one wrong draft decides. Higher: a short
reply is over before bad drafts end."""
_ACCEPTANCE_WEIGHT: Final = 1 / 32
"""Least weight of a newly checked token in the average."""
_COST_WEIGHT: Final = 1 / 8
"""Weight of a newly timed draft in the average."""
_PROBE_COST_WEIGHT: Final = 1 / 2
"""The same for a probe: the measurements before it are old."""
_ASSUMED_DRAFT_RATIO: Final = 1.0
"""Assumed time of drafting a token, in one-row steps, until it was timed: a step of the target."""
_ASSUMED_READ_RATIO: Final = 0.12
"""Assumed time of reading a token, in one-row steps, until it was timed: a further row."""
_MIN_GAIN: Final = 1.03
"""Least promised gain of a draft. Lower: errors of measurement choose drafts that lose."""
PROBE_SHARE: Final = 0.005
"""Share of the decoding time that all drafters together may lose by probes. With the steps that
`decoding_costs.PLAIN_EVERY` asks for: 1 %."""
_MAX_PROBE: Final = 32.0
"""Most that a probe may cost, in one-row steps, and most that is saved up. Lower: a draft model is
never tried after a long prompt, though long replies would gain. Higher: one probe costs a reply."""
_MAX_TRIAL: Final = 8.0
"""Most that a trial may be expected to cost, in one-row steps."""
NUM_TRIALS: Final = 3
"""Drafts of a drafter that was never measured."""
_CHEAP: Final = 0.01
"""Time of a draft, in one-row steps, up to which drafts that do not pay are made all the same, and
compared with the tokens that come. They cost no rows."""
_NUM_NEAR: Final = 8
"""Unread tokens up to which reading them is part of drafting: one short pass reads them."""


@dataclass(slots=True)
class DraftCounts:
    """Counts of one drafter's tokens."""

    num_drafted: int = 0
    num_accepted: int = 0
    num_checked: int = 0
    """Accepted ones, and the first wrong one of each draft."""


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """Decision about the next draft of one drafter."""

    length: int
    """Tokens to draft; 0 for none."""
    rate: float = 1.0
    """Promised tokens per time, relative to steps without a draft."""
    is_probe: bool = False
    """True for a draft that is made only to measure."""
    is_verified: bool = True
    """False for a draft that gets no rows, and is compared with the tokens that come."""


NO_DRAFT: Final = DraftChoice(0)


class _Acceptance:
    """Acceptance rates of a draft's first token, and of later ones behind right ones."""

    __slots__ = ("first", "later")

    def __init__(self, rate: float) -> None:
        self.first, self.later = _Rate(rate), _Rate(rate)


class _Rate:
    """Moving average of right and wrong tokens that begins with an assumption."""

    __slots__ = ("_num_checked", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._num_checked = 0

    def add(self, *, is_right: bool) -> None:
        self._num_checked += 1
        weight = max(_ACCEPTANCE_WEIGHT, 1 / (self._num_checked + _PRIOR_TOKENS))
        self.rate += weight * (is_right - self.rate)


class _Average:
    """Moving average of a cost that resists outliers: the least of the first values, and no later
    value counts as more than twice the average."""

    __slots__ = ("_num_added", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._num_added = 0

    def or_else(self, assumed: float) -> float:
        return self.value if self._num_added else assumed

    def add(self, value: float, weight: float) -> None:
        self._num_added += 1
        if self._num_added <= NUM_FIRST:
            self.value = min(self.value, value) if self._num_added > 1 else value
            return
        self.value += weight * (min(value, 2 * self.value + _NOTHING) - self.value)


_NOTHING: Final = 0.001
"""Cost, in one-row steps, that an average of 0 may grow by."""


class DraftLengthPolicy:
    """Chooses the draft lengths of one drafter. Belongs to the engine's thread."""

    def __init__(
        self,
        name: str,
        costs: DecodingCosts,
        *,
        acceptance: float = _INITIAL_ACCEPTANCE,
        probe_share: float = PROBE_SHARE,
    ) -> None:
        """`probe_share` is this drafter's part of `PROBE_SHARE`."""
        self.name = name
        self.counts = DraftCounts()
        self.costs = costs
        self._initial_acceptance = acceptance
        self._grades: dict[int, _Acceptance] = {}
        self._drafting: dict[int, _Average] = {}
        """Time of drafting by number of tokens, in one-row steps."""
        self._reading = _Average()
        """Time of reading a token, in one-row steps."""
        self._num_trials = 0
        self._probe_share = probe_share
        self._saved_ms = 0.0
        """Time that may be lost by probes now; negative after a probe that was dearer."""
        self._saved_at_ms = 0.0
        """Decoding time up to which `_saved_ms` counts."""

    def choose(
        self, max_tokens: int, *, num_unread: int = 0, is_masked: bool = False
    ) -> DraftChoice:
        """Decide how many tokens to draft next, at most `max_tokens`, which is also the most that
        the reply may have beside the next one.

        `num_unread` is `Draft.num_unread`; `is_masked` says that the reply has a grammar.
        """
        longest = min(max_tokens, MAX_DRAFT_TOKENS)
        if longest < 1:
            return NO_DRAFT
        far = max(0, num_unread - _NUM_NEAR)
        reading = far * self._reading.or_else(_ASSUMED_READ_RATIO)
        if self._num_trials < NUM_TRIALS and reading <= _MAX_TRIAL:
            return DraftChoice(1, is_probe=True)
        num_left = max(1.0, min(max_tokens + 1, self.costs.reply_tokens))
        wholes = [
            self.costs.ratio(length + 1, is_masked=is_masked) + self._drafting_ratio(length)
            for length in range(longest + 1)
        ]
        best, promised = max(
            (self._best(each, wholes, reading / num_left) for each in self._known_grades()),
            key=lambda found: found[1],
        )
        if best < longest:
            loss = wholes[best + 1] - wholes[best]
            if self._can_lose(loss if best else loss + reading):
                return DraftChoice(best + 1, promised, is_probe=True)
        if best == 0 and self._drafting and self._drafting_ratio(longest) <= _CHEAP:
            return DraftChoice(longest, is_verified=False)
        return DraftChoice(best, promised)

    def num_worth(self, num_proposed: int, *, grade: int = 0, is_masked: bool = False) -> int:
        """How many of the proposed tokens to verify, now that drafting them is paid for."""
        steps = [
            self.costs.ratio(length + 1, is_masked=is_masked) for length in range(num_proposed + 1)
        ]
        return self._best(self._grade(grade), steps)[0]

    def note_drafting(
        self, num_proposed: int, num_read: int, ms: float, *, is_probe: bool = False
    ) -> None:
        """Record the time in which the drafter proposed this many tokens, after reading `num_read`.
        Time without a proposal is lost, and charged to its probes."""
        self.costs.note_drafting(ms)
        ratio = ms / self.costs.plain_ms
        weight = _PROBE_COST_WEIGHT if is_probe else _COST_WEIGHT
        is_far = num_read > _NUM_NEAR
        if num_proposed and not is_far:
            self._drafting.setdefault(num_proposed, _Average()).add(ratio, weight)
        elif is_far:
            known = self._drafting_ratio(num_proposed) if self._drafting and num_proposed else 0.0
            self._reading.add(max(0.0, ratio - known) / num_read, weight)
        if num_proposed:
            self._num_trials = min(self._num_trials + 1, NUM_TRIALS + 1)
        else:
            self.note_lost(ms)

    def note_lost(self, ms: float) -> None:
        """Charge the drafter's probes with time that they lost. Trials are not charged: their
        number is limited."""
        if self._num_trials > NUM_TRIALS:
            self._saved_ms -= max(0.0, ms)

    def note_draft(self, drafted: Sequence[int], num_accepted: int, *, grade: int = 0) -> None:
        """Record that the first `num_accepted` of these tokens were right."""
        self.counts.num_drafted += len(drafted)
        self.counts.num_accepted += num_accepted
        # Tokens behind the first wrong one were not checked.
        num_checked = min(num_accepted + 1, len(drafted))
        self.counts.num_checked += num_checked
        for place in range(num_checked):
            self.note_token(place, is_right=place < num_accepted, grade=grade)

    def note_token(self, place: int, *, is_right: bool, grade: int = 0) -> None:
        """Record whether the token at this place of a draft, behind right ones, was right."""
        acceptance = self._grade(grade)
        (acceptance.later if place else acceptance.first).add(is_right=is_right)

    def note_forbidden(self, ms: float, *, grade: int = 0) -> None:
        """Record that a grammar forbids the first token of a draft that took this long."""
        self.note_token(0, is_right=False, grade=grade)
        self.note_lost(ms)

    def _can_lose(self, steps: float) -> bool:
        """True if a probe that costs this many one-row steps has been saved up."""
        plain_ms = self.costs.plain_ms
        earned_ms = (self.costs.decoding_ms - self._saved_at_ms) * self._probe_share
        self._saved_at_ms = self.costs.decoding_ms
        self._saved_ms = min(self._saved_ms + earned_ms, _MAX_PROBE * plain_ms)
        return steps <= _MAX_PROBE and steps * plain_ms <= self._saved_ms

    def _grade(self, grade: int) -> _Acceptance:
        return self._grades.setdefault(grade, _Acceptance(self._initial_acceptance))

    def _known_grades(self) -> Iterable[_Acceptance]:
        return self._grades.values() or (_Acceptance(self._initial_acceptance),)

    def _best(
        self, acceptance: _Acceptance, costs: Sequence[float], reading_per_token: float = 0.0
    ) -> tuple[int, float]:
        """The length with the most tokens per cost, and its gain over none. `costs` are by length,
        from 0; `reading_per_token` is added for each token that comes by drafts."""
        best, gain = 0, _MIN_GAIN
        expected, right, later = 1.0, acceptance.first.rate, acceptance.later.rate
        for length in range(1, len(costs)):
            expected += right
            right *= later
            promised = costs[0] / (costs[length] / expected + reading_per_token)
            if promised > gain:
                best, gain = length, promised
        return best, gain if best else 1.0

    def _drafting_ratio(self, length: int) -> float:
        if length == 0:
            return 0.0
        known = self._drafting.get(length)
        if known is not None:
            return known.value
        for distance in range(1, MAX_DRAFT_TOKENS + 1):
            for nearest in (length - distance, length + distance):
                known = self._drafting.get(nearest)
                if known is not None:
                    return known.value * length / nearest
        return length * _ASSUMED_DRAFT_RATIO
