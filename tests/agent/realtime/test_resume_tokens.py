"""Tokens by which clients come back: once each, for the same key, and no longer than the call."""

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from agent.calls.service import BUSY, LINES_OF_ADDRESS, CallService
from agent.calls.suspended import WaitingCalls
from agent.http.auth.token_format import RESUME_PREFIX
from agent.http.refusal import HttpRefusal
from agent.realtime.protocol.items import item_json
from agent.realtime.protocol.resumed import MAX_CHARS, MAX_ITEMS
from agent.realtime.resume_tokens import ResumeTokens
from agent.session.api.conversation import ItemId, Message
from agent.session.api.server_events import Resumed, SessionCreated
from agent.session.api.settings import SessionSettings
from tests.support.wire.wire_frames import make, say


def test_token_expires_when_its_successor_has_arrived() -> None:
    tokens: ResumeTokens[str] = ResumeTokens()
    first = tokens.issue("call", "key:a")
    assert first.startswith(RESUME_PREFIX)
    assert tokens.find(first, "key:a") == "call"
    second = tokens.issue("call", "key:a")
    assert tokens.find(first, "key:a") == "call", "the second may not have arrived"
    assert tokens.find(second, "key:a") is None, "and has not: the first was shown again"
    third = tokens.issue("call", "key:a")
    tokens.arrived("call")
    assert tokens.find(first, "key:a") is None
    assert tokens.find(third, "key:a") == "call"
    assert len(tokens) == 1


def test_used_successor_counts_as_arrived() -> None:
    tokens: ResumeTokens[str] = ResumeTokens()
    first = tokens.issue("call", "")
    second = tokens.issue("call", "")
    assert tokens.find(second, "") == "call"
    assert tokens.find(first, "") is None


def test_token_is_bound_to_one_key_and_one_call() -> None:
    tokens: ResumeTokens[str] = ResumeTokens()
    one, other = tokens.issue("one", "key:a"), tokens.issue("other", "key:b")
    assert tokens.find(one, "key:b") is None
    assert tokens.find(one, "") is None
    assert tokens.find(one, "key:a") == "one", "a stranger's try costs nothing"
    assert tokens.find(other, "key:b") == "other"
    tokens.forget("one")
    tokens.forget("unheard of")
    assert tokens.find(one, "key:a") is None
    assert len(tokens) == 1


@given(st.text(max_size=300))
def test_unknown_token_finds_no_call(text: str) -> None:
    tokens: ResumeTokens[str] = ResumeTokens()
    token = tokens.issue("call", "")
    for wrong in (text, RESUME_PREFIX + text, token + text, token[: -1 - len(text)]):
        assert (tokens.find(wrong, "") == "call") == (wrong == token)


class Call:
    def __init__(self) -> None:
        self.ended = ""

    def give_up(self, why: str) -> None:
        self.ended = why


def test_longest_waiting_call_is_evicted_first() -> None:
    waiting = WaitingCalls()
    assert not waiting.give_way()
    assert not waiting.can_give_way()
    a, b, c = Call(), Call(), Call()
    for call, key_id in ((a, "key:a"), (b, "key:b"), (c, "key:b")):
        waiting.begin(call, key_id)
    assert waiting.can_give_way("key:b")
    assert waiting.can_give_way()
    assert not waiting.can_give_way("key:d")
    assert not any(call.ended for call in (a, b, c)), "to be asked ends nobody's wait"
    assert waiting.give_way("key:b")
    assert waiting.give_way()
    assert [bool(call.ended) for call in (a, b, c)] == [True, True, False]
    assert not waiting.give_way("key:a")
    assert not waiting.can_give_way(number=2)
    assert not waiting.give_way(number=2)
    assert len(waiting) == 1, "he would go in vain"
    waiting.end(a)
    waiting.end_all("enough")
    assert c.ended == "enough"
    assert len(waiting) == 0
    assert waiting.num_lost == 3


def refused(waiting: WaitingCalls, **more: Any) -> HttpRefusal | None:
    """Admission of a caller whose key has all of its lines, one of them by a call that waits."""
    calls = {"waiting": waiting, "num_lacking": lambda kept: 0, "crowd": lambda kept: None}
    service = SimpleNamespace(
        _stages=SimpleNamespace(status="ready"),
        tokens=(),
        _num_lacking_of_key=lambda principal, kept: 1,
        _by_address=SimpleNamespace(are_all_held=lambda scope: more.get("are_all_held", False)),
        _calls=SimpleNamespace(**calls | more),
    )
    principal: Any = SimpleNamespace(key_id="key:a")
    return CallService.refusal(cast(Any, service), principal, {}, waiting.give_way)


def test_no_call_gives_way_to_a_caller_who_is_refused() -> None:
    for more, refusal in (
        ({"are_all_held": True}, LINES_OF_ADDRESS),
        ({"num_lacking": lambda kept: 2}, BUSY),
    ):
        waiting, call = WaitingCalls(), Call()
        waiting.begin(call, "key:a")
        assert refused(waiting, **more) == refusal
        assert (len(waiting), call.ended) == (1, "")


def test_calls_give_way_to_a_caller_who_is_admitted() -> None:
    """Those of its key first; one that ends makes room in a crowd as well."""
    waiting, calls = WaitingCalls(), [Call(), Call(), Call()]
    for call, key_id in zip(calls, ("key:b", "key:a", "key:b"), strict=True):
        waiting.begin(call, key_id)
    assert refused(waiting, num_lacking=lambda kept: 2, crowd=lambda kept: 1 / 0) is None
    assert [bool(call.ended) for call in calls] == [True, True, False]


def conversation(*texts: str) -> tuple[Message, ...]:
    return tuple(
        Message(ItemId(f"item_{number}"), "user", "text", text) for number, text in enumerate(texts)
    )


def test_resumed_connection_begins_with_the_full_state() -> None:
    protocol = make(extensions=True)
    settings = SessionSettings(instructions="Sing.")
    say(protocol, [SessionCreated("sess_1", settings, 99)])
    items = conversation("one", "two")
    updated, resumed = say(protocol, [Resumed(settings, items, 7, will_answer=True)])
    assert updated["type"] == "session.updated"
    assert updated["session"]["id"] == "sess_1"
    assert updated["session"]["instructions"] == "Sing."
    assert updated["session"]["expires_at"] == 99
    del resumed["event_id"]
    assert resumed == {
        "type": "halfsec.resumed",
        "session": "sess_1",
        "items": [item_json(item) for item in items],
        "previous_item_id": None,
        "num_items": 2,
        "received": 7,
        "will_answer": True,
    }


def test_clients_without_extensions_receive_no_resume_events() -> None:
    notice = Resumed(SessionSettings(), (), 0, will_answer=False)
    assert make().send(notice) == ()


def test_only_the_newest_items_are_shown() -> None:
    protocol = make(extensions=True)
    many = conversation(*(str(number) for number in range(MAX_ITEMS + 10)))
    _, told = say(protocol, [Resumed(SessionSettings(), many, 0, will_answer=False)])
    assert len(told["items"]) == MAX_ITEMS
    assert told["items"][-1]["id"] == many[-1].id
    assert told["previous_item_id"] == many[9].id
    assert told["num_items"] == len(many)
    long = conversation("a" * MAX_CHARS, "b" * (MAX_CHARS // 2), "c" * (MAX_CHARS // 4))
    _, told = say(protocol, [Resumed(SessionSettings(), long, 0, will_answer=False)])
    assert [item["id"] for item in told["items"]] == ["item_1", "item_2"]
    assert told["previous_item_id"] == "item_0"
