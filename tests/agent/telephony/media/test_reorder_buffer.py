"""Frames that come in order are never held; others find their place, or are given up."""

from hypothesis import given
from hypothesis import strategies as st

from agent.telephony.media.reorder_buffer import MAX_EARLY, MAX_LATE, ReorderBuffer


def passed(places: list[int | None]) -> list[list[int]]:
    order: ReorderBuffer[int] = ReorderBuffer()
    return [order.push(place, place or 0) for place in places]


def test_frames_in_order_are_passed_on_at_once() -> None:
    assert passed([7, 8, 9]) == [[7], [8], [9]]
    assert passed([None, None]) == [[0], [0]]


def test_frames_that_changed_places_change_back() -> None:
    assert passed([1, 3, 2, 4]) == [[1], [], [2, 3], [4]]


def test_what_is_lost_is_not_waited_for() -> None:
    order: ReorderBuffer[int] = ReorderBuffer()
    got = [order.push(place, place) for place in (1, *range(3, 3 + MAX_EARLY + 1))]
    assert got == [[1], *[[]] * MAX_EARLY, list(range(3, 3 + MAX_EARLY + 1))]
    assert order.lost == 1
    assert order.push(2, 2) == []
    assert order.late == 1


def test_a_frame_that_comes_twice_is_heard_once() -> None:
    assert passed([1, 1, 2, 4, 4, 3]) == [[1], [], [2], [], [], [3, 4]]


def test_a_carrier_that_counts_anew_is_heard_again() -> None:
    places = [*range(500, 520), *range(1, 60)]
    heard = [place for ready in passed(list(places)) for place in ready]
    assert heard == [*range(500, 520), *range(1 + MAX_LATE, 60)]


def test_a_burst_of_late_frames_is_no_new_count() -> None:
    order: ReorderBuffer[int] = ReorderBuffer()
    places = [1, *range(11, 20), *range(2, 2 + MAX_LATE - 1), *range(20, 40)]
    heard = [each for place in places for each in order.push(place, place)]
    assert heard == [1, *range(11, 40)]
    assert (order.lost, order.late) == (9, 9)


@given(st.lists(st.integers(0, 40), max_size=MAX_LATE + 1))
def test_nothing_is_heard_twice_or_out_of_order(places: list[int]) -> None:
    heard = [place for ready in passed(list(places)) for place in ready]
    assert heard == sorted(set(heard))


@given(st.permutations(range(MAX_EARLY)))
def test_a_shuffle_of_a_few_frames_loses_none(places: list[int]) -> None:
    order: ReorderBuffer[int] = ReorderBuffer()
    heard = order.push(-1, -1)
    for place in places:
        heard += order.push(place, place)
    assert heard == [-1, *range(MAX_EARLY)]
