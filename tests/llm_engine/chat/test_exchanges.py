"""Exchanges: what may be dropped, and what is condensed, whatever the messages are."""

import pytest

from llm_engine.chat.exchanges import begins_with, end_beyond, ends_of_exchanges, num_condensed
from llm_engine.chat.template import ChatMessage, Role


def messages(roles: str) -> list[ChatMessage]:
    names: dict[str, Role] = {"u": "user", "a": "assistant", "t": "tool"}
    return [ChatMessage(names[each], each) for each in roles]


@pytest.mark.parametrize(
    ("roles", "ends"),
    [("", []), ("u", []), ("ua", []), ("uau", [2]), ("uatauau", [4, 6]), ("auu", [1, 2])],
)
def test_every_exchange_but_the_last_may_be_dropped(roles: str, ends: list[int]) -> None:
    turns = messages(roles)
    assert ends_of_exchanges(turns, is_last_over=False) == ends
    assert ends_of_exchanges(turns, is_last_over=True) == ends + [len(roles)] * bool(roles)


def test_as_few_are_dropped_as_make_room() -> None:
    found = [end_beyond([2, 4], [10, 5, 10, 5, 10], num) for num in (1, 15, 16, 30, 31)]
    assert found == [2, 2, 4, 4, 4]


def test_the_newest_two_exchanges_are_never_condensed() -> None:
    turns = messages("uauauau")
    sizes = [10] * len(turns)
    assert [num_condensed(turns, sizes, kept) for kept in (70, 69, 50, 49, 0)] == [0, 2, 2, 4, 4]
    assert num_condensed(turns[:3], sizes[:3], 0) == 0


def test_a_beginning_is_of_the_very_same_messages() -> None:
    turns = messages("uau")
    assert begins_with(turns, turns[:2])
    assert begins_with(turns, [])
    assert not begins_with(turns, turns)
    assert not begins_with(turns, messages("ua"))
