"""A token is of one call and keeps a line for it, until the call is there or is over; and streams
of which nothing is known keep no call out."""

import asyncio
from typing import Any

import pytest
from twilio.request_validator import RequestValidator

from agent.calls.service import AdmittedCall, CallService
from agent.errors import CLOSE_NORMAL, CLOSE_POLICY
from agent.session.api.ids import new_session_id
from agent.telephony import call_plan, endpoint, webhooks
from agent.telephony.carriers.webhook import FORM
from agent.telephony.pending_streams import CROWDED_OUT, MAX_STREAMS
from tests.agent.telephony.carriers.test_served import plivo_start
from tests.agent.telephony.carriers.test_twilio import CALL, start
from tests.support.telephony.telephony_server import (
    AUTH_TOKEN,
    PUBLIC,
    SALES,
    ServerUnderTest,
    Stream,
    basic,
    token_in,
)

pytest_plugins = ["tests.support.telephony.phone_fixtures"]

VOICE = "/telephony/twilio/voice"
STATUS = "/telephony/twilio/status"


async def test_a_stream_with_the_token_of_another_call_is_refused(server: ServerUnderTest) -> None:
    parameters = {"token": token_in(await server.twilio())}
    stranger = await server.stream("twilio", start(callSid="CA2", customParameters=parameters))
    assert stranger.closed[0] == CLOSE_POLICY
    assert "no token of this server's for this call" in stranger.closed[1]
    other = await server.stream("plivo", plivo_start(parameters["token"]))
    assert other.closed[0] == CLOSE_POLICY
    await server.stream("twilio", start(customParameters=parameters))
    assert len(server.held) == 1, "it was not used up"


async def test_with_a_key_one_is_in_nobody_elses_way(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever id of a call its stream claims."""
    parameters = {"token": token_in(await server.twilio())}
    key = {"authorization": basic(await server.key())["Authorization"]}
    closed: list[tuple[int, str]] = []

    async def hold(desk: CallService, held: AdmittedCall, carrier: object) -> None:
        server.held.append(held)
        if len(server.held) == 1:
            own = await server.stream("twilio", start(customParameters={}), headers=key)
            genuine = await server.stream("twilio", start(customParameters=parameters))
            closed.extend((own.closed, genuine.closed))

    monkeypatch.setattr(CallService, "hold", hold)
    await server.stream("twilio", start(customParameters={}), headers=key)
    assert [held.principal.name for held in server.held] == ["ana", "Twilio"]
    (code, reason), (genuine, _) = closed
    assert (code, genuine) == (CLOSE_POLICY, CLOSE_NORMAL)
    assert "has a stream already" in reason


@pytest.mark.parametrize("proof", ["signature", "key", "webhook with key", "key that dials"])
async def test_a_key_that_names_a_call_can_t_have_it_transferred(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch, proof: str
) -> None:
    """Neither by its stream nor by a webhook of its own: the call may be another's."""
    means: list[bool] = []
    plan = call_plan.planned

    def noticed(settings: Any, held: Any, started: Any, transfer: Any, now_ns: int) -> Any:
        assert started.call_id == CALL
        means.append(transfer is not endpoint._refuse_transfer)
        return plan(settings, held, started, transfer, now_ns)

    monkeypatch.setattr(endpoint, "planned", noticed)
    key = basic(await server.key(dials=proof == "key that dials"))
    shown, parameters = {}, {}
    if proof == "signature":
        parameters["token"] = token_in(await server.twilio())
    elif proof == "webhook with key":
        announced = {"CallSid": CALL, "From": "+15550100", "To": SALES}
        parameters["token"] = token_in(await server.post(VOICE, announced, key))
    else:
        shown = {"authorization": key["Authorization"]}
    await server.stream("twilio", start(customParameters=parameters), headers=shown)
    assert means == [proof in ("signature", "key that dials")]


async def test_who_is_announced_has_a_line(server: ServerUnderTest) -> None:
    """There are two."""
    tokens = [token_in(await server.twilio(CallSid=name)) for name in ("CA1", "CA2")]
    assert "<Reject" in (await server.twilio(CallSid="CA3")).text
    key = {"Authorization": f"Bearer {await server.key()}"}
    assert (await server.http.get("/v1/realtime", headers=key)).status_code == 503
    stream = await server.stream(
        "twilio", start(callSid="CA3"), headers={"authorization": key["Authorization"]}
    )
    assert "All lines are busy" in stream.closed[1]
    for name, token in zip(("CA1", "CA2"), tokens, strict=True):
        await server.stream("twilio", start(callSid=name, customParameters={"token": token}))
    assert len(server.held) == 2
    assert token_in(await server.twilio(CallSid="CA4"))


class Waiting:
    """A call whose client is gone."""

    def __init__(self, server: ServerUnderTest) -> None:
        self.call = server.calls.admit(new_session_id(), "default")
        self._server = server
        server.calls.waiting.begin(self, "")

    def give_up(self, why: str) -> None:
        self._server.calls.leave(self.call)


async def test_a_call_that_waits_for_its_client_gives_way_to_one_announced(
    server: ServerUnderTest,
) -> None:
    """And not to two, nor to one who comes after that."""
    waiting = Waiting(server)
    server.calls.admit(new_session_id(), "default")
    token = token_in(await server.twilio(CallSid="CA1"))
    assert "<Reject" in (await server.twilio(CallSid="CA2")).text
    key = {"authorization": f"Bearer {await server.key()}"}
    stream = await server.stream("twilio", start(callSid="CA2"), headers=key)
    assert "All lines are busy" in stream.closed[1]
    assert len(server.calls.waiting) == 1, "he would go in vain"
    await server.stream("twilio", start(callSid="CA1", customParameters={"token": token}))
    assert len(server.held) == 1
    assert waiting.call.session_id not in [each["session"] for each in server.calls.listing()]


async def test_a_key_has_only_its_calls_announced(server: ServerUnderTest) -> None:
    key = basic(await server.key(max_calls=1))
    assert token_in(await server.post(VOICE, {"CallSid": "CA1"}, key))
    assert "<Reject" in (await server.post(VOICE, {"CallSid": "CA2"}, key)).text
    assert token_in(await server.post(VOICE, {"CallSid": "CA1"}, key)), "of the same call"
    assert token_in(await server.twilio())


async def test_the_end_of_a_call_gives_its_line_back(server: ServerUnderTest) -> None:
    for name in ("CA1", "CA2"):
        assert token_in(await server.twilio(CallSid=name))
    for call_id, status in (("CA1", "ringing"), ("CA9", "completed")):
        noted = await server.twilio(STATUS, CallSid=call_id, CallStatus=status)
        assert (noted.status_code, noted.content) == (204, b"")
        assert "<Reject" in (await server.twilio(CallSid=f"CA3 {status}")).text
    unsigned = await server.post(STATUS, {"CallSid": "CA1", "CallStatus": "completed"})
    assert unsigned.status_code == 403
    other = basic(await server.key())
    news = {"CallSid": "CA1", "CallStatus": "no-answer"}
    assert (await server.post(STATUS, news, other)).status_code == 204
    assert "<Reject" in (await server.twilio(CallSid="CA4")).text, "it is no call of that key's"
    await server.twilio(STATUS, **news)
    assert token_in(await server.twilio(CallSid="CA5"))


async def test_a_question_that_is_repeated_has_the_same_answer(server: ServerUnderTest) -> None:
    """Also of another who recorded it: Twilio signs no time."""
    token = token_in(await server.twilio())
    assert token_in(await server.twilio()) == token
    assert token_in(await server.twilio(CallStatus="in-progress")) == token, "the same call"
    assert token_in(await server.twilio(CallSid="CA2")) != token, "there is a line left"
    await server.stream("twilio", start(customParameters={"token": token}))
    assert token_in(await server.twilio()) == token
    again = await server.stream("twilio", start(customParameters={"token": token}))
    assert again.closed[0] == CLOSE_POLICY
    assert token_in(await server.twilio(CallSid="CA3")), "it keeps no line"


async def test_who_hangs_up_while_it_rings_elsewhere_needs_no_line(server: ServerUnderTest) -> None:
    path = f"{VOICE}?agent=sales"
    answer = await server.twilio(path, CallStatus="completed", DialCallStatus="no-answer")
    assert (answer.status_code, answer.content) == (204, b"")
    for name in ("CA2", "CA3"):
        assert token_in(await server.twilio(CallSid=name)), "of two lines"


@pytest.mark.parametrize(
    "written",
    [
        f"To=%2B493012345&From=%2B15550100&CallSid={CALL}",
        f"CallSid={CALL}&From=%2B15550100&To=%2B493012345&CallSid={CALL}",
        f"Call%53id={CALL}&From=%2B15550100&To=%2B493012345",
        f"CallSid={CALL}From%2B15550100&To=%2B493012345",  # another call, and the same signature
    ],
)
async def test_a_question_that_is_written_in_another_way_is_the_same(
    server: ServerUnderTest, written: str
) -> None:
    """Twilio signs what its form says, in whatever order and however it is encoded."""
    token = token_in(await server.twilio())
    await server.stream("twilio", start(customParameters={"token": token}))
    fields = {"CallSid": CALL, "From": "+15550100", "To": SALES}
    signature = RequestValidator(AUTH_TOKEN).compute_signature(PUBLIC + VOICE, fields)
    headers = {"X-Twilio-Signature": signature, "Content-Type": FORM}
    answer = await server.http.post(VOICE, content=written, headers=headers)
    assert token_in(answer) == token, "which is used up"


async def test_who_comes_back_from_a_transfer_may_do_so_again(server: ServerUnderTest) -> None:
    """Twilio asks in the same words then, where nothing has rung."""
    for _ in range(3):
        answer = await server.twilio(f"{VOICE}?agent=sales", DialCallStatus="failed")
        parameters = {"token": token_in(answer)}
        await server.stream("twilio", start(customParameters=parameters))
    assert len(server.held) == 3


async def test_old_questions_are_forgotten(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_ANSWERED", 2)
    token = token_in(await server.twilio())
    await server.stream("twilio", start(customParameters={"token": token}))
    for name in ("CA2", "CA3"):
        await server.twilio(CallSid=name)
        await server.twilio(STATUS, CallSid=name, CallStatus="completed")
    assert token_in(await server.twilio()) != token


async def test_a_call_that_cannot_begin_leaves_nothing(
    server: ServerUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(endpoint, "planned", planned)
    for call_id in ("CA1", "CA2", "CA3"):  # of two lines
        parameters = {"token": token_in(await server.twilio(CallSid=call_id))}
        with pytest.raises(ExceptionGroup):
            await server.stream("twilio", start(callSid=call_id, customParameters=parameters))
        assert len(server.calls) == 0


async def test_many_streams_that_say_nothing_keep_no_call_out(server: ServerUnderTest) -> None:
    over: asyncio.Queue[Stream] = asyncio.Queue()

    async def say_nothing() -> None:
        over.put_nowait(await server.stream("plivo"))

    parameters = {"token": token_in(await server.twilio())}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(say_nothing()) for _ in range(MAX_STREAMS + 1)]
        assert (await over.get()).closed == (CLOSE_POLICY, CROWDED_OUT)
        await server.stream("twilio", start(customParameters=parameters))
        await over.get()
        for task in tasks:
            task.cancel()
    assert len(server.held) == 1
