"""What is kept of old turns: facts of the caller, bounded, and only what was said."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.chat.summary import (
    MAX_RESULT_CHARS,
    Statement,
    bounded,
    checked,
    completed,
    request,
    sentences,
    statements,
)
from llm_engine.chat.template import ChatMessage
from llm_engine.chat.tool_calls import HERMES

USER, AGENT = "user", "assistant"


def call(*lines: str) -> list[ChatMessage]:
    """Messages of the caller and the agent in turns."""
    return [
        ChatMessage("assistant" if index % 2 else "user", line) for index, line in enumerate(lines)
    ]


def texts(found: list[Statement]) -> list[str]:
    return [each.text for each in found]


def words(text: str) -> int:
    return len(text.split())


def test_facts_and_wishes_are_kept_and_small_talk_is_not() -> None:
    found = statements(
        (),
        call(
            "Hi there! My name is Miriam Okafor.",
            "Nice to meet you.",
            "Is it cold in the mountains?",
            "It can be.",
            "I'd rather have a quiet room.",
            "Okay.",
            "Haha, that was a bad one.",
            "Sorry.",
        ),
    )
    assert texts(found) == ["My name is Miriam Okafor.", "I'd rather have a quiet room."]


def test_a_question_is_kept_for_a_booking_in_it() -> None:
    found = statements((), call("Can I have a table for four on Friday, please?", "Sure."))
    assert texts(found) == ["Can I have a table for four on Friday, please?"]
    assert statements((), call("What is seven times eight?", "It's fifty six.")) == []


def test_a_short_answer_is_kept_with_its_question() -> None:
    found = statements((), call("Hello.", "Hi! And what is your name?", "Uh, Miriam.", "Thanks."))
    assert texts(found) == ["And what is your name? Uh, Miriam."]
    found = statements((), call("Hi.", "Shall I book Monday at 3?", "Yes, please.", "Done."))
    assert texts(found) == ["Shall I book Monday at 3? Yes, please."]


def test_what_the_agent_says_is_no_fact() -> None:
    told = call("Tell me about the old bridge.", "It was built in 1966 by Ada Byron in Lisbon.")
    assert statements((), told) == []


def test_results_of_tools_are_kept_short_and_calls_are_not() -> None:
    messages = [
        ChatMessage("assistant", '<tool_call>{"name": "book", "arguments": {"day": "Monday 3"}}'),
        ChatMessage("tool", '{"booking": "B7",\n "note": "' + "x" * 500 + '"}'),
    ]
    (kept,) = statements((), messages)
    assert kept.text.startswith('A tool answered: {"booking": "B7", "note"')
    assert len(kept.text) == len("A tool answered: ") + MAX_RESULT_CHARS


def test_results_in_messages_of_the_user_are_no_words_of_the_caller() -> None:
    """So a chat template without tools has them."""
    results = [ChatMessage("tool", '{"balance":\n 250}'), ChatMessage("tool", "Table B7.\nAt 3.")]
    dialect = replace(HERMES, in_template=False)
    (shown,) = dialect.shown(results)
    assert shown.role == "user"
    assert statements((), [shown]) == statements((), results)
    assert texts(statements((), [shown])) == [
        'A tool answered: {"balance": 250}',
        "A tool answered: Table B7. At 3.",
    ]


def test_a_summary_stays_in_the_next_one_and_stands_first() -> None:
    found = statements(["She is fine.", "My dog is Luna."], call("I live in Rome.", "Nice."))
    assert texts(found) == ["She is fine.", "My dog is Luna.", "I live in Rome."]
    again = statements(texts(found), call("I live in Rome.", "You said so."))
    assert texts(again) == texts(found)


def test_the_oldest_of_equal_statements_stays() -> None:
    lines = [f"I need {number} chairs." for number in range(2, 12)]
    found = statements(["My name is Ada Byron."], [ChatMessage("user", line) for line in lines])
    kept = bounded(found, words, 16)
    assert texts(kept) == ["My name is Ada Byron.", "I need 2 chairs.", "I need 3 chairs."]


@given(st.lists(st.text(max_size=30), max_size=12), st.integers(0, 40))
def test_a_summary_is_bounded_and_of_the_callers_words(lines: list[str], limit: int) -> None:
    found = statements((), [ChatMessage("user", line) for line in lines])
    kept = bounded(found, len, limit)
    assert sum(len("- " + each.text) for each in kept) <= limit
    assert all(any(each.text in line for line in lines) for each in kept)
    assert [each for each in found if each in kept] == kept


@given(st.text(st.sampled_from("ab3. ?!\n"), max_size=40))
def test_no_word_is_lost_between_sentences(text: str) -> None:
    letters = [letter for letter in text if letter.isalnum()]
    assert [each for sentence in sentences(text) for each in sentence if each.isalnum()] == letters


def test_sentences_are_not_cut_in_numbers() -> None:
    assert sentences("It costs 3.50 or so. Is that ok?  Yes") == [
        "It costs 3.50 or so.",
        "Is that ok?",
        "Yes",
    ]


FOUND = statements(
    (),
    call(
        "Hello, well, my name is Tom Becker, as you may know by now.",
        "Hello.",
        "I would like to move my appointment to Monday at 10, if that is possible at all.",
        "Sure.",
    ),
)


def test_a_summary_without_what_was_never_said() -> None:
    written = (
        "- Tom Becker moves to Monday at 10.\n- He pays 500 dollars.\n"
        "- Tom Becker moves to Monday at 10.\n- And then he"
    )
    assert texts(checked(written, FOUND)) == ["Tom Becker moves to Monday at 10."]


def test_bad_summaries_are_none() -> None:
    echo = " ".join(texts(FOUND))
    for written in ("", "  \n", "Tom Becker wants", echo, "word " * 500 + ".", "He owes 77 euros."):
        assert checked(written, FOUND) == []
    assert completed([], FOUND) == FOUND


def test_missing_names_and_numbers_are_put_behind_a_summary() -> None:
    written = checked("The caller is Tom Becker.", FOUND)
    assert completed(written, FOUND) == [*written, FOUND[1]]


def test_the_model_reads_the_statements() -> None:
    system, asked = request(FOUND)
    assert (system.role, asked.role) == ("system", "user")
    assert "\n".join(texts(FOUND)) in asked.text
