"""Sessions that can't begin: what the client is told."""

from pathlib import Path
from typing import Any, NoReturn

import pytest

from agent.calls.service import CANT_BEGIN
from agent.calls.session_start import SessionStart, session_start
from agent.errors import CLOSE_POLICY, ClientError
from agent.http.auth.principal import ANYONE
from agent.session.api.server_events import Notice, Problem
from latency_budget.account.clock import ManualClock
from tests.support.telephony.telephony_harness import TelephonyHarness


class EndedCarrier:
    """Notes how the call ended."""

    is_extended = True
    tools: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.ended: list[tuple[int, str, tuple[Notice, ...]]] = []

    def notify(self, notice: Notice) -> None:
        raise AssertionError("the session has not begun")

    async def serve(self, session: object) -> NoReturn:
        raise AssertionError("the session has not begun")

    async def end(self, code: int, reason: str, *last: Notice) -> None:
        self.ended.append((code, reason, last))


async def test_the_client_is_told_why_its_language_is_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    param = "session.audio.input.transcription.language"

    async def refuse(language: str, voice: str) -> str:
        raise ClientError("pip install 'halfsec[languages]'", code="invalid_value", param=param)

    made = TelephonyHarness(ManualClock(), tmp_path)
    monkeypatch.setattr(made.stages, "prepare_language", refuse)
    service, carrier = made.call_service, EndedCarrier()
    start = session_start(made.config, ANYONE, None)
    assert isinstance(start, SessionStart)
    scope: dict[str, Any] = {"client": ("127.0.0.1", 5000), "headers": []}
    await service.hold(service.admit(ANYONE, scope, start, service.socket_rules), carrier)
    ((code, reason, last),) = carrier.ended
    assert (code, reason) == (CLOSE_POLICY, CANT_BEGIN)
    (problem,) = last
    assert isinstance(problem, Problem)
    assert (problem.message, problem.param) == ("pip install 'halfsec[languages]'", param)
    assert made.is_empty
