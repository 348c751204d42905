"""What the agent asked, and how far words of the caller answer it, by table."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.session.api.settings import Eagerness
from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.dialogue.agent_question import (
    NO_QUESTION,
    AgentQuestion,
    QuestionKind,
    after_a_part,
    question_of,
)
from agent.turn_taking.dialogue.answer_state import AnswerState, answer_state
from agent.turn_taking.dialogue.open_words import DANGLING, LEANING
from agent.turn_taking.end_of_turn import TurnRules, required_silence_ms
from agent.turn_taking.end_of_turn_model import EAGERNESS, Evidence, shipped_score
from agent.turn_taking.machine import TurnTaking
from agent.turn_taking.state import TurnState
from agent.turn_taking.thresholds import (
    DANGLING_MS,
    ENDED_SOUND_LOG_ODDS,
    MAX_NUMBER_MS,
    PARTIAL_ANSWER_MS,
)
from latency_budget.account.turn import TurnId

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
CODE = "Can you read me the code I sent to your phone?"
CARD_ZIP = "What's the billing zip code for your credit card?"
CVV = "What's the security code on the back of your credit card?"
PAY = "Do you want to pay by card or cash?"
DELIVERY = "Should it be delivered at nine or at ten?"
COLOR = "Do you want the red one or the blue one?"
TYPED_ORDER = "Have you got your order number?"
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
    (CODE, "number"),
    (CARD_ZIP, "number"),
    (TYPED_ORDER, "yes_no"),
    ("When does your credit card expire?", "open"),
    ("Do you know when your card expires?", "open"),
    ("What is the expiration date on your card?", "open"),
    ("Which credit card should I charge?", "open"),
    ("Can I have your credit card?", "open"),
    ("What year were you born?", "open"),
    ("When were you born?", "open"),
    ("What time can we call you on Monday?", "open"),
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
        (CVV, None, 3),
        (CARD_ZIP, None, 5),
        (CODE, None, 0),
        ("What's your credit card number?", None, 15),
        (BORN, None, 3),
        ("Tell me your phone number when you are ready.", None, 7),
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
    (TYPED_ORDER, "Yes.", "unknown"),
    (TYPED_ORDER, "No.", "whole"),
    ("Did you get a confirmation code?", "Yes.", "unknown"),
    ("Do you have your account number?", "Yes.", "unknown"),
    ("Is there a name on it that you could spell?", "Yes.", "unknown"),
    # one of several
    (DRINK, "Tea.", "whole"),
    (DRINK, "Coffee, please.", "whole"),
    (DRINK, "I'd like tea.", "whole"),
    (DRINK, "The first one.", "whole"),
    (DRINK, "Yes.", "unknown"),
    (DRINK, "Would you", "unknown"),
    (DRINK, "Tea or", "unknown"),
    (DRINK, "Tea with lemon.", "unknown"),
    (DRINK, "I'd like tea with", "unknown"),
    (DRINK, "Both.", "whole"),
    (PAY, "I want to pay by", "unknown"),
    (PAY, "I want to pay.", "unknown"),
    (PAY, "Card.", "whole"),
    (PAY, "Cash, please.", "whole"),
    (DELIVERY, "I'd like it at", "unknown"),
    (DELIVERY, "Delivered.", "unknown"),
    (DELIVERY, "At nine.", "whole"),
    (DELIVERY, "Ten, please.", "whole"),
    (COLOR, "I want the one", "unknown"),
    (COLOR, "The one.", "unknown"),
    (COLOR, "The blue one.", "whole"),
    (COLOR, "Red.", "whole"),
    ("Is that a checking or savings account?", "An account", "unknown"),
    ("Is that a checking or savings account?", "Savings.", "whole"),
    ("Should I turn it on or off?", "I want it on", "unknown"),
    ("Should I mail it, or do you want to pick it up?", "I want to pick", "unknown"),
    ("Would you like to order tea or coffee?", "I want to order.", "unknown"),
    ("Which suits you better, Monday or Friday?", "Better.", "unknown"),
    ("Which suits you better, Monday or Friday?", "Friday.", "whole"),
    ("Would you like to rebook or cancel?", "I'd like to cancel", "unknown"),
    ("Is it the order or something else?", "Something else.", "unknown"),
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
    (PHONE, "It's the same as before, the one ending in 42.", "unknown"),
    (CARD_ZIP, "94110.", "unknown"),
    (CARD_ZIP, "941", "partial"),
    (CVV, "1 2 3.", "unknown"),
    (CODE, "482913.", "reading"),
    ("When does your credit card expire?", "March 2027.", "unknown"),
    ("What year were you born?", "1985.", "unknown"),
    ("Which credit card should I charge?", "The one ending in 4242.", "unknown"),
    ("What time can we call you on Monday?", "Ten thirty.", "unknown"),
    ("What's your birthday?", "March 3rd.", "reading"),
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
    (BORN, "May 5", "reading"),
    (BORN, "5 5", "partial"),
    (BORN, "5/4/80.", "unknown"),
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
    (EMAIL, "john smith at", "partial"),
    (EMAIL, "john underscore", "partial"),
    (EMAIL, "john@", "partial"),
    (EMAIL, "john.smith@gmail", "unknown"),
    (EMAIL, "john smith at gmail", "unknown"),
    (EMAIL, "I'm at work.", "unknown"),
    *((EMAIL, f"It's jane@acme.{top}.", "whole") for top in ("io", "co", "ai", "fr", "in", "au")),
    (EMAIL, "jane@gmail.com, all lowercase.", "whole"),
    (EMAIL, "jane@gmail.com and", "unknown"),
    (EMAIL, "jane@gmail.com,", "unknown"),
    (EMAIL, "jane at acme dot io", "whole"),
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
            sounds_ended = sound is not None and sound >= ENDED_SOUND_LOG_ODDS
            most_ms = max(each.most_ms for each in score.releases.values())
            assert before <= after <= PARTIAL_ANSWER_MS
            if sounds_ended:
                assert after <= max(before, most_ms)
            else:
                assert after == PARTIAL_ANSWER_MS
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
    assert wait_ms(BOOK, "Yes.", -4.0) == wait_ms("", "Yes.", -4.0) == 1000


def test_a_bare_first_group_has_as_long_as_a_number() -> None:
    assert wait_ms(PHONE, "555.", 1.9) == PARTIAL_ANSWER_MS > wait_ms("", "555.", 1.9)
    assert wait_ms(ORDER, "77.", -6.0) == MAX_NUMBER_MS > wait_ms("", "77.", -6.0)


def test_a_part_that_sounds_like_an_end_waits_no_longer_than_the_most() -> None:
    most_ms = shipped_score().releases["auto"].most_ms
    assert wait_ms(PHONE, "555.", ENDED_SOUND_LOG_ODDS) == most_ms > wait_ms("", "555.", 6.0)


@pytest.mark.parametrize("last", sorted((DANGLING | LEANING) - {"please", "both", "either"}))
def test_no_choice_is_whole_at_a_word_that_is_open_behind(last: str) -> None:
    question = question_of(f"Would you like tea or {last}?")
    for words in (f"Tea {last}", f"I'd like {last}."):
        assert answer_state(question, words) == "unknown"


def test_the_rest_of_an_answer_is_not_held_against_what_the_whole_has() -> None:
    rest = after_a_part(question_of(PHONE))
    assert answer_state(rest, "4567.") == "reading"
    assert after_a_part(question_of(BOOK)) == NO_QUESTION


ONE, TWO = TurnId(1), TurnId(2)


def asked_twice(*heard: ev.Event) -> TurnState:
    """State after the agent has asked for a telephone number, and then this was heard of the second
    reply."""
    machine = TurnTaking(TurnRules())
    for event in (
        ev.ReplyRequested(), ev.ReplyAudible(ONE), ev.ReplySent(ONE), ev.ReplyPlayed(ONE, PHONE),
        ev.ReplyRequested(), *heard,
    ):  # fmt: skip
        machine.apply(event, 0)
    return machine._state


@pytest.mark.parametrize(
    ("heard", "is_pending"),
    [
        ((), True),
        ((ev.ReplyAudible(TWO),), False),
        ((ev.ReplyAudible(TWO), ev.ReplySent(TWO), ev.ReplyPlayed(TWO, "")), True),
        ((ev.ReplyAudible(TWO), ev.ReplySent(TWO), ev.ReplyPlayed(TWO, STATEMENT)), False),
        ((ev.ReplyAudible(TWO), ev.ReplyFailed(TWO)), True),
        ((ev.ReplyFailed(TWO), ev.ReplySent(TWO), ev.ReplyPlayed(TWO, "Sorry?")), True),
    ],
)
def test_a_reply_without_words_leaves_the_question(
    heard: tuple[ev.Event, ...], is_pending: bool
) -> None:
    assert asked_twice(*heard).question == (question_of(PHONE) if is_pending else NO_QUESTION)


@pytest.mark.parametrize("is_audible", [False, True])
def test_a_reopened_turn_goes_on_with_the_number(is_audible: bool) -> None:
    machine = TurnTaking(TurnRules(silence_ms=300))
    events: tuple[ev.Event, ...] = (
        ev.ReplyRequested(), ev.ReplyAudible(ONE), ev.ReplySent(ONE), ev.ReplyPlayed(ONE, PHONE),
        ev.SpeechStarted(1, 0), ev.SpeechPaused(1, 8_000), ev.TranscriptReady(1, 1, "555 123"),
        ev.SilenceGrew(1, 320), ev.ReplyAudible(TWO),
    )  # fmt: skip
    for event in events if is_audible else events[:-1]:
        machine.apply(event, 0)
    assert machine._state.question == (NO_QUESTION if is_audible else question_of(PHONE))
    (_, reopened) = machine.apply(ev.SpeechStarted(2, 16_000), 0)
    assert reopened == cmd.ReopenTurn(TWO, 2)
    assert machine._state.question == after_a_part(question_of(PHONE))


@pytest.mark.parametrize("has_spoken", [False, True])
@pytest.mark.parametrize("taken_over", [False, True])
def test_what_was_typed_or_said_elsewhere_makes_no_greeting(
    has_spoken: bool, taken_over: bool
) -> None:
    machine = TurnTaking(TurnRules())
    first: tuple[ev.Event, ...] = (ev.ReplyRequested(has_spoken),)
    if taken_over:
        first = (ev.CallTakenOver(False, has_spoken), ev.ClientBack(), ev.ReplyRequested())
    rest = ev.ReplyAudible(ONE), ev.ReplySent(ONE), ev.ReplyPlayed(ONE, BOOK)
    for event in (*first, *rest):
        machine.apply(event, 0)
    assert machine._state.question.kind == ("yes_no" if has_spoken else "none")


def test_a_dangling_word_outlasts_the_question() -> None:
    assert wait_ms(BOOK, "Yes, and", 6.0) == DANGLING_MS


def test_an_explicit_silence_is_literal_after_any_question() -> None:
    rules = TurnRules(silence_ms=350)
    assert required_silence_ms(rules, Evidence("555", question=question_of(PHONE))) == 350
