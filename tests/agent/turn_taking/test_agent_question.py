"""What the agent asked, and how far words of the caller answer it, by table."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.session.api.settings import Eagerness
from agent.turn_taking.dialogue.agent_question import (
    NO_QUESTION,
    AgentQuestion,
    QuestionKind,
    question_of,
)
from agent.turn_taking.dialogue.answer_state import AnswerState, answer_state
from agent.turn_taking.end_of_turn import TurnRules, required_silence_ms
from agent.turn_taking.end_of_turn_model import EAGERNESS, Evidence, shipped_score
from agent.turn_taking.thresholds import (
    DANGLING_MS,
    MAX_NUMBER_MS,
    PARTIAL_ANSWER_MS,
)

BOOK = "I have a table at seven. Shall I book it?"
HELP = "Can I help you with anything else?"
CHECK = "So that's 555 1234, is that right?"
DRINK = "Would you like tea or coffee?"
PHONE = "Sure, and what's your phone number?"
PIN = "Please tell me your four digit PIN."
LAST_FOUR = "Could I get the last 4 of your social security number?"
ORDER = "May I have your order number, please?"
BORN = "And your date of birth?"
ZIP = "What's your zip code?"
SPELL = "Could you spell your last name for me?"
NAME = "Who am I speaking with? May I have your name?"
EMAIL = "What email address should I send it to?"
ADDRESS = "What's your address?"
OPEN = "What can I do for you today?"
STATEMENT = "Your table is booked for seven."

KINDS: tuple[tuple[str, QuestionKind], ...] = (
    (BOOK, "yes_no"),
    (HELP, "yes_no"),
    (CHECK, "yes_no"),
    ("Is your phone number 555 1234?", "yes_no"),
    ("Are you calling about an existing order?", "yes_no"),
    ("Is 3 p.m. okay for you?", "yes_no"),
    ("Do you want me to call Dr. Smith now?", "yes_no"),
    ("Do you need a new PIN?", "yes_no"),
    ("May I put you on hold?", "yes_no"),
    ("Anything else?", "yes_no"),
    (DRINK, "choice"),
    ("Which do you prefer, the morning or the afternoon?", "choice"),
    ("Tea or coffee?", "choice"),
    (PHONE, "number"),
    (PIN, "number"),
    (LAST_FOUR, "number"),
    (ORDER, "number"),
    (BORN, "number"),
    (ZIP, "number"),
    ("I'll need your account number.", "number"),
    ("Please enter the six-digit code.", "number"),
    ("What number can we reach you at?", "number"),
    ("What's your phone number? You can say it slowly.", "number"),
    ("Do you have your booking number, or shall I look it up?", "number"),
    (SPELL, "spelling"),
    (NAME, "spelling"),
    (EMAIL, "spelling"),
    (ADDRESS, "spelling"),
    ("How do you spell that?", "spelling"),
    (OPEN, "open"),
    ("Could you tell me more about the problem?", "open"),
    ("What number of guests do you expect?", "open"),
    ("Why do you need a new PIN?", "open"),
    ("How many digits does it have?", "open"),
    (STATEMENT, "none"),
    ("I sent the code to your phone.", "none"),
    ("What's your phone number? Never mind. I have it here.", "none"),
    ("", "none"),
    ("...", "none"),
)


@pytest.mark.parametrize(("text", "kind"), KINDS)
def test_kind_of_the_question(text: str, kind: QuestionKind) -> None:
    assert question_of(text).kind == kind


@pytest.mark.parametrize(
    ("text", "named", "least"),
    [
        (PIN, 4, 4),
        (LAST_FOUR, 4, 4),
        ("Please enter the six-digit code.", 6, 6),
        ("What is your 10-digit phone number?", 10, 10),
        ("Your PIN, four to six digits, please?", None, 4),
        ("Please say the 4 or 6 digit code.", None, 0),
        (PHONE, None, 7),
        (ORDER, None, 0),
        ("What's the number on your credit card?", None, 15),
        ("What's the security code?", None, 3),
    ],
)
def test_digits_that_a_question_names(text: str, named: int | None, least: int) -> None:
    question = question_of(text)
    assert (question.kind, question.num_digits, question.least_digits) == ("number", named, least)


ANSWERS: tuple[tuple[str, str, AnswerState], ...] = (
    # yes or no
    (BOOK, "Yes.", "whole"),
    (BOOK, "Yes", "whole"),
    (BOOK, "Yes, please.", "whole"),
    (BOOK, "No thanks.", "whole"),
    (BOOK, "That's right.", "whole"),
    (BOOK, "Yeah, sure, go ahead.", "whole"),
    (BOOK, "No, I don't think so.", "whole"),
    (BOOK, "Yes,", "unknown"),
    (BOOK, "Yes...", "unknown"),
    (BOOK, "Yes?", "unknown"),
    (BOOK, "Yes, but", "unknown"),
    (BOOK, "Yes, I am", "unknown"),
    (BOOK, "Yes, I am.", "whole"),
    (BOOK, "Yes, for six people.", "unknown"),
    (BOOK, "I would like", "unknown"),
    (BOOK, "5 5 5", "unknown"),
    (HELP, "No, thank you.", "whole"),
    (HELP, "No, that's all.", "whole"),
    (HELP, "Yes.", "unknown"),
    (CHECK, "Yes, that's correct.", "whole"),
    (CHECK, "No.", "unknown"),
    # one of several
    (DRINK, "Tea.", "whole"),
    (DRINK, "Coffee, please.", "whole"),
    (DRINK, "I'd like tea.", "whole"),
    (DRINK, "The first one.", "whole"),
    (DRINK, "Yes.", "unknown"),
    (DRINK, "Would you", "unknown"),
    (DRINK, "Tea or", "unknown"),
    (DRINK, "Tea with lemon.", "unknown"),
    # digits
    (PHONE, "555", "partial"),
    (PHONE, "555.", "partial"),
    (PHONE, "5 5 5,", "partial"),
    (PHONE, "five five five", "partial"),
    (PHONE, "Sure, it's five five five", "partial"),
    (PHONE, "It's double five, oh", "partial"),
    (PHONE, "One", "partial"),
    (PHONE, "555-1234", "unknown"),
    (PHONE, "double five five one two three four", "unknown"),
    (PHONE, "I don't have one.", "unknown"),
    (PHONE, "You can reach me at 555", "partial"),
    (PHONE, "And if there is a", "unknown"),
    (PHONE, "That was March at 2", "unknown"),
    (PHONE, "Sure.", "unknown"),
    (PHONE, "Let me look it up.", "unknown"),
    (PIN, "one two", "partial"),
    (PIN, "12.", "partial"),
    (PIN, "1, 2, 3,", "partial"),
    (PIN, "one two three four", "whole"),
    (PIN, "1234.", "whole"),
    (PIN, "It's double oh seven", "partial"),
    (PIN, "It's double oh seven five", "whole"),
    (PIN, "twelve thirty four", "whole"),
    (PIN, "1 2 3 4 5", "unknown"),
    (PIN, "I don't know it.", "unknown"),
    (LAST_FOUR, "9 9", "partial"),
    (LAST_FOUR, "nine nine eight seven", "whole"),
    (ORDER, "77", "reading"),
    (ORDER, "A 7 7.", "reading"),
    (ORDER, "I ordered two", "unknown"),
    (BORN, "May 5", "partial"),
    (BORN, "May 5th, 1980.", "unknown"),
    (BORN, "05 12 80", "unknown"),
    (ZIP, "902", "partial"),
    (ZIP, "9 0 2 1 0.", "unknown"),
    # letters
    (SPELL, "S", "reading"),
    (SPELL, "S M", "reading"),
    (SPELL, "S-M.", "reading"),
    (SPELL, "S M I T", "unknown"),
    (SPELL, "It's S as in Sam, M", "reading"),
    (SPELL, "Smith, S-M-I-T-H.", "whole"),
    (SPELL, "Smith.", "unknown"),
    (NAME, "John Smith.", "unknown"),
    (NAME, "John, S M", "reading"),
    (NAME, "I am not sure about plan B", "unknown"),
    (EMAIL, "john dot", "partial"),
    (EMAIL, "john.smith@gmail", "partial"),
    (EMAIL, "john smith at gmail", "partial"),
    (EMAIL, "j o h n", "reading"),
    (EMAIL, "john.smith@gmail.com.", "whole"),
    (EMAIL, "john dot smith at gmail dot com", "whole"),
    (EMAIL, "I don't have one.", "unknown"),
    (ADDRESS, "741", "partial"),
    (ADDRESS, "Seven, four.", "partial"),
    (ADDRESS, "741 Ridge Road", "unknown"),
    (ADDRESS, "3 M E A D", "reading"),
    # no question that says more
    (OPEN, "Yes.", "unknown"),
    (OPEN, "5 5 5", "unknown"),
    (STATEMENT, "Yes.", "unknown"),
    (PHONE, "", "unknown"),
    (PHONE, "  ", "unknown"),
    (PHONE, "?!", "unknown"),
)


@pytest.mark.parametrize(("asked", "words", "state"), ANSWERS)
def test_how_far_the_words_answer(asked: str, words: str, state: AnswerState) -> None:
    assert answer_state(question_of(asked), words) == state


def test_a_greeting_asks_neither_for_yes_nor_for_a_choice() -> None:
    assert question_of("Hello! Can you hear me?", is_greeting=True) == NO_QUESTION
    assert question_of("Hi. Sales or support?", is_greeting=True) == NO_QUESTION
    assert question_of("Welcome. What's your PIN?", is_greeting=True).least_digits == 4


@pytest.mark.parametrize("language", ["de", "es", "fr", "pt"])
def test_other_languages_have_no_question(language: str) -> None:
    assert question_of("Shall I book it?", language=language) == NO_QUESTION


EVERY_QUESTION = st.sampled_from([text for text, _ in KINDS]).map(question_of)
WORDS = st.text() | st.sampled_from([words for _, words, _ in ANSWERS])
SOUNDS = st.none() | st.floats(-6, 6)


@settings(derandomize=True)
@given(st.text())
def test_any_text_is_classified(text: str) -> None:
    assert isinstance(question_of(text), AgentQuestion)


@settings(derandomize=True, max_examples=300)
@given(EVERY_QUESTION, WORDS, SOUNDS, st.sampled_from(EAGERNESS))
def test_a_whole_answer_ends_no_later_and_a_part_no_sooner(
    question: AgentQuestion, words: str, sound: float | None, eagerness: Eagerness
) -> None:
    score = shipped_score()
    before = score.wait_ms(Evidence(words, sound), eagerness)
    after = score.wait_ms(Evidence(words, sound, question=question), eagerness)
    match answer_state(question, words):
        case "whole":
            assert score.releases["high"].least_ms <= after <= before
        case "partial":
            assert after == max(before, PARTIAL_ANSWER_MS)
        case "reading":
            assert before <= after <= max(before, MAX_NUMBER_MS)
        case "unknown":
            assert after == before


def wait_ms(asked: str, words: str, sound: float | None) -> int:
    return required_silence_ms(TurnRules(), Evidence(words, sound, question=question_of(asked)))


def test_an_answer_of_undecided_sound_ends_at_the_least() -> None:
    least_ms = shipped_score().releases["auto"].least_ms
    assert wait_ms(BOOK, "Yes.", 0.0) == least_ms < wait_ms("", "Yes.", 0.0)
    assert wait_ms(PIN, "1 2 3 4", 0.0) < wait_ms("", "1 2 3 4", 0.0)


def test_an_answer_that_sounds_as_if_it_went_on_waits_as_long_as_any() -> None:
    assert wait_ms(BOOK, "Yes.", -2.0) == wait_ms("", "Yes.", -2.0) == 1000


def test_a_bare_first_group_has_as_long_as_a_number() -> None:
    assert wait_ms(PHONE, "555.", 6.0) == PARTIAL_ANSWER_MS > wait_ms("", "555.", 6.0)
    assert wait_ms(ORDER, "77.", -6.0) == MAX_NUMBER_MS > wait_ms("", "77.", -6.0)


def test_a_dangling_word_outlasts_the_question() -> None:
    assert wait_ms(BOOK, "Yes, and", 6.0) == DANGLING_MS


def test_an_explicit_silence_is_literal_after_any_question() -> None:
    rules = TurnRules(silence_ms=350)
    assert required_silence_ms(rules, Evidence("555", question=question_of(PHONE))) == 350
