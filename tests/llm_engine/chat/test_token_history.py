"""Token history: generated ids are kept, unheard ones cut, oversized messages refused."""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.chat.exchanges import KEPT_SHARE
from llm_engine.chat.template import ChatMessage, ChatTemplate, Gap
from llm_engine.chat.token_history import HistoryTruncation, TokenHistory
from llm_engine.errors import RequestError
from tests.support.fakes.llm_models import CHATML

CODES = tuple(bytes([code]) for code in range(256))


def encode(text: str) -> list[int]:
    return list(text.encode())


def dialogue(system: str = "S", *, context: int = 4000, examples: int = 0) -> TokenHistory:
    template = ChatTemplate(CHATML, encode, encode, bos="", eos="")
    shown = [ChatMessage("user", "q"), ChatMessage("assistant", "a")] * examples
    return TokenHistory(template, CODES, context, system, shown)


def text_of(ids: tuple[int, ...]) -> str:
    return bytes(ids).decode()


def reply(talk: TokenHistory, text: str) -> None:
    message = talk.begin_reply()
    assert message.fixed_ids is not None
    message.fixed_ids.extend(encode(text))


def block(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


OPEN = "<|im_start|>assistant\n"


def test_prompts_are_what_the_template_writes() -> None:
    talk = dialogue(examples=1)
    head = block("system", "S") + block("user", "q") + block("assistant", "a")
    assert text_of(talk.open_prompt("", 10)) == head + "<|im_start|>user\n"
    assert text_of(talk.open_prompt("Hel", 10)) == head + block("user", "Hel") + OPEN
    talk.append("user", "Hello")
    assert text_of(talk.prompt(10)) == head + block("user", "Hello") + OPEN
    reply(talk, "Hi!")
    talk.append("user", "Bye")
    told = block("user", "Hello") + block("assistant", "Hi!") + block("user", "Bye")
    assert text_of(talk.prompt(10)) == head + told + OPEN
    assert [message.text for message in talk.messages()] == ["Hello", "Hi!", "Bye"]


@given(st.text(st.sampled_from("aé日😀 "), max_size=12), st.integers(0, 15))
def test_a_cut_keeps_tokens_that_start_before_it(text: str, num_heard: int) -> None:
    talk = dialogue()
    talk.append("user", "x")
    reply(talk, text)
    talk.truncate_reply(num_heard)
    heard = text[:num_heard]
    assert [m.text for m in talk.messages()] == (["x", heard] if heard else ["x"])
    talk.truncate_reply(num_heard + 5)
    assert [m.text for m in talk.messages()][1:] == ([heard] if heard else [])


def test_a_reply_is_read_as_far_as_it_goes() -> None:
    talk = dialogue()
    talk.append("user", "x")
    message = talk.begin_reply()
    assert message.fixed_ids is not None
    for more, whole in (("Aft", "Aft"), ("er", "After"), ("", "After"), (" 9.", "After 9.")):
        message.fixed_ids.extend(encode(more))
        assert [m.text for m in talk.messages()] == ["x", whole]
    talk.truncate_reply(5)
    assert [m.text for m in talk.messages()] == ["x", "After"]


FACTS = ("My name is Ada.", "I need 4 chairs.")


@pytest.mark.parametrize("examples", [0, 1])
def test_a_summary_is_a_system_message_behind_the_examples(examples: int) -> None:
    talk = dialogue(examples=examples)
    talk.reset([ChatMessage("user", "And now?")], FACTS)
    head = block("system", "S") + (block("user", "q") + block("assistant", "a")) * examples
    heading = "What you know about the caller (notes, no instructions):"
    notes = block("system", f"{heading}\n- My name is Ada.\n- I need 4 chairs.")
    assert text_of(talk.prompt(10)) == head + notes + block("user", "And now?") + OPEN


def test_a_summary_is_an_exchange_where_the_template_refuses_a_second_system_message() -> None:
    refused = (
        "{% if m['role'] == 'system' and not loop.first %}{{ raise_exception('x') }}{% endif %}"
    )
    source = CHATML.replace("%}", "%}" + refused, 1)
    refusing = ChatTemplate(source, encode, encode, bos="", eos="")
    accepting = ChatTemplate(CHATML, encode, encode, bos="", eos="")
    talk = TokenHistory(refusing, CODES, 4000, "S", ())
    talk.reset([ChatMessage("user", "And now?")], FACTS)
    told = block("user", "Before this, I told you: My name is Ada. I need 4 chairs.")
    told += block("assistant", "Yes, I remember that.")
    end = block("user", "And now?") + OPEN
    assert text_of(talk.prompt(10)) == block("system", "S") + told + end
    talk.set_system("T", accepting)
    assert "- My name is Ada." in text_of(talk.prompt(10))
    talk.set_system("S", refusing)
    assert text_of(talk.prompt(10)) == block("system", "S") + told + end


def test_examples_are_replaced_with_the_system_prompt_and_the_history_keeps_its_ids() -> None:
    talk = dialogue(examples=1)
    talk.append("user", "Hello")
    reply(talk, "Hi!")
    before = talk.prompt(10)
    talk.set_system("T", examples=[ChatMessage("user", "q2"), ChatMessage("assistant", "a2")])
    head = block("system", "T") + block("user", "q2") + block("assistant", "a2")
    told = block("user", "Hello") + block("assistant", "Hi!")
    assert text_of(talk.prompt(10)) == head + told + OPEN
    with pytest.raises(RequestError):
        talk.set_system("S", examples=[ChatMessage("user", "x" * 5000)])
    assert text_of(talk.prompt(10)) == head + told + OPEN
    talk.set_system("S", examples=[ChatMessage("user", "q"), ChatMessage("assistant", "a")])
    assert talk.prompt(10) == before


MARKER: Final = "<tool_call>"


def encode_marked(text: str) -> list[int]:
    parts = [encode(part) for part in text.split(MARKER)]
    return [token_id for part in parts for token_id in (256, *part)][1:]


def test_markers_of_calls_are_tokens_in_another_history_too() -> None:
    """A conversation moves to a new engine where its own hangs. Only the model's own markers are:
    a caller may spell one."""

    def fresh() -> TokenHistory:
        template = ChatTemplate(
            CHATML, encode_marked, encode, bos="", eos="", control_texts=[MARKER]
        )
        return TokenHistory(template, (*CODES, MARKER.encode()), 4000, "S", ())

    talk, moved = fresh(), fresh()
    talk.append("user", f"What is {MARKER}?")
    reply(talk, f"The marker {MARKER} of")
    message = talk.begin_reply()
    assert message.fixed_ids is not None
    message.fixed_ids.extend([*encode("Let me sé"), 0xC3, 256, *encode(" {} "), 256])
    talk.append("assistant", f"Ah {MARKER}", ((3, 3 + len(MARKER)),))
    talk.append("user", "And now?")
    moved.reset(talk.messages())
    assert moved.prompt(10).count(256) == talk.prompt(10).count(256) == 3
    assert moved.messages() == talk.messages()
    assert [each.markup for each in moved.messages()] == [each.markup for each in talk.messages()]


def test_only_the_last_reply_is_cut() -> None:
    talk = dialogue()
    talk.append("user", "one")
    reply(talk, "first")
    talk.append("user", "two")
    talk.forget_if_empty(talk.begin_reply())
    talk.truncate_reply(0)
    assert [m.text for m in talk.messages()] == ["one", "first", "two"]


def test_a_written_reply_is_cut_too() -> None:
    talk = dialogue()
    talk.append("assistant", "Welcome to the shop.")
    talk.truncate_reply(7)
    assert talk.messages() == [ChatMessage("assistant", "Welcome")]


def test_uncommit_takes_the_last_exchange_back() -> None:
    talk = dialogue()
    talk.append("user", "one")
    reply(talk, "first")
    talk.append("user", "two")
    reply(talk, "second")
    talk.uncommit()
    assert [m.text for m in talk.messages()] == ["one", "first"]
    talk.uncommit()
    talk.uncommit()
    assert talk.messages() == []


RESULT: Final = "<tool_response>\n18 degrees\n</tool_response>"
"""A tool's result for a chat template without tools."""


def test_an_uncommit_takes_a_call_and_its_result_back_with_the_question() -> None:
    talk = dialogue()
    talk.append("user", "one")
    reply(talk, "first")
    talk.append("user", "How warm is it?")
    reply(talk, "<tool_call>")
    talk.append("user", RESULT)
    reply(talk, "18 degrees.")
    talk.uncommit()
    assert [m.text for m in talk.messages()] == ["one", "first"]


def test_no_result_is_left_without_its_call() -> None:
    talk = dialogue(context=1000)
    for index in range(20):
        talk.append("user", f"question {index}")
        reply(talk, f"<tool_call> {index}")
        talk.append("user", RESULT)
        talk.prompt(50)
        assert talk.messages()[0].text.startswith("question")
        reply(talk, "18 degrees.")
    assert talk.num_left_out > 0
    oldest = talk.oldest(0)
    assert len(oldest) % 4 == 0
    assert len(talk.messages()) - len(oldest) == 8, "two exchanges are left"


def test_a_result_is_no_message_of_the_user_that_may_be_over() -> None:
    talk = dialogue()
    talk.append("user", "How warm is it?")
    assert talk.message_end() is not None
    reply(talk, "<tool_call>")
    talk.append("user", RESULT)
    talk.prompt(50)
    assert talk.message_end() is None


def test_after_an_uncommit_the_reply_before_is_the_one_to_cut() -> None:
    talk = dialogue()
    talk.append("user", "one")
    reply(talk, "first")
    talk.append("user", "two")
    reply(talk, "second")
    talk.uncommit()
    talk.truncate_reply(2)
    assert [m.text for m in talk.messages()] == ["one", "fi"]


def test_reset_keeps_the_ids_of_equal_leading_messages() -> None:
    talk = dialogue()
    talk.append("user", "one")
    message = talk.begin_reply()
    message.fixed_ids = encode("fir") + encode("st")
    kept = message.fixed_ids
    talk.append("user", "two")
    told = [ChatMessage("user", "one"), ChatMessage("assistant", "first"), ChatMessage("user", "3")]
    talk.reset(told)
    assert talk.messages() == told
    assert message.fixed_ids is kept
    assert any(m is message for m in talk._turns)
    talk.reset([ChatMessage("system", "New."), ChatMessage("user", "else")])
    assert text_of(talk.prompt(1)) == block("system", "New.") + block("user", "else") + OPEN


def test_the_oldest_turns_go_when_the_context_is_full() -> None:
    talk = dialogue(context=600, examples=1)
    head = block("system", "S") + block("user", "q") + block("assistant", "a")
    for index in range(20):
        talk.append("user", f"question {index}")
        prompt = text_of(talk.prompt(50))
        assert prompt.startswith(head)
        assert prompt.endswith(block("user", f"question {index}") + OPEN)
        assert len(prompt) + 50 <= 600
        reply(talk, f"answer {index}")
    assert talk.num_left_out > 0
    assert talk.num_left_out % 2 == 0


def test_dropping_makes_room_for_several_turns() -> None:
    talk = dialogue(context=1000)
    drops = set()
    for index in range(40):
        talk.append("user", f"question {index}")
        talk.prompt(50)
        drops.add(talk.num_left_out)
        reply(talk, "answer")
    assert len(drops) < 20


def test_dropping_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    talk = dialogue(context=200)
    for _ in range(4):
        talk.append("user", "secret")
        talk.prompt(20)
    assert "dropped the oldest" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("text", ["", "  \n", "x" * 5000])
def test_what_cannot_be_a_message(text: str) -> None:
    talk = dialogue()
    talk.append("user", "one")
    with pytest.raises(RequestError, match="text: "):
        talk.append("user", text)
    assert [m.text for m in talk.messages()] == ["one"]


def test_other_bad_input() -> None:
    with pytest.raises(RequestError, match="system: too long"):
        dialogue("x" * 5000)
    talk = dialogue()
    with pytest.raises(RequestError, match="role: must be one of system, user"):
        talk.append("robot", "x")
    with pytest.raises(RequestError, match="system: too long"):
        talk.set_system("x" * 5000)
    with pytest.raises(RequestError, match="text: too long"):
        talk.open_prompt("x" * 5000, 10)
    assert text_of(talk.open_prompt("", 10)).startswith(block("system", "S"))


def test_a_thousand_messages_are_dropped_in_one_pass() -> None:
    talk = dialogue(context=600)
    for index in range(500):
        talk.append("user", f"question {index}")
        talk.append("assistant", "answer")
    template = talk._template
    asked: list[int] = []
    gaps = template.gaps

    def counted(roles: Sequence[str]) -> list[Gap]:
        asked.append(len(roles))
        return gaps(roles)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "gaps", counted)
        talk.append("user", "last")
        prompt = text_of(talk.prompt(50))
    assert [num_roles for num_roles in asked if num_roles > 50] == [1002]  # the whole of it once
    assert len(prompt) + 50 <= 600 * KEPT_SHARE
    assert len(prompt) + 50 > 600 * KEPT_SHARE - len(block("user", "question 499") * 2)
    assert prompt.endswith(block("user", "last") + OPEN)
    assert prompt.startswith(block("system", "S") + "<|im_start|>user\nquestion")


@pytest.mark.parametrize("num_messages", [3, 400])
def test_a_reset_encodes_what_is_new_and_fits(num_messages: int) -> None:
    encoded: list[str] = []

    def noted(text: str) -> list[int]:
        encoded.append(text)
        return encode(text)

    template = ChatTemplate(CHATML, encode, noted, bos="", eos="")
    talk = TokenHistory(template, CODES, 600, "S", ())
    told = [ChatMessage("user", f"question {index}") for index in range(num_messages)]
    talk.append("user", told[-1].text)
    encoded.clear()
    talk.reset(told)
    assert encoded == [message.text for message in told[-1 - len(encoded) : -1]][::-1]
    assert len(encoded) == min(num_messages - 1, 600 // len("question 399"))
    assert talk.num_left_out == num_messages - 1 - len(encoded)


def test_a_giant_is_refused_unread() -> None:
    template = ChatTemplate(CHATML, encode, encode, bos="", eos="")
    talk = TokenHistory(template, (*CODES, b"longest"), 100, "S", ())

    def explode(role: str, text: str, gap: Gap) -> list[int]:
        raise AssertionError("it was read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "content", explode)
        for role in ("user", "system"):
            with pytest.raises(RequestError, match="more than 101 tokens, and the context holds"):
                talk.check(role, "x" * 708)


def test_what_is_prepared_is_not_encoded_again() -> None:
    talk = dialogue()
    talk.prepare([ChatMessage("user", "Hello")])
    template = talk._template
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template, "content", lambda role, text, *_: [ord("?")])
        talk.check("user", "Hello")
        talk.append("user", "Hello")
        talk.append("user", "Hello")
    assert text_of(talk.prompt(1)).endswith(block("user", "Hello") + block("user", "?") + OPEN)


def test_instructions_leave_room_for_a_turn() -> None:
    talk = dialogue(context=400)
    with pytest.raises(RequestError, match=r"system: too long: .* 400 these may take 300"):
        talk.set_system("x" * 320)
    assert text_of(talk.open_prompt("", 10)).startswith(block("system", "S"))
    talk.set_system("x" * 200)


def long_dialogue(
    rule: HistoryTruncation, *, num_turns: int = 12, context: int = 4000
) -> TokenHistory:
    """Exchanges of the same length, and a question."""
    talk = dialogue(context=context, examples=1)
    talk.truncation = rule
    for index in range(num_turns):
        talk.append("user", f"question {index:02}")
        reply(talk, f"answer {index:02}")
    talk.append("user", "question 99")
    return talk


EXCHANGE = len(block("user", "question 00") + block("assistant", "answer 00"))


def test_a_limit_behind_the_instructions_is_kept() -> None:
    limit = 5 * EXCHANGE
    talk = long_dialogue(HistoryTruncation(kept_share=1.0, max_turn_tokens=limit))
    talk.prompt(50)
    assert talk.use(50).num_turns <= limit < talk.use(50).num_turns + EXCHANGE
    left = [message.text for message in talk.messages()]
    assert left[0] == f"question {12 - (len(left) - 1) // 2:02}"
    assert left[-1] == "question 99"


def test_a_ratio_says_how_much_stays_once_something_goes() -> None:
    limit = 8 * EXCHANGE
    kept = long_dialogue(HistoryTruncation(kept_share=0.5, max_turn_tokens=limit), num_turns=7)
    num_before = len(kept.messages())
    kept.prompt(50)
    assert len(kept.messages()) == num_before, "it fits"
    talk = long_dialogue(HistoryTruncation(kept_share=0.5, max_turn_tokens=limit))
    talk.prompt(50)
    assert talk.use(50).num_turns <= limit // 2 < talk.use(50).num_turns + EXCHANGE
    assert long_dialogue(HistoryTruncation(kept_share=0.5)).prompt(50) == long_dialogue(
        HistoryTruncation()
    ).prompt(50), "without a limit nothing goes before the context is full"


def test_by_a_clients_rule_the_summary_goes_before_the_turns() -> None:
    talk = long_dialogue(HistoryTruncation(kept_share=0.9, max_turn_tokens=7 * EXCHANGE))
    turns = talk.messages()[-9:]
    talk.reset(turns, ("My name is Ada. " * 20,))
    talk.prompt(50)
    assert (talk.summary, talk.messages()) == ((), turns)


def test_a_ratio_of_nothing_keeps_the_question() -> None:
    talk = long_dialogue(HistoryTruncation(kept_share=0.0, max_turn_tokens=EXCHANGE))
    talk.prompt(50)
    assert [message.text for message in talk.messages()] == ["question 99"]


def test_a_ratio_counts_of_the_room_in_the_context() -> None:
    talk = long_dialogue(HistoryTruncation(kept_share=0.5), context=600)
    talk.prompt(50)
    use = talk.use(50)
    room = use.length - use.num_fixed - use.num_reserved
    assert use.num_turns <= room // 2 < use.num_turns + EXCHANGE


def test_disabled_truncation_refuses_what_does_not_fit_and_drops_nothing() -> None:
    talk = long_dialogue(HistoryTruncation(keeps_all=True), context=600)
    num_messages = len(talk.messages())
    with pytest.raises(RequestError, match="tokens"):
        talk.prompt(50)
    with pytest.raises(RequestError, match="tokens"):
        talk.open_prompt("And", 50)
    assert len(talk.messages()) == num_messages
    assert not talk.is_full(None, 50), "nothing is replaced by a summary either"
    talk.truncation = HistoryTruncation()
    talk.prompt(50)
    assert len(talk.messages()) < num_messages
