"""The rule of attribution: examples worked by hand, and what holds for any spans whatever."""

from itertools import pairwise
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from latency_budget import Span, Stage
from latency_budget.account.critical_path import busy_ns, critical_path

TIMES = st.integers(min_value=-200, max_value=400)
ANY_SPAN = st.builds(Span, st.sampled_from(list(Stage)), TIMES, TIMES)
"""Overlapping, nested, empty, reversed, before the origin, after the end."""


def charged(origin_ns: int, end_ns: int, *spans: Span) -> list[tuple[str, int, int]]:
    path = critical_path(origin_ns, end_ns, spans)
    return [(span.stage.value, span.start_ns, span.end_ns) for span in path]


def test_a_chain_is_charged_as_it_ran() -> None:
    assert charged(
        0, 60, Span(Stage.CAPTURE, 0, 10), Span(Stage.ASR, 10, 40), Span(Stage.TTS, 40, 60)
    ) == [("capture", 0, 10), ("asr", 10, 40), ("tts", 40, 60)]


def test_work_behind_the_last_to_finish_is_free() -> None:
    assert charged(
        0,
        100,
        Span(Stage.CAPTURE, 0, 10),
        Span(Stage.ASR, 10, 60),
        Span(Stage.LLM_PREFILL, 60, 80),
        Span(Stage.ENDPOINT, 10, 100),
    ) == [("capture", 0, 10), ("endpoint", 10, 100)]


def test_a_gap_is_charged_to_the_stage_that_queued() -> None:
    assert charged(
        0, 60, Span(Stage.CAPTURE, 0, 10), Span(Stage.ASR, 10, 30), Span(Stage.TTS, 50, 60)
    ) == [("capture", 0, 10), ("asr", 10, 30), ("tts", 30, 50), ("tts", 50, 60)]


def test_a_gap_before_the_end_is_pacing_and_one_after_the_origin_is_capture() -> None:
    assert charged(0, 60, Span(Stage.TTS, 20, 50)) == [
        ("capture", 0, 20),
        ("tts", 20, 50),
        ("pacing", 50, 60),
    ]


def test_nothing_known_is_one_first_gap() -> None:
    assert charged(0, 60) == [("capture", 0, 60)]
    assert critical_path(0, 60, (), first_gap=Stage.LLM_PREFILL) == (
        Span(Stage.LLM_PREFILL, 0, 60),
    )


def test_work_that_began_before_the_origin_is_charged_from_the_origin() -> None:
    assert charged(0, 60, Span(Stage.LLM_PREFILL, -500, 40), Span(Stage.TTS, 40, 60)) == [
        ("llm_prefill", 0, 40),
        ("tts", 40, 60),
    ]


def test_work_that_ended_before_the_origin_is_charged_nothing() -> None:
    assert charged(0, 60, Span(Stage.ASR, -50, 0), Span(Stage.TTS, 0, 60)) == [("tts", 0, 60)]


def test_a_span_still_running_was_not_waited_for() -> None:
    assert charged(0, 60, Span(Stage.ASR, 10, 45), Span(Stage.TTS, 40, 60)) == [
        ("capture", 0, 40),
        ("tts", 40, 60),
    ]


def test_of_two_that_end_together_the_later_stage_is_charged() -> None:
    spans = (Span(Stage.ENDPOINT, 0, 60), Span(Stage.TTS, 20, 60))
    assert charged(0, 60, *spans) == charged(0, 60, *reversed(spans))
    assert charged(0, 60, *spans) == [("capture", 0, 20), ("tts", 20, 60)]


@given(TIMES, TIMES, st.lists(ANY_SPAN, max_size=12))
@example(0, 100, [Span(Stage.ASR, 50, 50), Span(Stage.TTS, 100, 100)])
def test_every_nanosecond_is_charged_once(origin_ns: int, end_ns: int, spans: list[Span]) -> None:
    path = critical_path(origin_ns, end_ns, spans)
    if end_ns <= origin_ns:
        assert path == ()
        return
    assert path[0].start_ns == origin_ns
    assert path[-1].end_ns == end_ns
    assert all(span.start_ns < span.end_ns for span in path)
    assert all(a.end_ns == b.start_ns for a, b in pairwise(path))
    assert sum(span.end_ns - span.start_ns for span in path) == end_ns - origin_ns


@given(TIMES, TIMES, st.lists(ANY_SPAN, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_spans_does_not_matter(
    origin_ns: int,
    end_ns: int,
    spans: list[Span],
    random: Random,
) -> None:
    shuffled = list(spans)
    random.shuffle(shuffled)
    assert critical_path(origin_ns, end_ns, shuffled) == critical_path(origin_ns, end_ns, spans)


@given(st.lists(ANY_SPAN, max_size=12))
def test_busy_time_is_the_size_of_the_union(spans: list[Span]) -> None:
    instants = {at for span in spans for at in range(span.start_ns, span.end_ns)}
    assert busy_ns(spans) == len(instants)
