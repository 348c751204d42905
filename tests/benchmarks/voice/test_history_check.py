"""The history beside what was played, as far as a client can tell."""

import numpy as np
import pytest

from agent.client import events as ev
from benchmarks.voice.history_check import HeardWords

RATE_HZ = 1000
FIRST, SECOND = "Sure, one moment please. ", "The office is open until five o'clock today."


def words_of(*stretches: tuple[str, float], status: str = "cancelled") -> HeardWords:
    """A reply in stretches of text, each with as many seconds of audio."""
    words = HeardWords()
    for text, seconds in stretches:
        words.note(ev.ReplyText("r", "i", text, 0))
        for part in np.array_split(np.zeros(round(seconds * RATE_HZ), np.int16), 3):
            words.note(ev.ReplyAudio("r", "i", part, RATE_HZ, 0))
    words.note(ev.ReplyDone("r", status, None, "", None, {}, 0))
    return words


def complaint(words: HeardWords, history: str, played_s: float) -> str | None:
    words.note(ev.ItemRetrieved("i", history, 0))
    return words.complaint("i", played_s)


def test_a_reply_that_was_heard_to_its_end() -> None:
    words = words_of((FIRST, 1.6), (SECOND, 3.0), status="completed")
    assert complaint(words, FIRST + SECOND, 4.6) is None
    assert "were played" in (complaint(words, FIRST, 4.6) or "")


def test_what_is_not_spoken_is_part_of_a_reply_that_was_sent_to_its_end() -> None:
    code = "```\nhalfsec serve"
    for status in ("completed", "incomplete"):  # the second by its limit of tokens
        words = words_of((FIRST, 1.6), (code, 0.0), status=status)
        assert complaint(words, FIRST + code, 1.6) is None
    assert "were played" in (
        complaint(words_of((FIRST, 1.6), (code, 0.0)), FIRST + code, 1.0) or ""
    )


def test_a_long_number_is_one_word() -> None:
    words = words_of(("Your password is: 1234567890.", 4.0))
    assert complaint(words, "Your password is: ", 3.0) is None
    assert "were played" in (complaint(words, "Your ", 3.0) or "")


@pytest.mark.parametrize(
    ("history", "played_s"),
    [
        ("", 0.0),
        ("Sure,", 0.5),
        (FIRST, 1.7),
        (FIRST.rstrip(". "), 2.3),
        (FIRST + "The", 1.8),
        (FIRST + "The office is open", 2.9),
    ],
)
def test_the_words_that_were_heard(history: str, played_s: float) -> None:
    assert complaint(words_of((FIRST, 1.6), (SECOND, 1.4)), history, played_s) is None


@pytest.mark.parametrize(
    ("history", "played_s", "why"),
    [
        (FIRST + SECOND, 1.8, "were played"),
        ("", 1.7, "were played"),
        ("Sure, one moment", 2.3, "were played"),
        (FIRST + "The office is open until five", 1.7, "were played"),
        ("Sure, one mom", 1.0, "inside a word"),
        ("Sure, two", 1.0, "no beginning"),
    ],
)
def test_other_words(history: str, played_s: float, why: str) -> None:
    assert why in (complaint(words_of((FIRST, 1.6), (SECOND, 1.4)), history, played_s) or "")


def test_of_an_item_that_nobody_asked_about_nothing_is_said() -> None:
    assert words_of((FIRST, 1.6)).complaint("i", 0.1) is None
    assert words_of((FIRST, 1.6)).items == {"r": "i"}
