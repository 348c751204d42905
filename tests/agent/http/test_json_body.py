"""JSON bodies: the room of each client, and numbers."""

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from agent.codec.json_frame import MAX_NUMBER_CHARS, read_frame
from agent.errors import ClientError
from agent.http import json_body
from agent.http.auth.principal import SCOPE_KEY, Principal, client_of
from agent.http.json_body import JsonBodies, RefusedError
from llm_engine.errors import RequestError


def request(body: bytes, address: str = "192.0.2.1", key_id: str = "") -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    principal = Principal("x", "key", key_id=key_id)
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "client": (address, 1), "headers": headers, SCOPE_KEY: principal}
    return Request(scope, receive)


def text(size: int) -> bytes:
    """A JSON text of so many bytes."""
    return b'"' + b"x" * (size - 2) + b'"'


@pytest.mark.parametrize("is_keyed", [True, False])
async def test_one_client_leaves_room_to_others(
    monkeypatch: pytest.MonkeyPatch, is_keyed: bool
) -> None:
    """Half of it alone; of two clients, a third each; the next one always finds some."""
    monkeypatch.setattr(json_body, "MAX_HELD_BYTES", 1200)
    bodies = JsonBodies(client_of)

    def of(client: int, size: int) -> Any:
        if is_keyed:
            return bodies.read(request(text(size), key_id=f"key:{client}"))
        return bodies.read(request(text(size), f"192.0.2.{client}"))

    async with AsyncExitStack() as stack:
        for _ in range(6):
            await stack.enter_async_context(of(1, 100))
        with pytest.raises(RefusedError, match="no room beside yours") as refused:
            await stack.enter_async_context(of(1, 3))
        assert refused.value.status == 503
        for client in (2, 3, 4):
            free = 1200 - bodies._held_bytes
            await stack.enter_async_context(of(client, free // 2))
            with pytest.raises(RefusedError, match="no room beside yours"):
                await stack.enter_async_context(of(client, 3))
        with pytest.raises(RefusedError, match="no room beside others"):
            await stack.enter_async_context(of(5, 76))  # more than there is
    assert (bodies._held_bytes, bodies._held_of) == (0, {})
    async with of(1, 600):
        pass


@pytest.mark.parametrize("number", ["0.{}", "-2.{}e-310", "1{}e5", "1e-{}"])
async def test_long_numbers_are_refused(number: str) -> None:
    """Before they are read: Python takes microseconds for each of more than 40 digits."""
    empty = len(number.format(""))
    longest = number.format("3".zfill(MAX_NUMBER_CHARS - empty))
    assert len(longest) == MAX_NUMBER_CHARS
    async with JsonBodies(client_of).read(request(b'{"x": %s}' % longest.encode())) as body:
        assert body == read_frame(f'{{"x": {longest}}}') == {"x": float(longest)}
    longer = number.format("3".zfill(MAX_NUMBER_CHARS - empty + 1))
    with pytest.raises(RequestError, match="has 41 characters; at most 40 are taken"):
        async with JsonBodies(client_of).read(request(b'{"x": %s}' % longer.encode())):
            pass
    with pytest.raises(ClientError, match="has 41 characters; at most 40 are taken"):
        read_frame(f'{{"x": {longer}}}')


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_that_programs_write_is_read(number: float) -> None:
    assert read_frame(json.dumps({"x": number})) == {"x": number}
    assert read_frame(f'{{"x": {number:.17e}}}') == {"x": number}


async def test_what_is_wrong_with_a_body_is_said() -> None:
    for body, reason in ((b"{", "is not JSON"), (b"\xff", "is not JSON"), (b"9" * 5000, "number")):
        with pytest.raises(RequestError, match=reason):
            async with JsonBodies(client_of).read(request(body)):
                pass
