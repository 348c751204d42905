"""Playback reports of clients: honest ones are placed, impossible ones are detected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.session.ports.playback_reports import (
    MAX_MARKS,
    SLACK_NS,
    TRUSTED_NS,
    PlaybackReportCheck,
)
from latency_budget.account.marks import MarkName

MS = 1_000_000
RELEASED_MS = 1000
OFFSET_MS = 30
"""Of silence, before the first audible sample."""
Report = tuple[float, int, float]
"""When it arrives, what it claims, what was sent by then: all ms."""


def marks(*reports: Report) -> list[tuple[MarkName, float]]:
    claims = PlaybackReportCheck()
    claims.released(OFFSET_MS * MS, RELEASED_MS * MS)
    return [
        (name, at_ns / MS)
        for at_ms, played_ms, sent_ms in reports
        for name, at_ns in claims.claim(played_ms, round(sent_ms * MS), round(at_ms * MS))
    ]


def test_a_report_says_when_the_first_audible_sample_was_played() -> None:
    # 230 ms were played by 1240, so the sample at 30 was played at 1040.
    assert marks((1240, 230, 500)) == [(MarkName.HEARD, 1040)]
    assert marks((1020, 20, 500)) == [], "that was the silence before it"


def test_of_reports_that_were_held_up_the_earliest_counts() -> None:
    told = marks((1290, 230, 500), (1440, 430, 800), (1690, 630, 900))
    assert told == [(MarkName.HEARD, 1090), (MarkName.HEARD, 1040)]


def test_unchanged_difference_adds_no_mark() -> None:
    assert len(marks((1240, 230, 500), (1339.5, 330, 500))) == 1


@pytest.mark.parametrize(
    "reports",
    [
        [(1100, 551, 500)],
        [(1240, 230, 500), (1300, 1 << 40, 500)],
        [(1100, 200, 500)],  # in 100 ms, of which the way there takes some
        [(1500, 400, 500), (1600, 349, 500)],
        [(1001, 500, 500)],
    ],
)
def test_impossible_reports_are_rejected(reports: list[Report]) -> None:
    told = marks(*reports, (2000, 400, 500))
    assert told[-1] == (MarkName.HEARD_DOUBTED, reports[-1][0]), "and nothing after it is taken"


def test_report_before_the_first_audible_sample_sets_no_mark() -> None:
    claims = PlaybackReportCheck()
    assert claims.claim(40, 50 * MS, 5 * MS) == ()
    ((name, _),) = claims.claim(150, 50 * MS, 6 * MS)
    assert name is MarkName.HEARD_DOUBTED


@given(
    st.integers(0, 400),
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.floats(-0.001, 0.001),
)
def test_plausible_reports_are_never_rejected(
    way_ms: int, held_up_ms: list[int], drift: float
) -> None:
    """Whatever the network does: reports come in order, and each was held up for some time."""
    true_ms = RELEASED_MS + way_ms
    arrived_ms = 0.0
    reports: list[Report] = []
    delays: list[float] = []
    for number, late_ms in enumerate(held_up_ms, start=1):
        since_ms = 200 * number
        arrived_ms = max(arrived_ms, true_ms + since_ms + late_ms)
        claimed_ms = OFFSET_MS + int(since_ms * (1 + drift))
        reports.append((arrived_ms, claimed_ms, claimed_ms + 400))
        if since_ms <= TRUSTED_NS / MS:
            delays.append(arrived_ms - true_ms - since_ms)
    told = marks(*reports)
    assert {name for name, _ in told} == {MarkName.HEARD}
    assert told[-1][1] >= RELEASED_MS
    assert told[-1][1] - true_ms == pytest.approx(min(delays), abs=2.1)


@pytest.mark.parametrize("speed", [0.98, 1.02])
def test_a_sound_card_that_drifts_is_bounded(speed: float) -> None:
    """Two per cent, for ten seconds, over a network that takes 5 ms each way."""
    true_ms = RELEASED_MS + 5
    reports = [
        (true_ms + since + 5, OFFSET_MS + int(since * speed), 10_500)
        for since in range(20, 10_000, 200)
    ]
    told = marks(*reports)
    first = [at_ms for name, at_ms in told if name is MarkName.HEARD]
    assert all(RELEASED_MS <= at_ms <= true_ms + 10 for at_ms in first)
    assert all(abs(at_ms - true_ms) <= 20 for at_ms in first)
    gains = any(name is MarkName.HEARD_DOUBTED for name, _ in told)
    assert gains is (speed > 1), "who plays what was not sent yet is found out"


@given(
    st.lists(
        st.tuples(st.integers(0, 100_000), st.integers(0, 1 << 40), st.integers(0, 100_000)),
        max_size=300,
    )
)
def test_no_report_exceeds_the_servers_bounds(reports: list[tuple[int, int, int]]) -> None:
    """Time since the report before, what is claimed, what was sent: anything at all, in us."""
    claims = PlaybackReportCheck()
    claims.released(OFFSET_MS * MS, RELEASED_MS * MS)
    now_ns = RELEASED_MS * MS
    sent_ns = 0
    told: list[tuple[MarkName, int]] = []
    for passed_us, played_ms, sent_us in reports:
        now_ns += passed_us * 1000
        sent_ns += sent_us * 1000
        for name, at_ns in claims.claim(played_ms % 2000, sent_ns, now_ns):
            assert RELEASED_MS * MS <= at_ns <= now_ns
            told.append((name, at_ns))
    doubts = [number for number, (name, _) in enumerate(told) if name is MarkName.HEARD_DOUBTED]
    assert doubts in ([], [len(told) - 1])
    heard = [at_ns for name, at_ns in told if name is MarkName.HEARD]
    assert heard == sorted(heard, reverse=True)
    assert len(heard) <= MAX_MARKS


def test_a_thousand_reports_a_second_are_a_few_marks() -> None:
    reports = [(1040.0 + since, OFFSET_MS + since, 20_000.0) for since in range(10_000)]
    assert len(marks(*reports)) == 1
    creeping = [(3000.0 - since + since * 1.0, OFFSET_MS + since, 20_000.0) for since in range(900)]
    assert len(marks(*creeping)) <= MAX_MARKS


def test_tolerance_of_playback_reports_is_small() -> None:
    assert SLACK_NS < 100 * MS
