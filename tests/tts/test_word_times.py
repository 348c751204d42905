"""Times of words in speech: from phoneme durations, or in proportion."""

from hypothesis import given
from hypothesis import strategies as st

from tts.text.normalize import spoken_words
from tts.trim import Voiced
from tts.word_times import PhonemeGroup, time_words


def test_groups_that_match_are_exact() -> None:
    words = spoken_words("Hello big world.")
    groups = [PhonemeGroup(1000, 3000), PhonemeGroup(3500, 5000), PhonemeGroup(5200, 8000)]
    times = time_words(words, groups, Voiced(900, 8100), cut_off=700, first_char=40)
    assert [time.text_span for time in times] == [(40, 45), (46, 49), (50, 55)]
    assert [(time.start_sample, time.end_sample) for time in times] == [
        (200, 2300),
        (2800, 4300),
        (4500, 7400),
    ]
    assert not any(time.is_estimated for time in times)


def test_words_of_one_token_have_one_time() -> None:
    words = spoken_words("Pay $5 now")
    groups = [PhonemeGroup(start, start + 90) for start in (0, 100, 200, 300)]
    times = time_words(words, groups, Voiced(0, 390), cut_off=0, first_char=0)
    assert [(time.text_span, time.start_sample, time.end_sample) for time in times] == [
        ((0, 3), 0, 90),
        ((4, 6), 100, 290),
        ((7, 10), 300, 390),
    ]


def test_without_groups_time_is_shared_out_by_length() -> None:
    words = spoken_words("a considerably longer, word")
    times = time_words(words, (), Voiced(1000, 31_000), cut_off=800, first_char=0)
    assert all(time.is_estimated for time in times)
    lengths = [time.end_sample - time.start_sample for time in times]
    assert lengths[1] > lengths[2] > lengths[0]
    assert times[0].start_sample == 200
    assert times[-1].end_sample == 30_200
    # The comma's pause lies between the words around it.
    assert times[3].start_sample - times[2].end_sample > times[2].start_sample - times[1].end_sample


def test_a_contraction_is_shared_out_within_itself() -> None:
    words = spoken_words("the price of the tomatoes")
    spans = [(0, 900), (1000, 2900), (3000, 5000), (5100, 8000)]
    groups = [PhonemeGroup(start, end) for start, end in spans]
    times = time_words(words, groups, Voiced(0, 9000), cut_off=0, first_char=0)
    assert [times[i].start_sample for i in (0, 1, 2, 4)] == [0, 1000, 3000, 5100]
    assert 3000 < times[3].start_sample < 5000
    assert all(time.is_estimated for time in times)


def test_a_word_read_as_two_keeps_both() -> None:
    words = spoken_words("ask Zbigniewski now")
    spans = [(0, 1000), (1100, 2500), (2600, 4000), (4100, 5000)]
    groups = [PhonemeGroup(start, end) for start, end in spans]
    times = time_words(words, groups, Voiced(0, 5000), cut_off=0, first_char=0)
    assert (times[1].start_sample, times[1].end_sample) == (1100, 4000)
    assert times[2].start_sample == 4100


@given(st.integers(1, 12), st.integers(1, 12))
def test_any_number_of_groups_gives_ordered_times(num_words: int, num_groups: int) -> None:
    words = spoken_words(" ".join("abcdefghijkl"[:n] for n in range(1, num_words + 1)))
    groups = [PhonemeGroup(100 * n, 100 * n + 90) for n in range(num_groups)]
    times = time_words(words, groups, Voiced(0, 100 * num_groups), cut_off=0, first_char=0)
    assert len(times) == num_words
    edges = [edge for time in times for edge in (time.start_sample, time.end_sample)]
    assert edges == sorted(edges)


def test_times_are_ordered_and_inside() -> None:
    words = spoken_words("one two three")
    groups = [PhonemeGroup(-50, 10), PhonemeGroup(10, 90), PhonemeGroup(95, 500)]
    times = time_words(words, groups, Voiced(20, 100), cut_off=30, first_char=0)
    for time in times:
        assert 0 <= time.start_sample <= time.end_sample <= 70 or time is times[-1]
    assert [t.start_sample for t in times] == sorted(t.start_sample for t in times)
