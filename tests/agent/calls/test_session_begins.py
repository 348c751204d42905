"""Sessions that can't begin: what the client is told."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from agent.calls.call_state import CallHead, CallState
from agent.calls.service import BROKEN, CANT_BEGIN, WARMING, AdmittedCall
from agent.calls.session_start import SessionStart, session_start
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_writer import FleetCalls, TakenOverCall
from agent.errors import CLOSE_OVERLOADED, CLOSE_POLICY, ClientError
from agent.http.auth.principal import ANYONE
from agent.http.refusal import HttpRefusal
from agent.session.api.conversation import ItemId, Message
from agent.session.api.ids import new_session_id
from agent.session.api.server_events import Notice, Problem
from agent.session.api.session_state import SessionState
from agent.session.api.settings import SessionSettings
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


SCOPE: dict[str, Any] = {"client": ("127.0.0.1", 5000), "headers": []}


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
    await service.hold(service.admit(ANYONE, SCOPE, start, service.socket_rules), carrier)
    ((code, reason, last),) = carrier.ended
    assert (code, reason) == (CLOSE_POLICY, CANT_BEGIN)
    (problem,) = last
    assert isinstance(problem, Problem)
    assert (problem.message, problem.param) == ("pip install 'halfsec[languages]'", param)
    assert made.is_empty


@pytest.mark.parametrize(
    ("status", "refusal"), [("warming", WARMING), ("broken", BROKEN), ("failed", BROKEN)]
)
def test_a_service_that_cannot_work_does_not_say_that_it_loads(
    status: str, refusal: HttpRefusal, tmp_path: Path
) -> None:
    made = TelephonyHarness(ManualClock(), tmp_path)
    made.stages.status = status
    give_way = made.calls.waiting.can_give_way
    assert made.call_service.refusal(ANYONE, None, give_way) == refusal


async def test_a_voice_that_this_server_lacks_is_refused_before_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a call of another server, or of a client secret that was made there."""

    def lack(voice: str, rate_hz: int) -> NoReturn:
        raise ClientError(f"There is no voice {voice!r}.", code="invalid_value", param="voice")

    made = TelephonyHarness(ManualClock(), tmp_path)
    monkeypatch.setattr(made.stages, "open_voice", lack)
    service, carrier = made.call_service, EndedCarrier()
    start = session_start(made.config, ANYONE, None)
    assert isinstance(start, SessionStart)
    elsewhere = replace(start, settings=start.settings.changed(voice="af_elsewhere"))
    await service.hold(service.admit(ANYONE, SCOPE, elsewhere, service.socket_rules), carrier)
    ((code, reason, (problem,)),) = carrier.ended
    assert (code, reason) == (CLOSE_POLICY, CANT_BEGIN)
    assert isinstance(problem, Problem)
    assert "af_elsewhere" in problem.message
    assert made.is_empty


def taken_over(made: TelephonyHarness, *items: Message) -> AdmittedCall:
    """A call of another server, admitted here."""
    start = session_start(made.config, ANYONE, None)
    assert isinstance(start, SessionStart)
    session = new_session_id()
    writer = FleetCalls(MemoryStateStore(made.clock), 60).begin(session, start, "key:1", 3600)
    head = CallHead(session, "default", "m", (), "", 2_000_000_000, 0, ())
    state = SessionState(SessionSettings(), items, 0, 0, 0, 0, (), 0, False, False, None)
    found = TakenOverCall(CallState(head, state), "", writer)
    return made.call_service.admit_taken_over(ANYONE, SCOPE, found)


def refuses_the_language(made: TelephonyHarness) -> tuple[Message, ...]:
    async def refuse(language: str, voice: str) -> str:
        raise ClientError("pip install 'halfsec[languages]'", code="invalid_value")

    made.stages.prepare_language = refuse  # type: ignore[method-assign]
    return ()


def has_contradictory_items(made: TelephonyHarness) -> tuple[Message, ...]:
    item = Message(ItemId("item_1"), "user", "text", "Hello?", "completed")
    return item, item


@pytest.mark.parametrize("prepare", [refuses_the_language, has_contradictory_items])
async def test_a_call_that_can_not_be_taken_over_is_left_to_other_servers(
    tmp_path: Path, prepare: Callable[[TelephonyHarness], tuple[Message, ...]]
) -> None:
    made, carrier = TelephonyHarness(ManualClock(), tmp_path), EndedCarrier()
    held = taken_over(made, *prepare(made))
    await made.call_service.hold(held, carrier)
    ((code, reason, _),) = carrier.ended
    assert (code, reason) == (CLOSE_OVERLOADED, CANT_BEGIN), "with which its record is kept"
    assert made.is_empty
    made.calls.report_end(held.call)
    assert made.calls.document(held.call.session_id) is None, "it is not over"


async def test_a_mistake_of_ours_leaves_a_call_to_other_servers(tmp_path: Path) -> None:
    made, carrier = TelephonyHarness(ManualClock(), tmp_path), EndedCarrier()
    made.stages.fault = LookupError("a mistake of ours")
    held = taken_over(made)
    with pytest.raises(LookupError):
        await made.call_service.hold(held, carrier)
    ((code, _, _),) = carrier.ended
    assert code == CLOSE_OVERLOADED
    assert made.is_empty
    assert held.call.end is None, "it is not over"
