import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.speech_detection.endpointing import (
    Endpointer,
    EndpointEvent,
    EndpointingConfig,
    SilenceGrew,
    SpeechPaused,
    SpeechResumed,
    SpeechStarted,
)
from asr.speech_detection.vad import FRAME


def run(endpointer: Endpointer, probabilities: list[float], first: int = 0) -> list[EndpointEvent]:
    events: list[EndpointEvent] = []
    for index, probability in enumerate(probabilities, first):
        events += endpointer.push(probability, index * FRAME)
    return events


def frames(pattern: str) -> list[float]:
    """`#` voiced, `.` silent, `~` in between."""
    return [{"#": 0.9, ".": 0.1, "~": 0.4}[char] for char in pattern]


def heard(pattern: str, **config: float) -> list[EndpointEvent]:
    return run(Endpointer(EndpointingConfig(**config)), frames(pattern))  # type: ignore[arg-type]


def test_a_word_and_the_silence_after_it() -> None:
    assert heard("..#####.....") == [
        SpeechStarted(1, 2 * FRAME),
        SpeechPaused(1, 7 * FRAME),
        SilenceGrew(1, 128),
        SilenceGrew(1, 160),
    ]


def test_clicks_do_not_start_speech() -> None:
    assert heard("..#....##...#.##....") == []


def test_an_onset_may_waver_but_not_break() -> None:
    assert heard(".#~#") == [SpeechStarted(1, FRAME)]
    assert heard(".##.#~#")[-1:] == [SpeechStarted(1, 4 * FRAME)]


def test_stops_inside_words_are_no_pause() -> None:
    assert heard("####..####..##") == [SpeechStarted(1, 0)]


def test_in_between_does_not_interrupt_a_silence() -> None:
    assert heard("####.~~") == [SpeechStarted(1, 0), SpeechPaused(1, 4 * FRAME)]
    assert heard("####~~~~~~") == [SpeechStarted(1, 0)]


def test_a_breath_does_not_end_a_pause_and_silence_does_not_grow_under_it() -> None:
    assert heard("####...#..") == [
        SpeechStarted(1, 0),
        SpeechPaused(1, 4 * FRAME),
        SilenceGrew(1, 160),
        SilenceGrew(1, 192),
    ]


def levels(pattern: str, loud: str) -> list[EndpointEvent]:
    """`loud`: `#` all of a frame, `-` its first half, `.` nothing."""
    endpointer = Endpointer(EndpointingConfig())
    events: list[EndpointEvent] = []
    for index, (probability, level) in enumerate(zip(frames(pattern), loud, strict=True)):
        num_loud = {"#": FRAME, "-": FRAME // 2, ".": 0}[level]
        events += endpointer.push(probability, index * FRAME, num_loud=num_loud)
    return events


def test_silence_begins_where_the_voice_is_not_loud_any_more() -> None:
    assert levels("########.", "####-....") == [
        SpeechStarted(1, 0),
        SpeechPaused(1, 4 * FRAME + FRAME // 2),
        SilenceGrew(1, 112),
        SilenceGrew(1, 144),
    ]


def test_the_level_says_nothing_before_an_utterance() -> None:
    assert levels("####", "....") == [SpeechStarted(1, 0)]


def test_a_short_sound_in_a_pause_makes_it_begin_anew() -> None:
    assert levels("####...~....", "####...-....") == [
        SpeechStarted(1, 0),
        SpeechPaused(1, 4 * FRAME),
        SilenceGrew(1, 16),
        SilenceGrew(1, 48),
        SpeechPaused(1, 7 * FRAME + FRAME // 2),
        SilenceGrew(1, 112),
        SilenceGrew(1, 144),
    ]


def test_a_click_in_a_pause_is_no_sound_of_the_caller() -> None:
    assert levels("####......", "####...#..")[2:] == [
        SilenceGrew(1, 128),
        SilenceGrew(1, 160),
        SilenceGrew(1, 192),
    ]


def test_going_on_after_a_pause() -> None:
    assert heard("####....####...") == [
        SpeechStarted(1, 0),
        SpeechPaused(1, 4 * FRAME),
        SilenceGrew(1, 128),
        SpeechResumed(1, 8 * FRAME),
        SpeechPaused(1, 12 * FRAME),
    ]


def test_the_durations_are_settings() -> None:
    assert heard("##.", min_speech_ms=64) == [SpeechStarted(1, 0)]
    assert heard("####......", pause_ms=160)[1] == SpeechPaused(1, 4 * FRAME)
    assert len(heard("####......", pause_ms=160)) == 3
    assert SpeechResumed(1, 7 * FRAME) in heard("####...#", min_resume_ms=32)


def test_after_the_end_speech_is_a_new_utterance() -> None:
    endpointer = Endpointer(EndpointingConfig())
    run(endpointer, frames("####...."))
    endpointer.end(1)
    assert not endpointer.is_open
    assert run(endpointer, frames("...####"), 8) == [SpeechStarted(2, 11 * FRAME)]
    assert endpointer.is_open


def test_speech_that_had_resumed_when_the_end_came_is_the_next_utterance() -> None:
    endpointer = Endpointer(EndpointingConfig())
    run(endpointer, frames("####....##"))
    endpointer.end(1)
    assert run(endpointer, frames("....."), 10) == [
        SpeechStarted(2, 8 * FRAME),
        SpeechPaused(2, 11 * FRAME),
        SilenceGrew(2, 128),
    ]


def test_a_resumption_that_had_begun_when_the_end_came_is_an_onset() -> None:
    endpointer = Endpointer(EndpointingConfig())
    run(endpointer, frames("####....#"))
    endpointer.end(1)
    assert run(endpointer, frames("##"), 9) == [SpeechStarted(2, 8 * FRAME)]


def test_speech_that_is_ended_without_a_pause_must_begin_anew() -> None:
    endpointer = Endpointer(EndpointingConfig())
    run(endpointer, frames("######"))
    endpointer.end(1)
    assert run(endpointer, frames("####"), 6) == [SpeechStarted(2, 6 * FRAME)]


def test_the_end_of_another_utterance_is_ignored() -> None:
    endpointer = Endpointer(EndpointingConfig())
    endpointer.end(1)
    run(endpointer, frames("####"))
    endpointer.end(2)
    assert (endpointer.is_open, endpointer.utterance) == (True, 1)


def test_reset_uses_up_the_number() -> None:
    endpointer = Endpointer(EndpointingConfig())
    run(endpointer, frames("####...."))
    endpointer.reset()
    assert run(endpointer, frames("####"), 8) == [SpeechStarted(2, 8 * FRAME)]


def test_time_does_not_go_back() -> None:
    endpointer = Endpointer(EndpointingConfig())
    endpointer.push(0.9, FRAME)
    with pytest.raises(ValueError, match="comes before"):
        endpointer.push(0.9, FRAME)


@pytest.mark.parametrize(
    "settings",
    [
        {"speech_threshold": 0.3},
        {"silence_threshold": 0.0},
        {"speech_threshold": 1.0},
        {"pause_ms": -1},
    ],
)
def test_impossible_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="endpointing"):
        EndpointingConfig(**settings)  # type: ignore[arg-type]


@given(
    st.lists(st.floats(0, 1), max_size=200),
    st.lists(st.integers(0, 199), max_size=5),
)
def test_events_come_in_order(probabilities: list[float], ends: list[int]) -> None:
    """(started (paused grew*) (resumed (paused grew*))*)*, positions never go back."""
    endpointer = Endpointer(EndpointingConfig())
    may_follow: dict[type[EndpointEvent] | None, set[type[EndpointEvent]]] = {
        None: {SpeechStarted},
        SpeechStarted: {SpeechPaused},
        SpeechPaused: {SilenceGrew, SpeechResumed},
        SilenceGrew: {SilenceGrew, SpeechResumed},
        SpeechResumed: {SpeechPaused},
    }
    last: type[EndpointEvent] | None = None
    utterance, at_sample, silence_ms = 1, 0, 0
    for index, probability in enumerate(probabilities):
        for event in endpointer.push(probability, index * FRAME):
            assert type(event) in may_follow[last]
            assert event.utterance == utterance == endpointer.utterance
            if isinstance(event, SilenceGrew):
                assert event.silence_ms > silence_ms
                silence_ms = event.silence_ms
            else:
                assert at_sample <= event.at_sample < (index + 1) * FRAME
                at_sample, silence_ms = event.at_sample, 0
            last = type(event)
        if index in ends and endpointer.is_open:
            endpointer.end(utterance)
            utterance, last = utterance + 1, None


def test_overlapping_speech_must_last_longer() -> None:
    def onset(*, is_overlap: bool) -> int:
        endpointer = Endpointer(EndpointingConfig())
        for number in range(20):
            if endpointer.push(0.9, number * FRAME, is_overlap=is_overlap):
                return number + 1
        raise AssertionError("no onset")

    assert (onset(is_overlap=False), onset(is_overlap=True)) == (3, 5)
