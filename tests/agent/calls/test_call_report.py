"""Documents of calls: what was heard, how the call ended, and what is left out."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.calls import call_report, registry
from agent.calls.call import ActiveCall, Beginning
from agent.calls.call_report import call_document, document_json, ended_call
from agent.config.layers import load_config
from agent.config.schema import Config
from agent.config.webhooks import WebhookSettings
from agent.http.auth.authenticator import Authenticator
from agent.http.auth.keys import KeyFile
from agent.server.app import Application, create_app
from agent.session.api.conversation import (
    FunctionCall,
    FunctionOutput,
    Item,
    ItemId,
    Message,
    ModelCall,
    ToolRound,
)
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from latency_budget.account.clock import ManualClock, SystemClock, unix_ns
from latency_budget.account.turn import SessionId
from latency_budget.reporting.trace import TraceWriter
from latency_budget.storage.call_documents import MAX_QUEUED_DAYS, EndedCall
from latency_budget.storage.open_database import database_at
from latency_budget.storage.retention import NS_PER_DAY
from latency_budget.storage.store import TurnStore
from tests.agent.telephony.carriers.test_twilio import frame
from tests.support.fakes.stages import Calling
from tests.support.telephony.telephony_harness import ScriptedCarrier, TelephonyHarness, play

HOOK = "[webhooks.crm]\nurl = 'https://hooks.example/calls'\n"
NO_WORDS = HOOK + "transcript = false\n"
REPLY = "We are open from nine to five, and on Saturdays until noon."


class Kept(list[Any]):
    """In place of a store."""

    add = list.append
    replica = "here:1"


def ended_calls(
    tmp_path: Path,
    story: Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]],
    *replies: str | Calling,
    settings: str = HOOK,
) -> list[EndedCall]:
    """What a store gets of one telephone call."""
    kept = Kept()

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(
            clock, tmp_path, *replies, settings=settings, calls={"store": kept}
        )
        await scene.call(lambda carrier: story(scene, carrier))

    play(main)
    return [each for each in kept if isinstance(each, EndedCall)]


async def asks_and_hangs_up(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    scene.ears.say("When are you open?")
    await asyncio.sleep(15)
    carrier.say(frame("stop"))


def test_an_ended_call_is_told_once_with_all_that_was_said(tmp_path: Path) -> None:
    (call,) = ended_calls(tmp_path, asks_and_hangs_up, REPLY)
    (message,) = call.messages
    event = json.loads(message.body)
    data = event["data"]
    ended_ms = call.ended_unix_ns // 10**6
    assert (message.endpoint, message.message_id) == ("crm", f"msg_{call.session}_{ended_ms}")
    assert (event["type"], event["timestamp"]) == ("call.ended", data["ended_at"])
    assert (data["id"], data["status"], data["agent"]) == (call.session, "ended", "default")
    assert data["end"] == {
        "cause": "caller_hung_up",
        "reason": data["end"]["reason"],
    }
    assert data["telephone"]["carrier"] == "Twilio"
    assert [(each["role"], each["text"]) for each in data["transcript"]] == [
        ("user", "When are you open?"),
        ("assistant", REPLY),
    ]
    assert (data["num_turns"], len(data["turns"])) == (1, 1)
    (turn,) = data["turns"]
    assert turn["e2e_server_ms"] == data["p50_ms"]
    exposed = sum(stage["exposed_ms"] for stage in turn["stages"].values())
    assert exposed == pytest.approx(turn["e2e_server_ms"], abs=0.5)


def test_a_caller_who_hangs_up_heard_a_part_of_the_reply(tmp_path: Path) -> None:
    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("When are you open?")
        await asyncio.sleep(4)
        carrier.say(frame("stop"))

    (call,) = ended_calls(tmp_path, story, REPLY)
    _, reply = json.loads(call.messages[0].body)["data"]["transcript"]
    assert reply["status"] == "incomplete"
    assert reply["text"].strip()
    assert REPLY.startswith(reply["text"])
    assert len(reply["text"]) < len(REPLY)


def test_after_a_barge_in_the_transcript_is_the_history(tmp_path: Path) -> None:
    items: list[Item] = []

    async def story(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
        scene.ears.say("When are you open?")
        await asyncio.sleep(4)
        scene.ears.say("No, I mean the other shop in town.")
        await asyncio.sleep(6)
        (call,) = scene.calls._active.values()
        items.extend(call.conversation())
        running = scene.calls.document(call.session_id)
        assert running is not None
        assert (running["status"], running["end"]) == ("in_progress", None)
        assert [each["text"] for each in running["transcript"]] == [each.text for each in items]  # type: ignore[union-attr]
        carrier.say(frame("stop"))

    (call,) = ended_calls(tmp_path, story, REPLY, "It is closed.")
    data = json.loads(call.messages[0].body)["data"]
    assert [each["text"] for each in data["transcript"]] == [each.text for each in items]  # type: ignore[union-attr]
    first, cut, second, last = data["transcript"]
    assert (first["role"], cut["role"], second["role"], last["text"]) == (
        "user", "assistant", "user", "It is closed.",
    )  # fmt: skip
    assert REPLY.startswith(cut["text"])
    assert 0 < len(cut["text"]) < len(REPLY)
    assert (cut["status"], last["status"]) == ("incomplete", "completed")
    assert data["turns"][0]["interrupted"]


@pytest.mark.parametrize(
    ("settings", "in_message", "in_store"),
    [
        (HOOK, True, False),
        (NO_WORDS, False, False),
        (NO_WORDS + "[latency_budget]\nstore_texts = true\n", False, True),
    ],
)
def test_words_go_only_where_the_settings_say_so(
    tmp_path: Path, settings: str, in_message: bool, in_store: bool
) -> None:
    (call,) = ended_calls(tmp_path, asks_and_hangs_up, REPLY, settings=settings)
    data = json.loads(call.messages[0].body)["data"]
    stored = json.loads(call.document)
    for document, has_words in ((data, in_message), (stored, in_store)):
        assert (document["transcript"] is not None) is has_words
        assert ("Saturdays" in json.dumps(document)) is has_words
    assert {**data, "transcript": None} == {**stored, "transcript": None}


# --- over HTTP ---


@asynccontextmanager
async def serving(
    store: TurnStore | None, tmp_path: Path, config: Config
) -> AsyncIterator[tuple[Application, httpx.AsyncClient]]:
    clock = SystemClock()
    stages = Stages(config, ModelStore(tmp_path, {}), clock)
    access = Authenticator(config, KeyFile(tmp_path / "keys.json"), clock)
    app = create_app(config, stages, clock, store, access=access)
    transport = httpx.ASGITransport(app.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield app, http
    await stages.close()


async def test_a_call_is_found_while_it_runs_at_its_end_and_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "MAX_DOCUMENTS", 1)
    store = TurnStore(tmp_path / "turns.sqlite", replica="here:1")
    store.start()
    async with serving(store, tmp_path, Config()) as (app, http):
        call = app.calls.admit(SessionId("sess_a"), "default")
        call.conversation = lambda: (said(1, "Hello."),)
        running = (await http.get("/v1/calls/sess_a")).json()
        assert (running["status"], running["transcript"][0]["text"]) == ("in_progress", "Hello.")
        call.ended("silent", "nobody spoke", call.began.now_ns + 2_500_000_000)
        app.calls.leave(call)
        between = (await http.get("/v1/calls/sess_a")).json()
        app.calls.report_end(call)
        ended = (await http.get("/v1/calls/sess_a")).json()
        assert between == ended
        assert (ended["status"], ended["seconds"]) == ("ended", 2.5)
        assert ended["end"] == {"cause": "silent", "reason": "nobody spoke"}
        assert ended["transcript"] == running["transcript"]
        other = app.calls.admit(SessionId("sess_b"), "default")
        other.ended("lost", "gone", other.began.now_ns)
        app.calls.leave(other)
        app.calls.report_end(other)
        stored = (await http.get("/v1/calls/sess_a")).json()
        assert stored == {**ended, "transcript": None}
        assert (await http.get("/v1/calls/sess_c")).status_code == 404
    store.close()


async def test_a_clock_that_is_put_right_amid_a_call_costs_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a clock of its own begins where it was switched off days ago."""
    now_ns = unix_ns()
    behind_ns = (MAX_QUEUED_DAYS + 1) * NS_PER_DAY
    store = TurnStore(tmp_path / "turns.sqlite", wall_ns=lambda: now_ns)
    async with serving(store, tmp_path, load_config(file_text=HOOK)) as (app, _):
        monkeypatch.setattr(registry, "unix_ns", lambda: now_ns - behind_ns)
        call = app.calls.admit(SessionId("sess_a"), "default")
        monkeypatch.setattr(registry, "unix_ns", lambda: now_ns)
        call.ended("silent", "nobody spoke", call.began.now_ns)
        app.calls.leave(call)
        app.calls.report_end(call)
    store.start()
    assert store.flush()
    store.close()
    reader = database_at(store.place).connect_reader()
    ((created_ns,),) = reader.execute("SELECT created_unix_ns FROM webhook_messages").fetchall()
    reader.close()
    assert created_ns == now_ns


async def test_without_a_store_the_newest_are_in_memory(tmp_path: Path) -> None:
    async with serving(None, tmp_path, Config()) as (app, http):
        for number in range(registry.MAX_DOCUMENTS + 1):
            call = app.calls.admit(SessionId(f"sess_{number}"), "default")
            call.ended("lost", "gone", call.began.now_ns)
            app.calls.leave(call)
            app.calls.report_end(call)
        assert (await http.get("/v1/calls/sess_0")).status_code == 404
        assert (await http.get("/v1/calls/sess_1")).json()["id"] == "sess_1"


async def test_a_call_that_goes_on_elsewhere_is_not_told(tmp_path: Path) -> None:
    async with serving(None, tmp_path, Config()) as (app, http):
        call = app.calls.admit(SessionId("sess_a"), "default")
        app.calls.leave(call)
        app.calls.report_end(call)
        assert (await http.get("/v1/calls/sess_a")).status_code == 404


async def test_calls_are_shown_only_to_those_with_a_key(tmp_path: Path) -> None:
    config = load_config(file_text="[access]\nrequire_key = 'always'\n")
    async with serving(None, tmp_path, config) as (app, http):
        app.calls.admit(SessionId("sess_a"), "default")
        assert (await http.get("/v1/calls/sess_a")).status_code == 401
        assert (await http.get("/v1/calls")).status_code == 401


# --- the document alone ---


def call_of(session: str = "sess_a") -> ActiveCall:
    trace = TraceWriter(SessionId(session), started_unix_ns=0, config_fingerprint="", origin_ns=0)
    return ActiveCall(SessionId(session), "default", trace, Beginning(0, 10**18))


def said(number: int, text: str) -> Message:
    return Message(ItemId(f"item_{number}"), "user", "text", text)


def test_tool_calls_of_server_and_client_without_their_words() -> None:
    rounds = (ToolRound(0, 0, (ModelCall("weather", '{"in": "Ulm"}'),), ("Rain.",)),)
    items: tuple[Item, ...] = (
        Message(ItemId("item_0"), "system", "text", "Be kind."),
        said(1, "And in Ulm?"),
        Message(ItemId("item_2"), "assistant", "audio", "It rains.", rounds=rounds),
        FunctionCall(ItemId("item_3"), "call_1", "book", '{"room": 7}'),
        FunctionOutput(ItemId("item_4"), "call_1", "booked"),
        FunctionCall(ItemId("item_5"), "call_2", "pay", "{}"),
    )
    document = call_document(call_of(), items)
    assert [each["item_id"] for each in document["transcript"]] == ["item_1", "item_2"]
    assert [tuple(each.values()) for each in document["tool_calls"]] == [
        ("item_2", "server", "weather", '{"in": "Ulm"}', "Rain."),
        ("item_3", "client", "book", '{"room": 7}', "booked"),
        ("item_5", "client", "pay", "{}", None),
    ]
    endpoints = {"crm": WebhookSettings("https://a.example", transcript=False)}
    kept = ended_call(document, 1, endpoints, store_texts=True)
    told = json.loads(kept.messages[0].body)["data"]
    assert [(each["name"], each["arguments"], each["result"]) for each in told["tool_calls"]] == [
        ("weather", None, None), ("book", None, None), ("pay", None, None),
    ]  # fmt: skip
    assert "Ulm" not in kept.messages[0].body
    assert "Ulm" in kept.document


def test_of_too_long_a_call_the_oldest_words_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_report, "MAX_TEXT_CHARS", 10)
    items = tuple(said(number, "word") for number in range(4))
    document = call_document(call_of(), items)
    assert [each["item_id"] for each in document["transcript"]] == ["item_2", "item_3"]
    assert document["is_cut"]
    assert not call_document(call_of(), items[:2])["is_cut"]
    huge = (said(1, "a"), said(2, "b" * 11))
    assert call_document(call_of(), huge)["transcript"] == []


def test_half_a_surrogate_pair_can_be_encoded() -> None:
    document = call_document(call_of(), (said(1, "\ud83d"),))
    text = document_json(document)
    assert text.isascii()
    assert json.loads(text)["transcript"][0]["text"] == "\ud83d"
