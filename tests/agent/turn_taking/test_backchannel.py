"""Classification of speech over the agent: backchannel, answer, echo, or interruption."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.turn_taking.backchannel import BACKCHANNELS, asks, meaning, takes_floor

HEARD = "We are open from nine to five. On Sundays we are"
LEFT = " closed, and on holidays as well."


@pytest.mark.parametrize(
    "text",
    ["Mm-hmm.", "Uh-huh.", "Yeah", "Yeah, yeah.", "Okay, I see.", "RIGHT!", "Oh, okay.", "Got it."],
)
def test_listening(text: str) -> None:
    assert meaning(text, HEARD, LEFT) == "listening"
    assert not takes_floor(text, HEARD, LEFT)


@pytest.mark.parametrize(
    "text",
    [
        "No.", "Wait.", "Yeah, but when?", "Okay?", "Right, and on Monday", "Stop, okay.", "Hm?",
        "Yeah yeah yeah yeah.", "I see a problem.", "Table for two.", "Sundays?",
    ],
)  # fmt: skip
def test_words(text: str) -> None:
    assert meaning(text, HEARD, LEFT) == "words"


@pytest.mark.parametrize("text", ["", "  ", "...", "♪"])
def test_nothing(text: str) -> None:
    assert meaning(text, HEARD, LEFT) == "nothing"
    assert not takes_floor(text, HEARD, LEFT)


@pytest.mark.parametrize(
    "text", ["from nine to five", "On Sundays we are closed", "open for nine to five", "we are"]
)
def test_echo(text: str) -> None:
    """The recognizer gets some of it wrong."""
    assert meaning(text, HEARD, LEFT) == "echo"
    assert not takes_floor(text, HEARD, LEFT)


@pytest.mark.parametrize("text", ["From nine to five?", "nine", "we want nine people five times"])
def test_no_echo(text: str) -> None:
    """Asked back, a single word, and words that the agent has used as well."""
    assert meaning(text, HEARD, LEFT) == "words"


@pytest.mark.parametrize(
    ("heard", "left", "is_asked"),
    [
        ("Shall I", " book it?", True),
        ("Shall I book it?", "", True),
        ("Shall I book it?", " I can", True),
        ("Shall I book it? I can do", " that now.", True),
        ("Shall I book it? I can do that for you", " now.", False),
        ("It is booked.", " Shall I call?", False),
        (HEARD, LEFT, False),
        ("", "", False),
    ],
)
def test_questions(heard: str, left: str, is_asked: bool) -> None:
    assert asks(heard, left) == is_asked
    assert meaning("Yeah.", heard, left) == ("words" if is_asked else "listening")


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("Stop", True), ("No", True), ("Could", False), ("Could you", True), ("I", False),
        ("I see", False), ("I want", True), ("Yeah, but", True), ("Thank", False),
    ],
)  # fmt: skip
def test_beginnings(text: str, takes: bool) -> None:
    assert takes_floor(text, HEARD, LEFT) is takes


@given(st.sampled_from(BACKCHANNELS), st.integers(0, 20))
def test_no_beginning_of_a_backchannel_takes_the_floor(part: tuple[str, ...], num: int) -> None:
    assert not takes_floor(" ".join(part[:num]), HEARD, LEFT)


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_any_text_has_a_meaning(text: str, heard: str, left: str) -> None:
    if takes_floor(text, heard, left) and "?" not in text:
        assert meaning(text, heard, left) in ("words",)
