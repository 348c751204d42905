"""Adaptive draft length: it takes what pays, never loses much, and follows the costs."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from llm_engine.config import MAX_DRAFT_TOKENS
from llm_engine.speculative.decoding_costs import PLAIN_EVERY, DecodingCosts
from llm_engine.speculative.draft_length import (
    NUM_TRIALS,
    PROBE_SHARE,
    DraftChoice,
    DraftLengthPolicy,
)

STEP_MS = 10.0
LENGTHS = range(MAX_DRAFT_TOKENS + 1)


@dataclass
class Machine:
    """Costs and acceptance rate of a made-up pair of models. Costs in one-row steps."""

    acceptance: float
    draft: float
    """Time of drafting a token."""
    row: float
    """Time of each further row."""
    read: float = 0.0
    """Time of reading a token that the drafter has not seen."""
    step_ms: float = STEP_MS

    def step(self, num_rows: int) -> float:
        return self.step_ms * (1 + self.row * (num_rows - 1))

    def drafting(self, num_drafted: int, num_unread: int) -> float:
        return self.step_ms * (self.draft * num_drafted + self.read * num_unread)

    def rate(self, length: int) -> float:
        """Tokens per one-row step, by arithmetic."""
        expected = sum(self.acceptance**place for place in range(length + 1))
        return expected / (self.step(length + 1) / self.step_ms + self.draft * length)


@dataclass
class Decoding:
    """Replies of one policy on a machine."""

    machine: Machine
    prompt: int = 0
    """Tokens that the drafter has to read at each reply's start."""
    seed: int = 1
    costs: DecodingCosts = field(default_factory=DecodingCosts)
    ms: float = 0.0
    num_tokens: int = 0
    probes_ms: float = 0.0
    """Time that probes and steps without a draft lost, beside the best choice known."""
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = DraftLengthPolicy("made up", self.costs)
        self._random = random.Random(self.seed)
        self._unverified: list[bool] = []

    def reply(self, num_tokens: int) -> None:
        num_left, num_unread = num_tokens, self.prompt
        while num_left > 0:
            choice = self._choose(num_left - 1, num_unread)
            ms, num_right = 0.0, 0
            if choice.length:
                ms = self.machine.drafting(choice.length, num_unread)
                self.policy.note_drafting(choice.length, num_unread, ms, is_probe=choice.is_probe)
                num_right = self._num_right(choice.length)
            num_unread = 1 + num_unread * (not choice.length) if self.prompt else 0
            step_ms = self.machine.step(choice.length + 1)
            self.costs.note_step(choice.length + 1, step_ms)
            if choice.length:
                self.policy.note_draft([0] * choice.length, num_right)
            ms += step_ms
            if choice.is_probe:
                usual_ms = (1 + num_right) * self.costs.plain_ms / choice.rate
                self.policy.note_lost(ms - usual_ms)
                self.probes_ms += ms - (1 + num_right) * self.machine.step_ms
            self.ms += ms
            self.num_tokens += 1 + num_right
            self.lengths.append(choice.length)
            num_left -= 1 + num_right
        self.costs.note_reply(num_tokens)

    def rate_of(self, num_replies: int, num_tokens: int = 40) -> float:
        """Tokens per one-row step over the next replies."""
        ms, before = self.ms, self.num_tokens
        for _ in range(num_replies):
            self.reply(num_tokens)
        return (self.num_tokens - before) / (self.ms - ms) * self.machine.step_ms

    def _choose(self, max_tokens: int, num_unread: int) -> DraftChoice:
        choice = DraftChoice(0)
        if not self.costs.is_plain_due:
            choice = self.policy.choose(max_tokens, num_unread=num_unread)
        if not choice.is_verified and not self._unverified:
            self.policy.note_drafting(choice.length, 0, 0.0)
            num_right = self._num_right(choice.length)
            wrong = [False] * (num_right < choice.length)
            self._unverified = [True] * num_right + wrong
            for place, is_right in enumerate(self._unverified):
                self.policy.note_token(place, is_right=is_right)
        if self._unverified:
            self._unverified.pop()  # each stands for a token that is waited for
        return choice if choice.is_verified else DraftChoice(0)

    def _num_right(self, length: int) -> int:
        draws = (self._random.random() < self.machine.acceptance for _ in range(length))
        return sum(1 for _ in itertools.takewhile(bool, draws))


ACCEPTANCES = (0.0, 0.1, 0.3, 0.57, 0.8, 1.0)
DRAFT_COSTS = (0.0, 0.02, 0.1, 0.3, 1.0)
ROW_COSTS = (0.0, 0.05, 0.12, 0.3)


@pytest.mark.parametrize("row", ROW_COSTS)
@pytest.mark.parametrize("draft", DRAFT_COSTS)
def test_no_choice_loses_and_the_best_is_found(draft: float, row: float) -> None:
    for acceptance in ACCEPTANCES:
        machine = Machine(acceptance, draft, row)
        decoding = Decoding(machine, prompt=1 if draft else 0)
        decoding.rate_of(30)
        assert decoding.rate_of(40) > 0.985  # with probes
        # The length that is chosen once the acceptance rate is known as it is.
        for each in decoding.policy._grades.values():
            each.first.rate = each.later.rate = acceptance
        decoding.policy._saved_ms = -1e9  # no probe
        chosen = decoding.policy.choose(100)
        length = chosen.length if chosen.is_verified else 0
        assert machine.rate(length) >= 1
        assert machine.rate(length) >= max(machine.rate(each) for each in LENGTHS) / 1.04


@pytest.mark.parametrize("row", ROW_COSTS)
def test_what_cannot_pay_loses_one_percent_at_most(row: float) -> None:
    """A draft model as large as the target, which must read 60 tokens at each reply's start."""
    decoding = Decoding(Machine(0.5, draft=1, row=row, read=0.05), prompt=60)
    decoding.rate_of(20)
    before_ms, probes_ms, num_before = decoding.ms, decoding.probes_ms, len(decoding.lengths)
    decoding.rate_of(200, num_tokens=30)
    assert set(decoding.lengths[num_before:]) <= {0, 1}
    assert decoding.probes_ms - probes_ms <= 2 * PROBE_SHARE * (decoding.ms - before_ms)


@pytest.mark.parametrize("draft", [0.3, 1.0, 5.0])
def test_a_first_reply_of_twenty_tokens_has_a_few_trials(draft: float) -> None:
    decoding = Decoding(Machine(0.0, draft, row=0.3), prompt=1)
    decoding.reply(20)
    assert sum(length > 0 for length in decoding.lengths) == NUM_TRIALS
    assert max(decoding.lengths) == 1


def test_a_drafter_is_not_tried_first_where_it_must_read_a_long_text() -> None:
    decoding = Decoding(Machine(1.0, draft=0.1, row=0.05, read=0.05), prompt=1000)
    decoding.rate_of(5, num_tokens=20)
    assert not any(decoding.lengths)


def test_reading_is_spread_over_the_reply() -> None:
    """200 unread tokens are worth it in a long reply, not in a short one."""
    chosen = {}
    for num_tokens in (8, 300):
        decoding = Decoding(Machine(0.8, draft=0.1, row=0.05, read=0.05), prompt=30)
        decoding.rate_of(60, num_tokens=num_tokens)
        decoding.policy._saved_ms = -1e9
        chosen[num_tokens] = decoding.policy.choose(num_tokens, num_unread=200).length
    assert chosen[8] == 0
    assert chosen[300] > 0


def test_the_end_of_a_reply_bounds_a_draft() -> None:
    decoding = Decoding(Machine(1.0, draft=0.0, row=0.0))
    decoding.rate_of(10)
    assert [decoding.policy.choose(room).length for room in (0, 1, 3, 50)] == [0, 1, 3, 7]


def change_draft_cost(machine: Machine) -> None:
    machine.draft = 1.0


def change_row_cost(machine: Machine) -> None:
    machine.row = 0.6


def change_acceptance(machine: Machine) -> None:
    machine.acceptance = 0.05


@pytest.mark.parametrize("change", [change_draft_cost, change_row_cost, change_acceptance])
def test_costs_that_change_are_followed_both_ways(change: Callable[[Machine], None]) -> None:
    machine = Machine(0.7, draft=0.05, row=0.05)
    decoding = Decoding(machine, prompt=1)
    decoding.rate_of(30)
    assert decoding.rate_of(10) > 1.5
    change(machine)
    best = max(machine.rate(length) for length in LENGTHS)
    decoding.rate_of(60)
    assert decoding.rate_of(30) > 0.96 * best
    machine.draft, machine.row, machine.acceptance = 0.05, 0.05, 0.7
    decoding.rate_of(200)
    assert decoding.rate_of(30) > 1.5


def test_a_slower_machine_changes_no_decision() -> None:
    for acceptance, pays in ((0.2, False), (0.8, True)):
        machine = Machine(acceptance, draft=0.2, row=0.1)
        decoding = Decoding(machine, prompt=1)
        decoding.rate_of(50)
        machine.step_ms = 3 * STEP_MS
        before = len(decoding.lengths)
        decoding.rate_of(20)
        machine.step_ms = STEP_MS
        decoding.rate_of(20)
        num_drafts = sum(length > 0 for length in decoding.lengths[before:])
        share = num_drafts / len(decoding.lengths[before:])
        assert share > 0.8 if pays else share < 0.1


def test_steps_without_a_draft_are_due_now_and_then() -> None:
    costs = DecodingCosts()
    assert costs.is_plain_due
    costs.note_step(1, 10)
    for _ in range(PLAIN_EVERY):
        assert not costs.is_plain_due
        costs.note_step(8, 12)
    assert costs.is_plain_due
    costs.note_step(1, 10)
    assert not costs.is_plain_due


def test_a_dearer_size_is_told_from_a_slower_machine() -> None:
    costs = DecodingCosts()
    for _ in range(50):
        costs.note_step(1, 10)
        costs.note_step(8, 12)
    assert costs.ratio(8) == pytest.approx(1.2, rel=0.02)
    for _ in range(3 * PLAIN_EVERY):
        costs.note_step(1 if costs.is_plain_due else 8, 10 if costs.is_plain_due else 30)
    assert costs.ratio(8) == pytest.approx(3, rel=0.1)
    assert costs.plain_ms == pytest.approx(10, rel=0.1)


def test_a_slow_step_now_and_then_hardly_counts() -> None:
    costs = DecodingCosts()
    for number in range(200):
        costs.note_step(1, 100 if number % 20 == 19 else 10)
        costs.note_step(2, 11)
    assert costs.ratio(2) < 1.15


def test_masked_steps_have_costs_of_their_own() -> None:
    costs = DecodingCosts()
    for _ in range(20):
        costs.note_step(1, 10)
        costs.note_step(2, 11)
        costs.note_step(1, 12, is_masked=True)
        costs.note_step(2, 18, is_masked=True)
    assert costs.ratio(2) == pytest.approx(1.1, rel=0.02)
    assert costs.ratio(1, is_masked=True) == pytest.approx(1.2, rel=0.02)
    assert costs.ratio(2, is_masked=True) == pytest.approx(1.8, rel=0.02)
