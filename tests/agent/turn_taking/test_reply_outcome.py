"""What a caller did over a reply, told apart after the fact."""

import pytest

from agent.turn_taking import commands as cmd
from agent.turn_taking import events as ev
from agent.turn_taking.end_of_turn import TurnRules
from agent.turn_taking.reply_outcome import (
    BY_DELAY_MS,
    MAX_OPEN,
    NOTICE_NS,
    REACTION_MS,
    WINDOW_NS,
    LateSpeech,
    ReplyOutcomes,
    Verdict,
    continuation_log_odds,
    continues,
    opening,
)
from latency_budget.account.turn import TurnId
from latency_budget.account.turn_record import Outcome

MS = 1_000_000
TURN = TurnId(1)
AUDIBLE_NS = 10_000 * MS

GOING_ON = [
    ("I'd like a double-shot cappuccino?", "With a bit of brown sugar.", 400),
    ("Could you book a table for four people.", "On Thursday at seven.", 600),
    ("I need a taxi.", "To the airport.", 500),
    ("Please send it to my office.", "And a copy to my wife.", 700),
    ("I'm looking for a hotel.", "Because my flight was cancelled.", 450),
    ("My number is four five", "Six seven eight.", 900),
    ("I want to.", "Change my booking.", 350),
]
INTERRUPTIONS = [
    ("What time do you open?", "Stop.", 500),
    ("Book a table for four.", "No, for five.", 600),
    ("Tell me about your rooms.", "Wait, I meant the flats.", 900),
    ("What is the weather?", "Can you speak up?", 1200),
    ("I need a taxi.", "What does it cost?", 1500),
    ("Send it to my office.", "Sorry, I have another question.", 800),
    ("Which rooms are free?", "I don't need a list.", 1400),
]


@pytest.mark.parametrize(("before", "words", "delay_ms"), GOING_ON)
def test_what_hangs_on_the_words_before_continues_them(
    before: str, words: str, delay_ms: int
) -> None:
    assert continues(LateSpeech(before, words, delay_ms))


@pytest.mark.parametrize(("before", "words", "delay_ms"), INTERRUPTIONS)
def test_what_begins_a_turn_of_its_own_does_not(before: str, words: str, delay_ms: int) -> None:
    assert not continues(LateSpeech(before, words, delay_ms))


def test_nobody_reacts_before_the_shortest_reaction() -> None:
    for delay_ms in (-500, 0, REACTION_MS - 1):
        assert continues(LateSpeech("What time is it?", "Stop.", delay_ms))
    assert not continues(LateSpeech("What time is it?", "Stop.", REACTION_MS))


def test_later_speech_and_expected_speech_continue_less_often() -> None:
    sooner, later = (LateSpeech("A taxi.", "To the airport.", ms) for ms in (300, 1900))
    answer = LateSpeech("A taxi.", "To the airport.", 300, is_expected=True)
    assert continuation_log_odds(sooner) > continuation_log_odds(later)
    assert continuation_log_odds(sooner) > continuation_log_odds(answer)


def test_the_opening_is_that_of_the_first_word() -> None:
    words = ("Stop!", "…with milk", "What’s that?", "Brown sugar.", "", "But not too hot")
    found = [opening(each) for each in words]
    assert found == ["stops", "joins", "begins", "other", "other", "other"]


@pytest.mark.parametrize(
    ("language", "before", "words"),
    [
        ("de", "Ich brauche einen Tisch.", "Am Donnerstag um sieben."),
        ("de", "Ich brauche einen Tisch am", "Nein, falsch."),
        ("es", "Quiero una mesa.", "No, espera."),
        ("pt", "Quero uma mesa.", "Um momento."),
    ],
)
def test_in_other_languages_the_delay_decides_whatever_the_words_are(
    language: str, before: str, words: str
) -> None:
    found = [
        continues(LateSpeech(before, words, delay_ms, is_expected, language))
        for is_expected in (False, True)
        for delay_ms in (REACTION_MS - 1, BY_DELAY_MS - 1, BY_DELAY_MS, 1200)
    ]
    assert found == [True, True, False, False, True, False, False, False]


def test_backchannels_are_those_of_the_language() -> None:
    assert not continues(LateSpeech("Ich brauche einen Tisch.", "Genau.", 400, language="de"))
    assert continues(LateSpeech("I need a table.", "Genau.", 400))
    assert continues(LateSpeech("Quero uma mesa.", "Um.", 400, language="pt"))


# --- the automaton ---


def answered(
    *, before: str = "A double-shot cappuccino?", is_audible: bool = True
) -> ReplyOutcomes:
    """A reply to these words has begun."""
    outcomes = ReplyOutcomes()
    outcomes.event(ev.SpeechStarted(1, 0), 0)
    outcomes.command(cmd.CommitUtterance(1, before, by_client=False))
    outcomes.command(cmd.StartReply(TURN))
    if is_audible:
        outcomes.audible(TURN, AUDIBLE_NS)
    return outcomes


def speak(outcomes: ReplyOutcomes, after_ms: int, utterance: int = 2) -> None:
    """The first voiced sample comes so long after the first audible one."""
    onset_ns = AUDIBLE_NS + after_ms * MS
    outcomes.event(ev.SpeechStarted(utterance, 0), onset_ns + 160 * MS, onset_ns)


def understood(outcomes: ReplyOutcomes, text: str, utterance: int = 2) -> Outcome | None:
    verdict = outcomes.command(cmd.CommitUtterance(utterance, text, by_client=False))
    assert isinstance(verdict, Verdict)
    assert verdict.turn == TURN
    return verdict.outcome


def test_a_reply_into_a_sentence_that_goes_on_has_cut_in() -> None:
    outcomes = answered()
    speak(outcomes, 400)
    assert outcomes.is_open(TURN)
    outcomes.command(cmd.CutReply(TURN, "turn_detected"))
    assert understood(outcomes, "With a bit of brown sugar.") is Outcome.CUT_IN
    assert not outcomes.is_open(TURN)


@pytest.mark.parametrize(
    ("language", "outcome"), [("en", Outcome.CUT_IN), ("de", None), ("pt", None)]
)
def test_the_language_is_that_of_the_newest_rules(language: str, outcome: Outcome | None) -> None:
    outcomes = answered()
    outcomes.event(ev.RulesChanged(TurnRules(language="fr")), 0)
    speak(outcomes, 900)
    outcomes.event(ev.RulesChanged(TurnRules(language=language)), 0)
    assert understood(outcomes, "With a bit of brown sugar.") is outcome


def test_words_that_come_later_settle_it_as_well() -> None:
    outcomes = answered()
    speak(outcomes, 400)
    assert outcomes.command(cmd.CommitUtterance(2, None, by_client=True)) is None
    verdict = outcomes.command(cmd.CompleteTranscript(2, "With a bit of brown sugar."))
    assert verdict is not None
    assert verdict.outcome is Outcome.CUT_IN


def test_an_interruption_a_backchannel_and_lost_words_are_no_cut_in() -> None:
    for settle, text in (
        (cmd.CommitUtterance(2, "No, stop.", by_client=False), "no"),
        (cmd.DropUtterance(2, announced=True), ""),
        (cmd.FailTranscript(2), ""),
    ):
        outcomes = answered()
        speak(outcomes, 600)
        verdict = outcomes.command(settle)
        assert verdict is not None, text
        assert verdict.outcome is None


def test_a_turn_re_opened_before_a_sound_was_not_cut_in_on() -> None:
    outcomes = answered(is_audible=False)
    speak(outcomes, 0)
    outcomes.command(cmd.ReopenTurn(TURN, 2))
    assert understood(outcomes, "With a bit of brown sugar.") is Outcome.REOPENED


def test_an_early_opener_is_no_answer_that_could_cut_in() -> None:
    outcomes = answered(is_audible=False)
    outcomes.event(ev.OpenerAudible(TURN), AUDIBLE_NS)
    outcomes.audible(TURN, AUDIBLE_NS)
    speak(outcomes, 400)
    outcomes.command(cmd.ReopenTurn(TURN, 2))
    assert understood(outcomes, "With a bit of brown sugar.") is Outcome.REOPENED


def test_the_answer_behind_an_early_opener_may_cut_in() -> None:
    outcomes = answered(is_audible=False)
    outcomes.event(ev.OpenerAudible(TURN), AUDIBLE_NS - 900 * MS)
    outcomes.audible(TURN, AUDIBLE_NS - 900 * MS)
    outcomes.answer_audible(TURN, AUDIBLE_NS)
    outcomes.audible(TURN, AUDIBLE_NS - 800 * MS)  # the client's report is of the opener
    speak(outcomes, 100)
    outcomes.command(cmd.ReopenTurn(TURN, 2))
    assert understood(outcomes, "With a bit of brown sugar.") is Outcome.CUT_IN


def test_a_re_opened_turn_is_judged_by_both_halves() -> None:
    outcomes = answered(before="I want to")
    speak(outcomes, 100)
    outcomes.command(cmd.ReopenTurn(TURN, 2))
    assert understood(outcomes, "change") is Outcome.CUT_IN
    outcomes.command(cmd.StartReply(TurnId(2)))
    outcomes.audible(TurnId(2), AUDIBLE_NS)
    speak(outcomes, 500, utterance=3)
    verdict = outcomes.command(cmd.CommitUtterance(3, "My booking.", by_client=False))
    assert verdict is not None
    assert verdict.speech is not None
    assert verdict.speech.before == "I want to change"


def test_speech_after_the_window_or_over_a_greeting_is_not_asked_about() -> None:
    outcomes = answered()
    speak(outcomes, WINDOW_NS // MS + 1)
    assert not outcomes.is_open(TURN)
    greeting = ReplyOutcomes()
    greeting.command(cmd.StartReply(TURN))
    greeting.audible(TURN, AUDIBLE_NS)
    speak(greeting, 100)
    assert not greeting.is_open(TURN)
    assert greeting.window_ends_ns(TURN) is None, "a typed turn is reported at once"


def test_the_next_turn_after_a_short_reply_and_the_answer_to_a_question() -> None:
    over = answered()
    over.event(ev.ReplyPlayed(TURN), AUDIBLE_NS + 300 * MS)
    speak(over, 500)
    assert understood(over, "Can I pay by card?") is None
    asked = answered()
    asked.event(ev.ReplyStands(TURN, "Which milk?", ""), AUDIBLE_NS)
    speak(asked, 900)
    assert understood(asked, "With oat milk.") is None


def test_a_turn_is_reported_when_nothing_can_change_its_outcome() -> None:
    outcomes = answered()
    assert outcomes.window_ends_ns(TURN) == AUDIBLE_NS + WINDOW_NS + NOTICE_NS
    assert outcomes.window_ends_ns(TurnId(7)) is None
    outcomes.command(cmd.CutReply(TURN, "client_cancelled"))
    assert outcomes.window_ends_ns(TURN) is None
    assert answered(is_audible=False).window_ends_ns(TURN) is None


def test_words_that_never_come_are_forgotten() -> None:
    outcomes = answered()
    for utterance in range(2, 2 + 3 * MAX_OPEN):
        speak(outcomes, 100, utterance)
    oldest = outcomes.command(cmd.DropUtterance(2, announced=True))
    newest = outcomes.command(cmd.DropUtterance(1 + 3 * MAX_OPEN, announced=True))
    assert oldest is None
    assert newest is not None
