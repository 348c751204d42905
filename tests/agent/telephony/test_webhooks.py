"""`/telephony/CARRIER/voice` and what comes of it: who is believed, what the caller hears, and that
the token which the answer has opens the stream of that call alone."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from twilio.request_validator import RequestValidator

from agent.errors import CLOSE_NORMAL, CLOSE_POLICY
from agent.session.api.ids import new_session_id
from agent.stages.registry import Status
from agent.telephony import webhooks
from agent.telephony.carriers.webhook import FORM
from agent.telephony.webhooks import BUSY_WORDS, CLOSED_WORDS, MAX_BODY_BYTES, UNANSWERED_WORDS
from latency_budget.account.clock import unix_ns
from tests.agent.telephony.carriers.test_twilio import CALL, start
from tests.agent.telephony.carriers.test_webhooks import WEBHOOKS
from tests.support.telephony.telephony_server import (
    AUTH_TOKEN,
    PUBLIC,
    SALES,
    SETTINGS,
    TOKEN,
    ServerUnderTest,
    basic,
    logged_text,
    telephony_server,
    token_in,
)

pytest_plugins = ["tests.support.telephony.phone_fixtures"]

VOICE = "/telephony/twilio/voice"
STATUS = "/telephony/twilio/status"
STREAM = "wss://voice.example.com/telephony/twilio/stream"


# --- Twilio, from the ring to the stream ---


async def test_a_call_rings_and_is_answered(
    server: ServerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await server.twilio()
    assert answer.headers["content-type"].startswith("application/xml")
    assert "no-store" in answer.headers["cache-control"]
    assert f'<Stream url="{STREAM}">' in answer.text
    token = token_in(answer)
    stream = await server.stream("twilio", start(customParameters={"token": token}))
    assert (stream.status, stream.closed[0]) == (101, CLOSE_NORMAL)
    (held,) = server.held
    assert (held.principal.name, held.principal.kind) == ("Twilio", "carrier")
    assert held.start.agent == "sales"
    assert re.search("from '[^']*00' to '[^']*45': sales answers", logged_text(caplog)), (
        "of the webhook"
    )
    again = await server.stream("twilio", start(customParameters={"token": token}))
    assert again.closed[0] == CLOSE_POLICY
    assert "no token of this server's" in again.closed[1]
    assert len(server.held) == 1
    assert token not in logged_text(caplog)
    assert AUTH_TOKEN not in logged_text(caplog)


async def test_other_numbers_are_the_default_agents(server: ServerUnderTest) -> None:
    token = token_in(await server.twilio(To="+15550199"))
    await server.stream("twilio", start(customParameters={"token": token, "agent": "sales"}))
    assert server.held[0].start.agent == "default", "a token's agent is not a parameter's"


async def test_twilio_may_ask_by_get(server: ServerUnderTest) -> None:
    query = urlencode({"CallSid": "CA1", "To": SALES, "From": "anonymous"})
    signature = RequestValidator(AUTH_TOKEN).compute_signature(f"{PUBLIC}{VOICE}?{query}", {})
    answer = await server.http.get(f"{VOICE}?{query}", headers={"X-Twilio-Signature": signature})
    assert token_in(answer)


@pytest.mark.parametrize("went", ["busy", "no-answer", "failed", "canceled"])
async def test_a_caller_whom_nobody_answered_is_back_with_his_agent(
    server: ServerUnderTest, went: str
) -> None:
    until = unix_ns() // 10**9 + 100
    path = f"{VOICE}?agent=sales&until={until}"
    token = token_in(await server.twilio(path, To="+15550199", DialCallStatus=went))
    await server.stream("twilio", start(customParameters={"token": token}))
    (held,) = server.held
    assert held.start.agent == "sales", "not that of the number"
    assert held.start.profile.greeting == server.config.telephony.transfer_unanswered
    assert 90 <= held.rules.limit_s <= 100, "what is left of the longest call"


async def test_a_transferred_call_that_is_over_is_ended(server: ServerUnderTest) -> None:
    for went in ("completed", "answered"):
        answer = await server.twilio(f"{VOICE}?agent=sales", DialCallStatus=went)
        assert answer.status_code == 200
        assert answer.text == "<Response><Hangup /></Response>"


async def test_nobody_comes_back_when_the_longest_call_is_over(server: ServerUnderTest) -> None:
    """Twilio signs no time: somebody has recorded the question."""
    path = f"{VOICE}?agent=sales&until={unix_ns() // 10**9 - 1}"
    answer = await server.twilio(path, DialCallStatus="busy")
    assert answer.text == "<Response><Hangup /></Response>"


async def test_who_comes_back_and_finds_no_line_is_told_so(server: ServerUnderTest) -> None:
    """A call that is on can't be rejected with the busy tone."""
    server.stages.current_status = "warming"
    answer = await server.twilio(f"{VOICE}?agent=sales", DialCallStatus="busy")
    assert answer.text == f"<Response><Say>{UNANSWERED_WORDS}</Say><Hangup /></Response>"


async def test_who_comes_back_is_believed_by_the_signature_alone(server: ServerUnderTest) -> None:
    form = {"CallSid": "CA1", "DialCallStatus": "busy"}
    answer = await server.post(f"{VOICE}?agent=sales", form)
    assert answer.status_code == 403
    answer = await server.twilio(
        f"{VOICE}?agent=sales", public=f"{PUBLIC}?agent=default", DialCallStatus="busy"
    )
    assert answer.status_code == 403


async def test_path_and_query_are_hashed_as_they_came(server: ServerUnderTest) -> None:
    assert token_in(await server.twilio(f"{VOICE}?a=%7Eb&c=d+e&a=1"))


@pytest.mark.parametrize(
    "changes",
    [
        {"secret": "f" * 32},
        {"public": "https://other.example.com"},
        {"public": "http://voice.example.com"},
        {"public": f"{PUBLIC}/behind"},
    ],
)
async def test_who_is_not_twilio_learns_over_what_it_was_checked(
    server: ServerUnderTest, changes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await server.twilio(**changes)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "signature_wrong")
    assert f"{PUBLIC}{VOICE}" in answer.json()["error"]["message"]
    assert f"checked over {PUBLIC}{VOICE}. If" in logged_text(caplog)
    assert not TOKEN.search(answer.text)
    assert AUTH_TOKEN not in logged_text(caplog) + answer.text


async def test_what_is_not_signed_is_refused(server: ServerUnderTest) -> None:
    answer = await server.post(VOICE, {"CallSid": "CA1"})
    assert answer.status_code == 403
    assert "no X-Twilio-Signature" in answer.text
    stream = await server.stream("twilio", start())
    assert stream.closed[0] == CLOSE_POLICY
    assert not server.held


async def test_a_key_does_for_a_signature(server: ServerUnderTest) -> None:
    wrong = await server.post(VOICE, {"CallSid": "C"}, basic("hs_x"))
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (401, "invalid_api_key")
    key, bounded = await server.key(), await server.key("kiosk", agents=("sales",))
    for password, name, agent in ((key, "ana", "default"), (bounded, "kiosk", "sales")):
        answer = await server.post(VOICE, {"CallSid": CALL}, basic(password))
        await server.stream("twilio", start(customParameters={"token": token_in(answer)}))
        held = server.held.pop()
        assert (held.principal.name, held.start.agent) == (name, agent)


async def test_without_a_secret_it_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TWILIO_AUTH_TOKEN", raising=False)
    async with telephony_server(tmp_path, monkeypatch) as server:
        answer = await server.twilio()
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "no_signature")
        assert "telephony.twilio_auth_token_env" in answer.text
        answer = await server.http.get("/telephony/exotel/voice?CallSid=c")
        assert answer.status_code == 401
        assert "https://halfsec:KEY@" in answer.text


async def test_a_public_address_closes_the_server(server: ServerUnderTest) -> None:
    """What is in front of it brings everybody here."""
    assert (await server.http.get("/v1/sessions")).status_code == 401
    assert (await server.http.get("/readyz")).json()["needs_key"] is True


async def test_without_a_public_address_nothing_can_be_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.replace(f'public_url = "{PUBLIC}"', "")
    async with telephony_server(tmp_path, monkeypatch, settings) as server:
        server.http.base_url = httpx.URL("http://localhost")
        answer = await server.twilio()
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_configured")
        assert "telephony.public_url" in answer.text


# --- the stream's own signature ---


SIGNED = {"x-twilio-signature": RequestValidator(AUTH_TOKEN).compute_signature(STREAM, {})}


async def test_a_signed_upgrade_needs_a_token_as_well(server: ServerUnderTest) -> None:
    """It could be sent again by whoever has seen it."""
    stream = await server.stream("twilio", start(), headers=SIGNED)
    assert (stream.status, stream.closed[0]) == (101, CLOSE_POLICY)
    assert not server.held
    parameters = {"token": token_in(await server.twilio())}
    await server.stream("twilio", start(customParameters=parameters), headers=SIGNED)
    assert server.held[0].principal.kind == "carrier"


async def test_with_twiml_of_ones_own_the_signature_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWILIO_AUTH_TOKEN", AUTH_TOKEN)
    settings = SETTINGS.replace("[telephony]", "[telephony]\nown_twiml = true")
    async with telephony_server(tmp_path, monkeypatch, settings) as server:
        parameters = {"agent": "sales"}
        await server.stream("twilio", start(customParameters=parameters), headers=SIGNED)
        (held,) = server.held
        assert (held.principal.name, held.start.agent) == ("Twilio", "sales")
        wrong = await server.stream("twilio", start(), headers={"x-twilio-signature": "AAAA"})
        assert wrong.status == 403
        unsigned = await server.stream("twilio", start())
        assert unsigned.closed[0] == CLOSE_POLICY


@pytest.mark.parametrize(
    "url", [STREAM.replace("wss", "https"), STREAM.replace("voice.", "evil."), PUBLIC + VOICE]
)
async def test_an_upgrade_that_is_signed_wrong_is_refused(
    server: ServerUnderTest, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Even with a token: somebody else has it."""
    token = token_in(await server.twilio())
    signature = RequestValidator(AUTH_TOKEN).compute_signature(url, {})
    stream = await server.stream(
        "twilio",
        start(customParameters={"token": token}),
        headers={"x-twilio-signature": signature},
    )
    assert stream.status == 403
    assert f"checked over {STREAM}" in logged_text(caplog)
    assert not server.held


# --- bad input ---


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"a=" + b"x" * MAX_BODY_BYTES, FORM, 413),
        (b"\xff\xfe=\x00", FORM, 400),
        (b"&".join(b"a=1" for _ in range(1000)), FORM, 400),
        (b'{"CallSid": "CA1"}', "application/json", 400),
        (b"To=%2B1", FORM, 403),
    ],
)
async def test_bad_bodies(server: ServerUnderTest, content: bytes, kind: str, status: int) -> None:
    headers = {"Content-Type": kind, "X-Twilio-Signature": "x"}
    answer = await server.http.post(VOICE, content=content, headers=headers)
    assert (answer.status_code, bool(answer.json()["error"]["message"])) == (status, True)


async def test_a_call_without_an_id_is_none(server: ServerUnderTest) -> None:
    answer = await server.twilio(CallSid="")
    assert answer.status_code == 400
    assert "CallSid is missing" in answer.text


async def test_a_body_that_does_not_come_is_not_waited_for(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "BODY_TIMEOUT_S", 0.0)

    async def never() -> AsyncIterator[bytes]:
        yield b"CallSid="
        await asyncio.Event().wait()

    answer = await server.http.post(VOICE, content=never(), headers={"Content-Type": FORM})
    assert answer.status_code == 408


@pytest.mark.parametrize("carrier", WEBHOOKS)
async def test_other_methods_are_refused(server: ServerUnderTest, carrier: str) -> None:
    key = {"Authorization": f"Bearer {await server.key()}"}
    answer = await server.http.put(f"/telephony/{carrier}/voice", headers=key)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == set(WEBHOOKS[carrier].methods)


# --- no line ---


@pytest.mark.parametrize(("status", "text"), [("warming", CLOSED_WORDS), ("broken", CLOSED_WORDS)])
async def test_a_caller_who_comes_at_a_bad_time_hears_so(
    server: ServerUnderTest, status: Status, text: str
) -> None:
    server.stages.current_status = status
    answer = await server.twilio()
    assert answer.status_code == 200
    assert f"<Say>{text}</Say>" in answer.text


async def test_a_caller_hears_that_all_lines_are_busy(server: ServerUnderTest) -> None:
    for _ in range(server.config.agent.max_sessions):
        server.calls.admit(new_session_id(), "default")
    answer = await server.twilio()
    assert '<Reject reason="busy"' in answer.text
    assert server.calls.refusals.total == 1
    assert f"<Say>{BUSY_WORDS}</Say>" in (await server.twilio(Direction="outbound-api")).text
    server.calls.draining = True
    assert f"<Say>{CLOSED_WORDS}</Say>" in (await server.twilio(CallSid="CA2")).text


# --- what is logged ---


async def test_numbers_are_not_logged_with_a_question_that_is_refused(
    server: ServerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await server.http.get(f"{VOICE}?CallSid=CA1&From=%2B15550100&To=%2B15550199")
    assert answer.status_code == 403
    assert f"checked over {PUBLIC}{VOICE} and its query. If" in answer.text
    ours = [each for each in caplog.records if each.name.startswith("agent.")]
    assert ours
    assert not any("1555" in each.getMessage() for each in ours)
