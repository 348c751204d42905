"""The history as text: cuts, exchanges, estimated sizes, and what is sent."""

import pytest

from agent.session.api.conversation import ModelCall
from agent.session.api.settings import Truncation
from agent.session.ports.stage_ports import NO_RESULT, ChatMessage
from agent.stages.remote.text_history import TextHistory
from llm_engine.chat.summary import KEPT

CALL = ModelCall("weather", '{"city": "Bonn"}')


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def agent(text: str, *calls: ModelCall) -> ChatMessage:
    return ChatMessage("assistant", text, calls)


def history(*messages: ChatMessage, context: int = 1000) -> TextHistory:
    found = TextHistory("Be brief.", (), context)
    found.reset(messages, ())
    return found


@pytest.mark.parametrize(
    ("num_chars", "left"),
    [
        (0, []),
        (5, [agent("Hello")]),
        (11, [agent("Hello there")]),
        (12, [agent("Hello there", CALL)]),
    ],
)
def test_a_cut_reply_holds_exactly_what_was_heard(num_chars: int, left: list[ChatMessage]) -> None:
    found = history(user("Hi"), agent("Hello there", CALL))
    found.truncate_reply(num_chars)
    assert found.messages == [user("Hi"), *left]


def test_a_reply_can_be_cut_again_and_behind_later_messages() -> None:
    found = history(user("Hi"))
    for number, piece in enumerate(("Hello", " there", " caller")):
        found.extend_reply(piece, (), begins=number == 0)
    found.append(user("Stop"))
    found.truncate_reply(11)
    found.truncate_reply(5)
    assert found.messages == [user("Hi"), agent("Hello"), user("Stop")]


def test_two_replies_in_a_row_stay_two() -> None:
    found = history(user("Hi"))
    found.extend_reply("One.", (), begins=True)
    found.extend_reply("Two.", (), begins=True)
    assert found.messages[1:] == [agent("One."), agent("Two.")]


def test_what_is_taken_back_goes_with_its_tool_results() -> None:
    kept = [user("Hi"), agent("Hello")]
    found = history(*kept, user("Rain?"), agent("", CALL), ChatMessage("tool", "no"), agent("No."))
    found.take_back()
    assert found.messages == kept
    found.truncate_reply(2)
    assert found.messages == [user("Hi"), agent("He")]


def test_whole_exchanges_are_dropped_and_the_last_one_stays() -> None:
    exchange = [user("x" * 100), agent("", CALL), ChatMessage("tool", "no"), agent("y" * 100)]
    found = history(*exchange, *exchange, *exchange, user("And now?"), context=250)
    assert found.drop_to_fit(20) == 8
    assert found.messages == [*exchange, user("And now?")]
    assert found.num_left_out == 8
    assert found.drop_to_fit(20) == 0
    assert found.drop_half() == 4
    assert (found.drop_half(), found.messages) == (0, [user("And now?")])


def test_what_was_dropped_is_put_back_unless_the_turns_have_changed() -> None:
    turns = [*[user("x" * 100), agent("y" * 100)] * 3, user("And now?" + "z" * 92)]
    found = history(*turns)
    found.summary = ("My name is Ada.",)
    before = found.turns()
    assert (found.drop_half(), found.drop_half(), found.drop_half()) == (4, 2, 0)
    assert found.messages == turns[-1:]
    assert not found.summary
    found.put_back(before)
    assert (found.turns(), found.num_left_out) == (before, 0)
    found.drop_half()
    found.append(agent("Six"))
    found.put_back(before)
    assert found.messages == [*turns[4:], agent("Six")]


def test_the_servers_counts_replace_the_estimate() -> None:
    found = history(user("x" * 100))
    before = found.num_turns()
    found.counted(found.num_chars(), found.num_chars() // 6)
    assert found.num_turns() < before
    found.counted(100, 100_000)  # nonsense does not switch the limit off
    assert found.count("x" * 100) <= 101


def test_messages_of_the_user_in_a_row_become_one() -> None:
    found = history(user("Hello"), user("Are you there?"))
    sent = found.prompt(opened="Please")
    assert [each["role"] for each in sent] == ["system", "user"]
    assert sent[1]["content"] == "Hello\nAre you there?\nPlease"
    assert found.messages == [user("Hello"), user("Are you there?")]


def test_calls_and_their_results_have_the_same_ids() -> None:
    twice = agent("One moment.", CALL, CALL)
    found = history(
        user("Rain?"), twice, ChatMessage("tool", "a"), ChatMessage("tool", "b"), agent("No.")
    )
    found.append(user("Now?"))
    found.append(agent("", CALL))
    found.append(ChatMessage("tool", "c"))
    sent = found.prompt()
    called = [call["id"] for each in sent for call in each.get("tool_calls", ())]
    answered = [each["tool_call_id"] for each in sent if each["role"] == "tool"]
    assert called == answered == ["call00000", "call00001", "call00002"]


def test_a_summary_stands_before_the_turns() -> None:
    found = history(user("Hi"))
    found.reset([user("Hi")], ("My name is Miriam.",))
    texts = [each["content"] for each in found.prompt()]
    assert texts[1].endswith("My name is Miriam.")
    assert texts[2:] == [KEPT, "Hi"]


def test_examples_give_way_to_tools_where_the_model_copies_them() -> None:
    found = TextHistory("", (user("Q"), agent("A")), 1000)
    found.with_examples = False
    assert [each["content"] for each in found.prompt("Hi")] == ["Q", "A", "Hi"]
    found.tools = ({"type": "function", "function": {"name": "weather"}},)
    assert [each["content"] for each in found.prompt("Hi")] == ["Hi"]


def test_the_clients_rule_of_truncation() -> None:
    exchange = [user("x" * 100), agent("y" * 100)]
    messages = [*(exchange * 8), user("And now?")]
    found = history(*messages)
    found.truncation = Truncation(retention_ratio=0.5, post_instructions_tokens=400)
    assert found.is_over(20)
    assert found.drop_to_fit(20) == 12
    assert found.num_turns() <= 200
    assert (found.is_over(20), found.drop_to_fit(20)) == (False, 0)
    full = history(*messages, context=300)
    full.truncation = Truncation(is_disabled=True)
    assert (full.is_over(20), full.drop_to_fit(20)) == (True, 0)
    assert full.messages == messages


def test_by_the_clients_rule_the_summary_goes_before_the_turns() -> None:
    exchange = [user("x" * 100), agent("y" * 100)]
    messages = [*(exchange * 2), user("And now?")]
    found = history()
    found.truncation = Truncation(retention_ratio=0.8, post_instructions_tokens=400)
    found.reset(messages, ("z" * 1000,))
    assert found.drop_to_fit(20) == 0
    assert (found.summary, found.messages) == ((), messages)
    found.reset([*(exchange * 8), user("And now?")], ("z",))
    assert found.drop_to_fit(20) == 8
    assert found.summary == ()


def test_by_the_usual_rule_the_summary_stays_as_long_as_there_are_turns() -> None:
    exchange = [user("x" * 100), agent("y" * 100)]
    found = history(context=400)
    found.reset([*(exchange * 8), user("And now?")], ("z" * 200,))
    assert found.drop_to_fit(20) > 0
    assert found.summary == ("z" * 200,)


def test_a_call_whose_result_is_missing_has_one_that_says_so() -> None:
    """Servers refuse a call without a result right behind it."""
    found = history(
        user("Rain?"), agent("One moment.", CALL, CALL), ChatMessage("tool", "a"), user("Hello?")
    )
    found.append(agent("", CALL))
    sent = found.prompt()
    assert [(each["role"], each["content"]) for each in sent[1:]] == [
        ("user", "Rain?"),
        ("assistant", "One moment."),
        ("tool", "a"),
        ("tool", NO_RESULT),
        ("user", "Hello?"),
        ("assistant", ""),
        ("tool", NO_RESULT),
    ]
    called = [call["id"] for each in sent for call in each.get("tool_calls", ())]
    assert called == [each["tool_call_id"] for each in sent if each["role"] == "tool"]


def test_a_result_whose_call_is_gone_is_not_sent() -> None:
    """Servers refuse it, in each request from then on."""
    found = history(user("Rain?"), ChatMessage("tool", "a"), agent("No."))
    assert [each["role"] for each in found.prompt()] == ["system", "user", "assistant"]
