"""Admission by the latencies of present calls, and by the processor time that a call uses."""

import math

import pytest

from latency_budget.enforcement.admission import (
    EVIDENCE_NS,
    FULL,
    MAX_TURNS,
    MIN_CALL_S,
    MIN_TURNS,
    Admission,
    OverloadForecast,
)
from latency_budget.enforcement.stage_latencies import StageLatencies

S = 10**9


def service(
    share: float, ready_ms: float, *, calls: int = 1, cores: int = 2, total_ms: int = 500
) -> Admission:
    """Has had `calls` for a minute, each with this share of the processor, and turns enough."""
    admission = Admission(cores)
    admission.used(0, 0, calls)
    admission.used(60 * S, round(60 * S * share * calls * cores), calls)
    for _ in range(MIN_TURNS):
        admission.turn_over(StageLatencies(ready_ms=ready_ms, after_ms=40), calls, total_ms, 60 * S)
    return admission


def predicted_ms(admission: Admission, calls: int) -> float:
    forecast = admission.predicted(calls, 60 * S)
    assert forecast is not None
    return forecast.predicted_ms


def test_a_call_uses_its_part_of_the_processor() -> None:
    assert service(0.2, 300).per_call() == pytest.approx(0.2)
    assert service(0.2, 300, calls=3).per_call() == pytest.approx(0.2)


def test_a_chain_grows_with_what_others_use() -> None:
    admission = service(0.2, 300)
    assert predicted_ms(admission, 1) == pytest.approx(340)
    assert predicted_ms(admission, 2) == pytest.approx(300 * 0.8 / 0.6 + 40)
    assert predicted_ms(admission, 4) == pytest.approx(300 * 0.8 / 0.2 + 40)
    assert predicted_ms(admission, 5) == math.inf
    assert FULL < 5 * 0.2


def test_one_more_is_refused_before_those_inside_are_late() -> None:
    admission = service(0.2, 300)
    assert admission.refuses(1, 60 * S) is None
    admission = service(0.2, 350, calls=2)
    forecast = admission.refuses(2, 60 * S)
    assert forecast is not None
    assert forecast.predicted_ms == pytest.approx(350 * 0.6 / 0.4 + 40)
    assert "565 ms, and 500 ms are promised" in forecast.reason
    assert service(0.2, 350, calls=2, total_ms=900).refuses(2, 60 * S) is None


def test_a_full_processor_is_reason_enough() -> None:
    forecast = service(0.4, 50, calls=2).refuses(2, 60 * S)
    assert forecast is not None
    assert forecast.reason == "The processor is busy with the calls in progress."


def test_no_call_is_refused_while_idle() -> None:
    assert service(0.9, 9000).refuses(0, 60 * S) is None


def test_no_call_is_refused_on_few_samples() -> None:
    admission = Admission(2)
    for _ in range(MIN_TURNS):
        admission.turn_over(StageLatencies(ready_ms=9000, after_ms=40), 1, 500, 60 * S)
    assert admission.refuses(1, 60 * S) is None, "no processor time is known"
    admission.used(0, 0, 1)
    admission.used(round((MIN_CALL_S - 1) * S), S, 1)
    assert admission.refuses(1, 60 * S) is None
    few = service(0.2, 9000)
    assert few.refuses(1, 60 * S + EVIDENCE_NS + 1) is None, "it was too long ago"
    assert few.predicted(1, 60 * S + EVIDENCE_NS + 1) is None


def test_admission_does_not_flap() -> None:
    admission = service(0.2, 400)  # 573 ms with one more
    assert admission.refuses(1, 60 * S) is not None
    easier = [StageLatencies(ready_ms=ready_ms, after_ms=40) for ready_ms in (320, 250)]  # 467, 373
    for latencies, is_refused in zip(easier, (True, False), strict=True):
        for _ in range(MAX_TURNS):
            admission.turn_over(latencies, 1, 500, 60 * S)
        assert (admission.refuses(1, 60 * S) is not None) == is_refused
    for _ in range(MAX_TURNS):
        admission.turn_over(easier[0], 1, 500, 60 * S)
    assert admission.refuses(1, 60 * S) is None, "open, it takes all of the budget"


def test_each_chain_is_held_to_its_own_budget() -> None:
    admission = service(0.2, 400, total_ms=1500)
    assert admission.refuses(1, 60 * S) is None
    for _ in range(10):
        admission.turn_over(StageLatencies(ready_ms=200, after_ms=40), 1, 300, 60 * S)
    forecast = admission.refuses(1, 60 * S)
    assert forecast == OverloadForecast(predicted_ms(admission, 2), 300)
    assert forecast.predicted_ms == pytest.approx(200 * 0.8 / 0.6 + 40)


def test_only_the_last_minute_of_processor_time_counts() -> None:
    admission = service(0.2, 300)
    for second in range(61, 200):
        admission.used(second * S, round(24 * S + (second - 60) * 0.8 * S), 1)
    assert admission.per_call() == pytest.approx(0.4)


def test_a_storm_of_questions_leaves_few_samples() -> None:
    """Each refused client asks for a forecast, which goes through all of them."""
    admission = service(0.2, 300, calls=2)
    for number in range(10_000):
        at_ns = 60 * S + number * 6 * S // 1000
        admission.used(at_ns, round(48 * S + (at_ns - 60 * S) * 0.8), 2)
    assert len(admission._usage) <= 122
    assert admission.per_call() == pytest.approx(0.2)
    admission.used(at_ns, round(48 * S + (at_ns - 60 * S) * 0.8), 3)
    admission.used(at_ns + S // 2, round(48 * S + (at_ns - 60 * S) * 0.8 + 0.6 * S), 3)
    assert [calls for *_, calls in list(admission._usage)[-2:]] == [3, 3], "a call began between"


def test_time_without_calls_is_nobodys() -> None:
    admission = Admission(1)
    admission.used(0, 0, 1)
    admission.used(30 * S, 6 * S, 0)
    admission.used(59 * S, 20 * S, 1)  # others asked for text meanwhile
    admission.used(80 * S, round(24.2 * S), 1)
    assert admission.per_call() == pytest.approx(0.2)


@pytest.mark.parametrize("share", [0.2, 0.07, 0.013])
@pytest.mark.parametrize("ready_ms", [100, 250, 420])
def test_the_capacity_is_the_most_whose_forecast_is_within_the_budget(
    share: float, ready_ms: float
) -> None:
    admission = service(share, ready_ms)
    capacity = admission.capacity(60 * S)
    assert capacity is not None
    assert capacity >= 1
    assert predicted_ms(admission, capacity) <= 500
    assert predicted_ms(admission, capacity + 1) > 500


def test_the_capacity_is_known_from_turns_enough_and_may_be_none() -> None:
    assert Admission(2).capacity(60 * S) is None
    assert service(0.2, 600).capacity(60 * S) == 0
    assert service(0.2, 300).capacity(60 * S + EVIDENCE_NS + 1) is None
