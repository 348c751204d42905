"""Jobs of several callers: who is served next, whatever one of them asks for."""

from hypothesis import given
from hypothesis import strategies as st

from agent.stages.fair_order import FIRST_GUESS_S, MAX_CALLERS, FairOrder, Ticket


def served(fair: FairOrder, waiting: list[Ticket], took_s: float = 0.1) -> Ticket:
    """Serve the next of the jobs that wait: that with the smallest tag, then the oldest."""
    ticket = min(waiting, key=lambda each: each.tag)
    waiting.remove(ticket)
    fair.begun(ticket)
    fair.done(ticket, took_s)
    return ticket


def test_a_caller_with_many_jobs_delays_another_by_none() -> None:
    fair = FairOrder()
    waiting = [fair.queued("fast") for _ in range(20)]
    served(fair, waiting)
    waiting.append(fair.queued("good"))
    order = [served(fair, waiting).caller for _ in range(4)]
    assert order.index("good") <= 1
    waiting.append(fair.queued("good"))
    assert "good" in [served(fair, waiting).caller for _ in range(2)]


def test_jobs_of_one_caller_stay_in_order() -> None:
    fair = FairOrder()
    waiting = [fair.queued("a") for _ in range(5)]
    jobs = list(waiting)
    assert [served(fair, waiting) for _ in range(5)] == jobs


def test_nothing_is_owed_for_an_idle_stage() -> None:
    fair = FairOrder()
    for _ in range(50):
        waiting = [fair.queued("busy")]
        served(fair, waiting, 1.0)
    waiting = [fair.queued("busy"), fair.queued("new")]
    assert served(fair, waiting).caller == "busy"
    waiting.append(fair.queued("busy"))
    assert served(fair, waiting).caller == "new"


def test_a_job_that_did_not_run_costs_nothing() -> None:
    fair = FairOrder()
    dropped = [fair.queued("a") for _ in range(10)]
    for each in dropped:
        fair.done(each, None)
    again = fair.queued("a")
    assert (again.tag, again.guess_s) == (0.0, FIRST_GUESS_S)


def test_a_job_that_is_over_twice_counts_once() -> None:
    """It hung and was given up, and came back later."""
    fair = FairOrder()
    hung, behind = fair.queued("a"), fair.queued("b")
    for took_s in (None, 60.0):
        fair.done(hung, took_s)
    assert len(fair) == 2, "not idle: one job waits"
    assert fair.queued("a").tag == 0.0
    fair.done(behind, 0.1)


def test_callers_without_debt_are_forgotten() -> None:
    fair = FairOrder()
    fair.queued("waits for ever")
    for number in range(3 * MAX_CALLERS):
        waiting = [fair.queued(number)]
        served(fair, waiting, 0.0)
    assert len(fair) <= MAX_CALLERS


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.01, 1.0)), min_size=1, max_size=60),
    st.integers(1, 8),
)
def test_who_always_has_work_gets_as_much_as_the_others(
    costs: list[tuple[int, float]], greed: int
) -> None:
    """One has `greed` jobs in the queue, another one at a time: it gets its half at least, but for
    one job."""
    fair = FairOrder()
    waiting = [fair.queued("greedy") for _ in range(greed)]
    waiting.append(fair.queued("modest"))
    used = {"greedy": 0.0, "modest": 0.0}
    longest = max(cost for _, cost in costs)
    for _, cost in costs:
        ticket = served(fair, waiting, cost)
        assert isinstance(ticket.caller, str)
        used[ticket.caller] += cost
        waiting.append(fair.queued(ticket.caller))
        # Tags of jobs that wait were made with the duration of the one before.
        slack = 2 * longest * (greed + 1)
        assert used["modest"] >= used["greedy"] - slack
