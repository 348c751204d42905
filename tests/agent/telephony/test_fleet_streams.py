"""Telephone calls of a fleet: webhook and stream come to different servers, and a recorded webhook
opens no second call anywhere, also after a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from agent.calls.fleet_tokens import FleetTokens
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_store.redis_store import TIMEOUT_S
from agent.calls.state_store.store import StoreUnavailableError
from agent.calls.stream_tokens import CallTokens, ExpectedCall
from agent.errors import CLOSE_NORMAL, CLOSE_POLICY
from agent.http.auth.principal import UNPROVEN
from agent.telephony.carriers.media_stream import MULAW, StreamStarted
from latency_budget.account.clock import ManualClock, SystemClock
from tests.agent.calls.test_circuit_breaker import hanging_store
from tests.agent.telephony.carriers.test_served import jambonz_request
from tests.agent.telephony.carriers.test_twilio import start
from tests.support.telephony.telephony_server import ServerUnderTest, telephony_server, token_in

STARTED = StreamStarted("s1", "c1", MULAW)

pytest_plugins = ["tests.support.telephony.phone_fixtures"]


class FailingStore(MemoryStateStore):
    """A store that can't be reached while `is_away`."""

    is_away = False

    async def get(self, name: str) -> bytes | None:
        self._look()
        return await super().get(name)

    async def put(self, name: str, value: bytes, ttl_s: float) -> None:
        self._look()
        await super().put(name, value, ttl_s)

    async def put_if_absent(self, name: str, value: bytes, ttl_s: float) -> bool:
        self._look()
        return await super().put_if_absent(name, value, ttl_s)

    def _look(self) -> None:
        if self.is_away:
            raise StoreUnavailableError("it is away")


class Fleet:
    """Servers with one store."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: AsyncExitStack):
        self.store = FailingStore(SystemClock(), is_shared=True)
        self._tmp_path = tmp_path
        self._monkeypatch = monkeypatch
        self._stack = stack

    async def server(self) -> ServerUnderTest:
        """Another server, or the first one after its restart."""
        made = telephony_server(self._tmp_path, self._monkeypatch, state_store=self.store)
        return await self._stack.enter_async_context(made)


@pytest.fixture
async def fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ServerUnderTest
) -> AsyncIterator[Fleet]:
    """`server`: for its environment."""
    async with AsyncExitStack() as stack:
        yield Fleet(tmp_path, monkeypatch, stack)


async def closed(server: ServerUnderTest, token: str) -> int:
    """Code with which a stream with this token ends."""
    return (await server.stream("twilio", start(customParameters={"token": token}))).closed[0]


async def test_a_stream_may_come_to_another_server(fleet: Fleet) -> None:
    first, second = await fleet.server(), await fleet.server()
    token = token_in(await first.twilio())
    assert await closed(second, token) == CLOSE_NORMAL
    (held,) = second.held
    assert (held.principal.name, held.principal.kind) == ("Twilio", "carrier")
    assert held.start.agent == "sales", "as the webhook chose"
    for server in (first, second):
        assert await closed(server, token) == CLOSE_POLICY
    assert not first.held


async def test_a_token_works_once_at_the_server_that_issued_it(fleet: Fleet) -> None:
    first, second = await fleet.server(), await fleet.server()
    token = token_in(await first.twilio())
    assert await closed(first, token) == CLOSE_NORMAL
    for server in (second, first):
        assert await closed(server, token) == CLOSE_POLICY
    assert (len(first.held), len(second.held)) == (1, 0)


async def test_a_stream_of_another_call_does_not_use_the_token_up(fleet: Fleet) -> None:
    first, second, third = [await fleet.server() for _ in range(3)]
    token = token_in(await first.twilio())
    for server in (second, first):
        other = start(customParameters={"token": token}, callSid="CA" + "9" * 32)
        assert (await server.stream("twilio", other)).closed[0] == CLOSE_POLICY
    assert await closed(third, token) == CLOSE_NORMAL
    assert not first.held + second.held


async def test_a_repeated_webhook_opens_no_second_call(fleet: Fleet) -> None:
    first, second = await fleet.server(), await fleet.server()
    token = token_in(await first.twilio())
    assert token_in(await second.twilio()) == token, "the first answer"
    assert await closed(second, token) == CLOSE_NORMAL
    restarted = await fleet.server()
    assert token_in(await restarted.twilio()) == token
    for server in (restarted, first, second):
        assert await closed(server, token) == CLOSE_POLICY
    assert (len(first.held), len(second.held), len(restarted.held)) == (0, 1, 0)


async def test_a_recorded_status_opens_no_call_anywhere(fleet: Fleet) -> None:
    first, second = await fleet.server(), await fleet.server()
    status = jambonz_request(call_status="ringing")
    headers, content = dict(status.headers), status.content
    await first.http.post("/telephony/jambonz/status", headers=headers, content=content)
    for server in (first, second):
        answer = await server.http.post(
            "/telephony/jambonz/voice", headers=headers, content=content
        )
        assert (answer.status_code, answer.content) == (204, b"")


async def test_a_question_that_equals_a_status_is_answered(fleet: Fleet) -> None:
    """It was signed at another time: a recorded status was not. What is repeated at the same
    address gets the same answer, in whatever time it is signed."""
    first, second = await fleet.server(), await fleet.server()
    status, question, again = [jambonz_request(age_s) for age_s in (9, 4, 1)]

    async def ask(server: ServerUnderTest, sent: httpx.Request, endpoint: str) -> httpx.Response:
        address = f"/telephony/jambonz/{endpoint}"
        return await server.http.post(address, headers=dict(sent.headers), content=sent.content)

    assert (await ask(first, status, "status")).status_code == 204
    for server in (first, second):
        assert (await ask(server, status, "voice")).status_code == 204, "recorded"
    answers = [await ask(server, question, "voice") for server in (first, second)]
    answers += [await ask(server, again, "voice") for server in (first, second)]
    assert {each.status_code for each in answers} == {200}
    assert len({token_in(each) for each in answers}) == 1


class ReorderingStore(MemoryStateStore):
    """A store over two connections: an answer may overtake the one before it."""

    async def take(self, name: str) -> bytes | None:
        found = await super().take(name)
        for _ in range(10 if found else 0):
            await asyncio.sleep(0)
        return found


@pytest.mark.parametrize("at", ["the server that issued it", "another"])
async def test_one_of_two_streams_with_one_token_wins(at: str) -> None:
    store = ReorderingStore(SystemClock(), is_shared=True)
    issuer, other = CallTokens(SystemClock()), CallTokens(SystemClock())
    fleet, others = FleetTokens(store), FleetTokens(store)
    token = issuer.issue(ExpectedCall(UNPROVEN))
    await fleet.publish(issuer, [token])
    tokens, fleet = (issuer, fleet) if at != "another" else (other, others)

    async def stream() -> bool:
        # The second token, of no call, is claimed between claim and redemption of the first.
        await fleet.claim(tokens, [token, "ct0"])
        return tokens.redeem(token, "Twilio", STARTED) is not None

    assert sorted(await asyncio.gather(stream(), stream())) == [False, True]


async def test_without_its_store_a_server_takes_its_own_calls(fleet: Fleet) -> None:
    first, second = await fleet.server(), await fleet.server()
    fleet.store.is_away = True
    token = token_in(await first.twilio())
    assert token_in(await first.twilio()) == token
    assert await closed(second, token) == CLOSE_POLICY
    assert await closed(first, token) == CLOSE_NORMAL
    assert await closed(first, token) == CLOSE_POLICY
    assert (len(first.held), len(second.held)) == (1, 0)


async def test_a_store_that_hangs_delays_a_webhook_once(
    server: ServerUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time limit of one operation, in which carriers wait for the answer."""
    clock = ManualClock()
    store, client = hanging_store(clock)
    async with telephony_server(tmp_path, monkeypatch, state_store=store) as first:
        waited_ns = []
        for name in ("CA1", "CA2"):
            began_ns = clock.now_ns()
            token = token_in(await first.twilio(CallSid=name))
            stream = start(callSid=name, customParameters={"token": token})
            assert (await first.stream("twilio", stream)).closed[0] == CLOSE_NORMAL
            waited_ns.append(clock.now_ns() - began_ns)
        unknown = start(customParameters={"token": "ct" + "0" * 48})
        assert (await first.stream("twilio", unknown)).closed[0] == CLOSE_POLICY
    assert waited_ns == [TIMEOUT_S * 1e9, 0]
    assert client.num_asked == 1


async def test_an_entry_of_another_version_is_no_call(fleet: Fleet) -> None:
    first, second = await fleet.server(), await fleet.server()
    token = token_in(await first.twilio())
    (name,) = [each for each in fleet.store._entries if each.startswith("stream:")]
    for damaged in (b"", b"5", b"{}", b'{"principal": {"kind": "king"}}', b"\xff"):
        await fleet.store.put(name, damaged, 600)
        assert await closed(second, token) == CLOSE_POLICY
    assert not second.held
