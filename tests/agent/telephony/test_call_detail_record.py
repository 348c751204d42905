"""Call detail records: their contents, omissions and endpoint."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.config.schema import Config
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from agent.telephony.carriers.phone_numbers import shown_number
from latency_budget.account.clock import ManualClock, SystemClock, iso_of
from latency_budget.storage.call_records import CallRecord, read_calls
from latency_budget.storage.database import Place, StoreError
from latency_budget.storage.retention import NS_PER_DAY
from latency_budget.storage.store import TurnStore
from tests.agent.telephony.carriers.test_twilio import frame
from tests.support.fakes.stages import Calling
from tests.support.telephony.telephony_harness import ScriptedCarrier, TelephonyHarness, play

NOW_NS = 1_800_000_000_000_000_000
RECORD = CallRecord(
    session="sess_1",
    began_unix_ns=NOW_NS - 61_500_000_000,
    ended_unix_ns=NOW_NS,
    agent="default",
    carrier="Twilio",
    caller="...45",
    called="...67",
    cause="caller_hung_up",
    reason="the carrier ended the stream",
    turns=3,
    p50_ms=410.5,
    p95_ms=600.0,
    keys=4,
    recording=None,
)


class Kept(list[Any]):
    """In place of a store."""

    add = list.append
    replica = ""


Story = Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]]


def record_of(
    tmp_path: Path,
    story: Story,
    *replies: str | Calling,
    settings: str = "[telephony]\n",
    prepare: Callable[[TelephonyHarness], None] = lambda scene: None,
    **how: Any,
) -> CallRecord:
    """Of one call."""
    kept = Kept()

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(
            clock, tmp_path, *replies, settings=settings, calls={"store": kept}
        )
        prepare(scene)
        await scene.call(lambda carrier: story(scene, carrier), **how)

    play(main)
    (record,) = (each for each in kept if isinstance(each, CallRecord))
    return record


async def nothing(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    pass


async def stops(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.say(frame("stop"))


def test_what_a_call_was_like(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("Hello?")
        await asyncio.sleep(10)
        carrier.press("1379#")
        await asyncio.sleep(5)
        carrier.say(frame("stop"))

    with caplog.at_level(logging.INFO):
        record = record_of(tmp_path, story, "Hello.", "Thank you.")
    assert (record.agent, record.carrier, record.recording) == ("default", "Twilio", None)
    assert record.turns >= 1
    assert record.p50_ms is not None
    assert record.p95_ms is not None
    assert record.p50_ms <= record.p95_ms
    assert record.keys == 5
    assert record.ended_unix_ns - record.began_unix_ns >= 15_000_000_000
    drawn = replace(record, session="", began_unix_ns=0, ended_unix_ns=0)
    assert "1379" not in str(drawn)
    assert "1 3 7 9" not in caplog.text
    assert "caller_hung_up" in caplog.text


@pytest.mark.parametrize(
    ("number", "kept"),
    [("+493012345", "...45"), ("", ""), ("anonymous", "..."), ("sip:7@host", "...7")],
)
def test_of_a_number_two_digits_are_kept(number: str, kept: str) -> None:
    assert shown_number(number, whole=False) == kept
    assert shown_number(number, whole=True) == number


# --- the store ---


@pytest.fixture
def store(place: Place) -> TurnStore:
    return TurnStore(place, max_turns=10, wall_ns=lambda: NOW_NS)


def test_calls_come_back_as_they_were_stored(store: TurnStore) -> None:
    store.start()
    for number in range(5):
        store.add(replace(RECORD, session=f"sess_{number}", recording="a.wav"))
    store.close()
    rows = read_calls(store.place, max_calls=3)
    assert [record.session for _, record in rows] == ["sess_2", "sess_3", "sess_4"]
    assert rows[0][1] == replace(RECORD, session="sess_2", recording="a.wav")
    assert read_calls(store.place, max_calls=3, replica="another:8080") == []
    earlier = read_calls(store.place, max_calls=3, before_row=rows[0][0])
    assert [record.session for _, record in earlier] == ["sess_0", "sess_1"]


def test_calls_that_are_too_old_or_too_many_are_forgotten(store: TurnStore) -> None:
    store.start()
    store.add(replace(RECORD, ended_unix_ns=NOW_NS - 91 * NS_PER_DAY))
    store.add(replace(RECORD, ended_unix_ns=NOW_NS - 4 * NS_PER_DAY))
    store.add(RECORD)
    store.close()
    assert len(read_calls(store.place, max_calls=100)) == 2
    again = TurnStore(store.place, max_turns=10, wall_ns=lambda: NOW_NS)
    again.start()
    for _ in range(20):
        again.add(RECORD)
    again.close()
    assert len(read_calls(store.place, max_calls=100)) == 10


def test_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        read_calls(tmp_path / "nothing.sqlite", max_calls=1)


# --- over HTTP ---


async def client(store: TurnStore | None, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    stages = Stages(Config(), ModelStore(tmp_path, {}), SystemClock())
    access = Authenticator(Config(), KeyFile(tmp_path / "keys.json"), SystemClock())
    app = create_app(Config(), stages, SystemClock(), store, access=access)
    transport = httpx.ASGITransport(app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http
    await stages.close()


async def test_calls_are_listed(store: TurnStore, tmp_path: Path) -> None:
    store.start()
    for number in range(3):
        store.add(replace(RECORD, session=f"sess_{number}"))
    async for http in client(store, tmp_path):
        page = (await http.get("/v1/calls?limit=2")).json()
        assert [each["session"] for each in page["calls"]] == ["sess_1", "sess_2"]
        told = page["calls"][0]
        assert (told["seconds"], told["cause"], told["keys"]) == (61.5, "caller_hung_up", 4)
        assert told["ended_at"] == iso_of(NOW_NS)
        rest = (await http.get(f"/v1/calls?limit=2&before={page['before']}")).json()
        assert [each["session"] for each in rest["calls"]] == ["sess_0"]
        assert rest["before"] is None
        for query in ("limit=0", "limit=1001", "limit=x", "before=x"):
            assert (await http.get(f"/v1/calls?{query}")).status_code == 400
    store.close()


async def test_calls_are_not_kept_where_nothing_is(tmp_path: Path) -> None:
    async for http in client(None, tmp_path):
        refused = await http.get("/v1/calls")
        assert refused.status_code == 400
        assert "latency_budget.store is off" in refused.json()["error"]["message"]
