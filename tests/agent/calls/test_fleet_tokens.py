"""Publication of telephone tokens: where the store fails, and where it takes its time."""

import asyncio

from agent.calls.fleet_tokens import FleetTokens
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_store.store import StoreUnavailableError
from agent.calls.stream_tokens import TOKEN_S, CallTokens, ExpectedCall
from agent.http.auth.principal import Principal
from agent.telephony.carriers.media_stream import MULAW, StreamStarted
from latency_budget.account.clock import ManualClock

CALL = ExpectedCall(Principal("Twilio", "carrier", key_id="carrier:Twilio"))
STARTED = StreamStarted("MZ1", "CA1", MULAW)


class GatedStore(MemoryStateStore):
    """Its writes wait for `gate`, and fail while `is_away`."""

    def __init__(self) -> None:
        super().__init__(ManualClock(), is_shared=True)
        self.gate = asyncio.Event()
        self.gate.set()
        self.writing = asyncio.Event()
        """A write waits."""
        self.is_away = False
        self.num_writes = 0

    async def put(self, name: str, value: bytes, ttl_s: float) -> None:
        self.num_writes += 1
        self.writing.set()
        await self.gate.wait()
        if self.is_away:
            raise StoreUnavailableError("it is away")
        await super().put(name, value, ttl_s)


def redeemed(tokens: CallTokens, token: str) -> bool:
    return tokens.redeem(token, "Twilio", STARTED) is not None


async def test_the_first_failure_ends_the_publication() -> None:
    store, tokens = GatedStore(), CallTokens(ManualClock())
    fleet, store.is_away = FleetTokens(store), True
    issued = [tokens.issue(CALL) for _ in range(3)]
    await fleet.publish(tokens, issued)
    assert store.num_writes == 1
    assert not any(tokens.is_published(token) for token in issued)
    await fleet.claim(tokens, issued)
    assert all(redeemed(tokens, token) for token in issued)


async def test_only_named_tokens_are_published() -> None:
    store, tokens = GatedStore(), CallTokens(ManualClock())
    fleet = FleetTokens(store)
    issued = [tokens.issue(CALL) for _ in range(2)]
    await fleet.publish(tokens, [issued[0], "ct" + "0" * 48])
    assert [tokens.is_published(token) for token in issued] == [True, False]
    await fleet.publish(tokens, issued)
    assert store.num_writes == 2, "none twice"


async def test_a_token_that_waits_for_its_publication_can_be_redeemed() -> None:
    store, tokens = GatedStore(), CallTokens(ManualClock())
    fleet, other = FleetTokens(store), CallTokens(ManualClock())
    issued = [tokens.issue(CALL) for _ in range(3)]
    store.gate.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(fleet.publish(tokens, issued))
        await store.writing.wait()
        for token in issued[:2]:  # one whose write is on its way, and one behind it
            await fleet.claim(tokens, [token])
            assert redeemed(tokens, token)
        store.gate.set()
    for token in issued:
        await fleet.claim(other, [token])
    assert [redeemed(other, token) for token in issued] == [False, False, True], "each works once"


async def test_a_token_is_published_by_one_request() -> None:
    store, tokens = GatedStore(), CallTokens(ManualClock())
    fleet, token = FleetTokens(store), tokens.issue(CALL, TOKEN_S)
    store.gate.clear()
    async with asyncio.TaskGroup() as group:
        group.create_task(fleet.publish(tokens, [token]))
        await store.writing.wait()
        await fleet.publish(tokens, [token])
        store.gate.set()
    assert store.num_writes == 1
