"""What strangers make the web server write, and how often."""

import asyncio
import logging
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from agent.server_log import Seldom

from .connection_house import House, end


async def test_requests_that_are_none_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "uvicorn.error")  # other servers of the tests are quieter
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "filters", [Seldom()])
    house = House(cast(Any, Starlette()))
    for _ in range(100):
        wire = house.connect()
        wire.protocol.data_received(b"no request at all\r\n\r\n")
        await asyncio.sleep(0)
        assert wire.sent.startswith(b"HTTP/1.1 400")
        await end(wire)
    lines = [each.getMessage() for each in caplog.records if each.name == "uvicorn.error"]
    assert lines[:2] == [
        "Invalid HTTP request received.",
        "Invalid HTTP request received. (2 so far)",
    ]
    assert len(lines) == 7
    assert lines[-1].endswith("(64 so far)")


def record(text: str, error: Exception | None = None) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, text, (), info)


def test_mistakes_of_ours_are_always_told() -> None:
    seldom = Seldom()
    assert all(seldom.filter(record("Exception", ValueError())) for _ in range(5))


def test_each_message_has_its_own_number_and_not_without_end() -> None:
    seldom = Seldom()
    assert [bool(seldom.filter(record("a"))) for _ in range(4)] == [True, True, False, True]
    assert seldom.filter(record("b"))
    assert not seldom.filter(record("a"))
    for number in range(1000):
        assert seldom.filter(record(f"message {number}"))
    assert len(seldom._numbers) <= 64
