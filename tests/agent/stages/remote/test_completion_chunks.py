"""Chunks of servers of different make, and calls in pieces."""

import json

import pytest

from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.stages.remote import completion_chunks
from agent.stages.remote.completion_chunks import (
    MAX_ARGUMENT_CHARS,
    MAX_CALLS,
    CallAssembler,
    CallPiece,
    Chunk,
    ReplyLimit,
    ReportedError,
    error_text,
    parse_chunk,
)
from agent.stages.remote.event_stream import MalformedStreamError

NAMES = frozenset(("weather", "book"))


def piece(
    index: int | None, id: str = "", name: str = "", arguments: str = ""
) -> tuple[CallPiece, ...]:
    return (CallPiece(index, id, name, arguments),)


def delta(**fields: object) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})


@pytest.mark.parametrize(
    ("data", "chunk"),
    [
        (delta(role="assistant", content=""), Chunk()),
        (delta(content=None, reasoning_content="Hm"), Chunk(thinks=True)),
        (delta(reasoning="Hm"), Chunk(thinks=True)),
        ('{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}',
         Chunk(usage=Usage(7, 0, 2))),
        ('{"usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}}}',
         Chunk(usage=Usage(7, 4, 0))),
        ('{"choices": [{"delta": {}, "finish_reason": "length"}], "usage": null}',
         Chunk(finish_reason="length")),
        ('{"choices": [{"delta": null, "finish_reason": "stop"}]}', Chunk(finish_reason="stop")),
        ('{"usage": {"prompt_tokens": 7, "prompt_tokens_details": null}}', Chunk(usage=Usage(7))),
        ('{"usage": {"prompt_tokens": 7, "prompt_cache_hit_tokens": 4}}',
         Chunk(usage=Usage(7, 4, 0))),
        ('{"usage": {"prompt_tokens": 7, "cached_tokens": 4}}', Chunk(usage=Usage(7, 4, 0))),
        ('{"usage": {"prompt_tokens": -1, "completion_tokens": "2"}}', Chunk(usage=Usage())),
        ('{"usage": {"prompt_tokens": 1' + "0" * 4299 + ', "completion_tokens": 9007199254740992}}',
         Chunk(usage=Usage())),
    ],
)  # fmt: skip
def test_a_chunk_is_read(data: str, chunk: Chunk) -> None:
    assert parse_chunk(data) == chunk


@pytest.mark.parametrize(
    "data",
    [
        "<html>",
        "[1]",
        '"text"',
        '{"choices": 1}',
        '{"choices": ["x"]}',
        '{"choices": [{"delta": "x"}]}',
        '{"choices": [{"delta": {"content": 1}}]}',
        '{"choices": [{"delta": {"tool_calls": {"a": 1}}}]}',
        '{"choices": [{"delta": {"tool_calls": [1]}}]}',
        '{"choices": [{"delta": {"content": "\\ud800"}}]}',
        '{"a": ' * 5000 + "1" + "}" * 5000,
        '{"usage": {"prompt_tokens": ' + "9" * 5000 + "}}",
    ],
)
def test_what_is_no_chunk_is_refused(data: str) -> None:
    with pytest.raises(MalformedStreamError):
        parse_chunk(data)


@pytest.mark.parametrize(
    ("data", "message", "status"),
    [
        ('{"error": {"message": "out of memory", "code": 500}}', "out of memory", 500),
        ('{"error": {"message": "slow down", "code": "rate_limit"}}', "slow down", 0),
        ('{"error": "overloaded"}', "overloaded", 0),
        ('{"object": "error", "message": "bad", "error": {"message": 3}}', "", 0),
    ],
)
def test_an_error_in_the_stream_is_reported(data: str, message: str, status: int) -> None:
    with pytest.raises(ReportedError, match=f"^{message}$") as caught:
        parse_chunk(data)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "is unavailable", "param": "seed"}}, "seed: is unavailable"),
        ({"error": {"message": "no seed here", "param": "seed"}}, "no seed here"),
        ({"error": {"message": "bad", "param": ["seed"]}}, "bad"),
        ({"detail": "Unexpected fields"}, "Unexpected fields"),
        ({"detail": [{"loc": ["body", "tools", 0, "strict"], "msg": "Extra input", "input": "x"}]},
         "tools.0.strict: Extra input"),
        ({"detail": ["x", {"loc": 1, "msg": 2}]}, "; : "),
        ({}, ""),
    ],
)  # fmt: skip
def test_an_error_names_the_field_at_fault(body: dict[str, object], text: str) -> None:
    assert error_text(body) == text


def test_pieces_with_ids_of_their_own_are_one_call() -> None:
    """vLLM before version 0.8, and where a call was demanded the name as well."""
    calls = CallAssembler(NAMES)
    calls.push(piece(0, "a", "weather", '{"city":'))
    calls.push(piece(0, "b", "weather", ' "Bo'))
    assert calls.push(piece(0, "c", "", 'nn"}')) == ()
    weather = ModelCall("weather", '{"city": "Bonn"}')
    assert calls.push(piece(0, "d", "weather", "{}")) == (weather,), "the first one is complete"
    assert calls.flush(is_whole=True) == (ModelCall("weather", "{}"),)


def test_arguments_without_end_are_refused() -> None:
    calls = CallAssembler(NAMES)
    part = "1," * 128
    for number in range(MAX_ARGUMENT_CHARS // len(part)):
        assert calls.push(piece(0, f"id{number}", "weather", part)) == ()
    with pytest.raises(MalformedStreamError, match="more than 65536 characters of arguments"):
        calls.push(piece(0, "last", "weather", "1"))


def test_the_end_of_arguments_is_looked_for_behind_a_brace_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that came before is read then: at each piece, the time would grow with its square."""
    read: list[str] = []

    def is_object(text: str) -> bool:
        read.append(text)
        return isinstance(json.loads(text), dict)

    monkeypatch.setattr(completion_chunks, "_is_object", is_object)
    calls = CallAssembler(NAMES)
    calls.push(piece(0, "a", "weather", '{"a": [0'))
    for number in range(1, 401):
        calls.push(piece(0, f"id{number}", "weather", f",{number}"))
    calls.push(piece(0, "b", "weather", "]}\n"))
    assert not read
    (call,) = calls.push(piece(0, "c", "weather", "{}"))
    assert json.loads(call.arguments) == {"a": list(range(401))}
    assert len(read) == 2, "to see that it has ended, and that it is whole"


def test_calls_in_pieces_are_put_together() -> None:
    calls = CallAssembler(NAMES)
    assert calls.push(piece(0, "a", "weather", "")) == ()
    for part in ('{"ci', 'ty": "Bo', 'nn"}'):
        assert calls.push(piece(0, arguments=part)) == ()
    weather = ModelCall("weather", '{"city": "Bonn"}')
    assert calls.push(piece(1, "b", "book", "{}")) == (weather,)
    assert calls.flush(is_whole=True) == (ModelCall("book", "{}"),)


def test_servers_without_index_or_ids() -> None:
    calls = CallAssembler(NAMES)
    one, two = piece(None, "", "weather", '{"a": 1}'), piece(None, "", "book", "")
    assert calls.push((*one, *two)) == (ModelCall("weather", '{"a": 1}'),)
    assert calls.flush(is_whole=True) == (ModelCall("book", "{}"),)
    calls = CallAssembler(NAMES)
    calls.push(piece(0, "a", "weather", "{}"))
    assert calls.push(piece(0, "b", "book", "{}")) == (ModelCall("weather", "{}"),)


def test_a_name_that_is_repeated_in_each_piece_begins_no_other_call() -> None:
    calls = CallAssembler(NAMES)
    calls.push(piece(0, "a", "weather", '{"a":'))
    calls.push(piece(0, "a", "weather", " 1}"))
    assert calls.flush(is_whole=True) == (ModelCall("weather", '{"a": 1}'),)


def test_a_call_that_was_broken_off_is_dropped() -> None:
    calls = CallAssembler(NAMES)
    calls.push(piece(0, "a", "weather", "{}"))
    assert calls.push(piece(1, "b", "book", '{"day": "Fri')) == (ModelCall("weather", "{}"),)
    assert calls.flush(is_whole=False) == ()


@pytest.mark.parametrize("arguments", ['{"day": ', "[]", '"x"', "nonsense"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    calls = CallAssembler(NAMES)
    calls.push(piece(0, "a", "weather", arguments))
    with pytest.raises(MalformedStreamError, match="no JSON object"):
        calls.flush(is_whole=True)


@pytest.mark.parametrize("name", ["", "sing"])
def test_tools_that_were_not_offered_are_refused(name: str) -> None:
    with pytest.raises(MalformedStreamError, match="not offered"):
        CallAssembler(NAMES).push(piece(0, "a", name, "{}"))


def test_calls_without_end_are_refused() -> None:
    calls = CallAssembler(NAMES)
    for number in range(MAX_CALLS):
        calls.push(piece(number, f"id{number}", "book", "{}"))
    with pytest.raises(MalformedStreamError, match="more than 64"):
        calls.push(piece(MAX_CALLS, "another", "book", "{}"))


@pytest.mark.parametrize(
    ("request_fields", "max_chars"),
    [
        ({"max_tokens": 16}, 16 * 16 + 256),
        ({"max_tokens": 16, "max_completion_tokens": 1000}, 1000 * 16 + 256),
        ({"max_tokens": None}, 8192 * 16 + 256),
        ({"max_tokens": -1}, 8192 * 16 + 256),
        ({}, 8192 * 16 + 256),
    ],
)
def test_a_reply_ends_where_it_is_much_longer_than_its_limit(
    request_fields: dict[str, object], max_chars: int
) -> None:
    limit = ReplyLimit(request_fields)
    thought = Chunk(thinks=True)
    assert limit.cut(thought) is thought, "the server's limit may be one of the words alone"
    words = Chunk("x" * (max_chars - 3))
    assert limit.cut(words) is words
    call = Chunk(calls=piece(0, arguments=""))
    assert limit.cut(call) is call
    assert limit.cut(Chunk("abc", usage=Usage(1))) == Chunk(
        "ab", finish_reason="length", usage=Usage(1)
    )
    assert limit.is_over
