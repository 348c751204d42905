import pytest

from asr.recognition.repetition import (
    compression_ratio,
    is_degenerate,
    loop_at,
    repeats_ending,
    unlooped,
)


def test_a_phrase_that_follows_itself_is_a_loop() -> None:
    tokens = [9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 7]
    assert loop_at(tokens) == (2, 3)
    assert unlooped(tokens) == (9, 8, 1, 2, 3)


def test_a_word_six_times_is_a_loop_and_four_times_a_number() -> None:
    assert loop_at([5] * 6) == (0, 1)
    assert loop_at([5] * 4) is None


def test_a_long_loop_is_found_by_its_compression() -> None:
    text = "I will be there in a minute, and you know that I never come late to anything. " * 4
    assert compression_ratio(text) > 2.4
    assert is_degenerate(text, range(40))


def test_an_empty_text_is_no_loop() -> None:
    assert not is_degenerate("", ())
    assert unlooped(()) == ()


@pytest.mark.parametrize(
    "text",
    [
        "Press 1 to call this number. Press 1 to call this number",
        "Press 2 to enter a different number. Press 2 to enter a",
        "Press 0 for mailbox options. Press 0 for mailbox options. Press 0 for mailbox",
        "April April",
        "no no no no",
    ],
)
def test_a_last_sentence_begun_again(text: str) -> None:
    assert repeats_ending(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yes",
        "It was the spring of hope, it was the winter of despair.",
        "Dial 1 to call now and forevermore. Dial 2 to send this caller away, now and forevermore.",
        "My number is 5 5 0 1 2 5.",
        "Press 4 to decrease the volume. Press 5 to increase the volume.",
    ],
)
def test_ordinary_repetitions_are_kept(text: str) -> None:
    assert not repeats_ending(text)
