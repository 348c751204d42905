"""Log lines that clients can cause in the web server, and their rate."""

import asyncio
import importlib
import io
import logging
import re
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.applications import Starlette

from agent.observability import server_log
from agent.observability.server_log import LogHandler, Seldom
from tests.support.full_disk import files_limited_to
from tests.support.service.server_connections import ServerUnderTest, end


async def test_requests_that_are_none_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING, "uvicorn.error")  # other servers of the tests are quieter
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "filters", [Seldom()])
    server = ServerUnderTest(cast(Any, Starlette()))
    for _ in range(100):
        wire = server.connect()
        wire.protocol.data_received(b"no request at all\r\n\r\n")
        await asyncio.sleep(0)
        assert wire.sent.startswith(b"HTTP/1.1 400")
        await end(wire)
    lines = [each.getMessage() for each in caplog.records if each.name == "uvicorn.error"]
    assert lines[:2] == [
        "Invalid HTTP request received.",
        "Invalid HTTP request received. (2 in ten minutes)",
    ]
    assert len(lines) == 7
    assert lines[-1].endswith("(64 in ten minutes)")


def record(
    text: str, error: Exception | None = None, level: int = logging.WARNING
) -> logging.LogRecord:
    info = None if error is None else (type(error), error, None)
    return logging.LogRecord("uvicorn.error", level, "", 0, text, (), info)


def test_internal_errors_are_always_logged() -> None:
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


def test_counting_begins_anew() -> None:
    seldom = Seldom()
    told = []
    for later_s in (0, 1, 2, 599.9, 600.1, 600.2, 600.3):
        one = record("a")
        one.created = 1e9 + later_s
        told.append(bool(seldom.filter(one)))
    assert told == [True, True, False, True, True, True, False]


def test_messages_below_warning_are_not_limited() -> None:
    seldom = Seldom()
    assert all(seldom.filter(record("a", level=logging.INFO)) for _ in range(5))
    assert not seldom._numbers


def test_refused_streams_and_webhooks_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each module that warns of what strangers send names its logger after itself."""
    for name in server_log._TELL_OF_STRANGERS:
        assert importlib.import_module(name)._log.name == name
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    levels = {name: logging.getLogger(name).level for name in server_log.PACKAGES}
    server_log.log_to_stderr("info")
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    for name in server_log._TELL_OF_STRANGERS:
        assert logging.getLogger(name).filters == [server_log.SELDOM]
    assert not logging.raiseExceptions


def test_a_full_disk_costs_one_line_a_minute_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    with path.open("w", buffering=1) as stream:
        handler = LogHandler(stream)
        with files_limited_to(0):
            for later_s in (0.0, 1.0, 59.0, 61.0):
                one = record("a call has ended")
                one.created = 1e9 + later_s
                handler.handle(one)
        handler.handle(record("the disk has room"))
    lines = path.read_text().splitlines()
    told = [line for line in lines if "can't be written" in line]
    assert [re.findall(r"\((\d) so far\)", line) for line in told] == [["1"], ["4"]]
    assert all(line.endswith(": OSError: [Errno 27] File too large") for line in told)
    assert lines[-1] == "the disk has room"
    assert handler.num_failed == 4
    assert capsys.readouterr().err == ""


def test_a_line_that_can_not_be_formatted_is_told_with_its_place() -> None:
    stream = io.StringIO()
    bad = logging.LogRecord("agent", logging.ERROR, "agent/x.py", 7, "%d", ("no\nnumber",), None)
    handler = LogHandler(stream)
    handler.handle(bad)
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("Lines of the log can't be written (1 so far), the last one from agent")
    assert "agent/x.py:7: TypeError: " in line


def test_a_closed_log_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    handler = LogHandler(stream)
    handler.handle(record("a"))
    assert handler.num_failed == 1
