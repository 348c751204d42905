"""Classification of speech over the agent: backchannel, answer, echo, or interruption."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import languages
from agent.turn_taking.backchannel import (
    _is_listening,
    _may_be_listening,
    asks,
    meaning,
    takes_floor,
)
from agent.turn_taking.barge_in import _is_said_again
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.state import TurnState
from agent.turn_taking.thresholds import (
    BRIEF_MS,
    BRIEF_WORD_MS,
    FLOOR_AFTER_MS,
    SOUNDS_ALIKE_MS,
)
from languages import TurnWords
from languages.sounds_alike import sound_key

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


@given(st.sampled_from(languages.ENGLISH.turn_words.backchannels), st.integers(0, 20))
def test_no_beginning_of_a_backchannel_takes_the_floor(part: tuple[str, ...], num: int) -> None:
    assert not takes_floor(" ".join(part[:num]), HEARD, LEFT)


def test_the_end_of_a_sentence_is_looked_for_once_in_many_marks() -> None:
    """From each mark anew it would take the time that a test has."""
    assert asks("Are you", "." * 200_000 + "x sure?")


class Counted(list[str]):
    """Words that count how often some of them are taken."""

    num_taken = 0

    def __getitem__(self, at: Any) -> Any:
        self.num_taken += 1
        return super().__getitem__(at)


@pytest.mark.parametrize("known", [each.turn_words for each in languages.PROFILES.values()])
def test_a_long_text_is_no_backchannel_whatever_its_words(known: TurnWords) -> None:
    words = Counted(["a"] * 10_000)
    assert not _may_be_listening(words, known)
    assert not _is_listening(words, known)
    assert not words.num_taken


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=60))
def test_any_text_has_a_meaning(text: str, heard: str, left: str) -> None:
    if takes_floor(text, heard, left) and "?" not in text:
        assert meaning(text, heard, left) in ("words",)


@pytest.mark.parametrize(
    ("text", "longest_ms"),
    [
        ("Mama.", SOUNDS_ALIKE_MS), ("MUM.", SOUNDS_ALIKE_MS), ("Write.", SOUNDS_ALIKE_MS),
        ("Share.", SOUNDS_ALIKE_MS), ("IZ", BRIEF_WORD_MS), ("Eh.", SOUNDS_ALIKE_MS),
        ("Shimmer", BRIEF_WORD_MS), ("Daphne.", BRIEF_WORD_MS), ("You do.", BRIEF_MS),
        ("I've heard.", BRIEF_MS),
    ],
)  # fmt: skip
def test_a_misheard_backchannel_is_known_by_its_length(text: str, longest_ms: int) -> None:
    assert meaning(text, HEARD, LEFT) == "words"
    assert meaning(text, HEARD, LEFT, voice_ms=longest_ms) == "brief"
    assert meaning(text, HEARD, LEFT, voice_ms=longest_ms + 1) == "words"
    assert meaning(text, "Shall I", " book it?", voice_ms=longest_ms) == "words"


@pytest.mark.parametrize(
    "text",
    [
        "Stop.", "No.", "Wait", "Hold on.", "Who?", "Who are?", "Thursday.", "Help!", "Start.",
        "What?",
    ],
)  # fmt: skip
def test_words_that_interrupt_do_so_however_short(text: str) -> None:
    assert meaning(text, HEARD, LEFT, voice_ms=100) == "words"


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("Oh, really?", "listening"), ("Yeah?", "listening"), ("Wow?", "listening"),
        ("Okay?", "words"), ("Hm?", "words"), ("Right?", "words"), ("Huh?", "words"),
    ],
)  # fmt: skip
def test_a_question_mark_is_surprise_or_a_request(text: str, means: str) -> None:
    assert meaning(text, HEARD, LEFT, voice_ms=1000) == means
    assert meaning(text, HEARD, LEFT) == "words"


@pytest.mark.parametrize("known", [languages.turn_words("de"), TurnWords()])
def test_in_other_languages_the_words_alone_decide(known: TurnWords) -> None:
    assert meaning("Mama.", HEARD, LEFT, known, voice_ms=100) == "words"
    assert meaning("Ja?", HEARD, LEFT, known, voice_ms=100) == "words"


@pytest.mark.parametrize(
    ("text", "least_ms"),
    [
        ("Could you", FLOOR_AFTER_MS), ("Yeah, but", FLOOR_AFTER_MS), ("Stop it", 0), ("No, I", 0),
    ],
)  # fmt: skip
def test_a_partial_takes_the_floor_once_the_voice_has_lasted(text: str, least_ms: int) -> None:
    assert takes_floor(text, HEARD, LEFT, voice_ms=least_ms)
    assert not least_ms or not takes_floor(text, HEARD, LEFT, voice_ms=least_ms - 1)


@pytest.mark.parametrize(
    ("text", "same_as"),
    [
        ("mama", "mm hmm"), ("mum", "mhm"), ("write", "right"), ("share", "sure"), ("iz", "i see"),
        ("uh", "ah"), ("aha", "uh huh"), ("kay", "okay"), ("yee y", "yeah"), ("daddy", "dad"),
    ],
)  # fmt: skip
def test_what_sounds_alike_has_one_key(text: str, same_as: str) -> None:
    assert sound_key(text.split()) == sound_key(same_as.split())


@pytest.mark.parametrize(
    ("text", "other"),
    [("stop", "sure"), ("wait", "wow"), ("no", "mm"), ("hold on", "oh"), ("write", "write now")],
)
def test_what_sounds_different_has_another(text: str, other: str) -> None:
    assert sound_key(text.split()) != sound_key(other.split())


@pytest.mark.parametrize(
    "text", ["End.", "Undo.", "Call.", "Now!", "Get out.", "Home.", "Phone.", "Sue.", "House."]
)
def test_short_commands_and_names_are_no_backchannels(text: str) -> None:
    """Their consonants are those of "indeed", "cool", "I know", "got it", "mm", "I see"."""
    assert meaning(text, "Your parcel", " is on its way.", voice_ms=600) == "words"


@pytest.mark.parametrize("text", ["Mama.", "Oh.", "Write.", "Cull."])
def test_what_sounds_like_a_backchannel_still_is_one(text: str) -> None:
    assert meaning(text, "Your parcel", " is on its way.", voice_ms=600) in ("brief", "listening")


@pytest.mark.parametrize(
    ("before", "after_s", "means_it"),
    [("Bonnet.", 3, True), ("Bonnet.", 11, False), ("Wednesday.", 3, False), (None, 3, False)],
)
def test_who_says_a_short_word_again_means_it(
    before: str | None, after_s: int, means_it: bool
) -> None:
    state = TurnState(TurnRules(), text="Bonnet.")
    state.last_brief = None if before is None else (before, 1_000)
    assert _is_said_again(state, 1_000 + after_s * 1_000_000_000) == means_it
