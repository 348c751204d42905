"""The writer of a call's state, and who may go on with a call: in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent.calls.call_state import read_state
from agent.calls.session_start import SessionStart
from agent.calls.state_store.memory import MemoryStateStore
from agent.calls.state_store.store import (
    Lease,
    LeaseLostError,
    StoreUnavailableError,
    UnreadableStateError,
)
from agent.calls.state_writer import (
    MIN_INTERVAL_S,
    RENEW_EVERY_S,
    CallStateWriter,
    FleetCalls,
    Snapshot,
)
from agent.config.schema import AgentProfile
from agent.errors import CallTakenOverError
from agent.http.auth.token_format import RESUME_PREFIX, NewToken, new_token
from agent.session.api.conversation import Item, ItemId, Message
from agent.session.api.session_state import SessionState
from agent.session.api.settings import SessionSettings
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId
from tests.support.session import virtual_time

SESSION = SessionId("sess_0123456789abcdef0123")
RESUME_S = 60
START = SessionStart("default", AgentProfile(), SessionSettings(), "m", frozenset({"tools"}))


class WatchedStore(MemoryStateStore):
    """A memory that counts its writes, and fails where it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.writes: list[tuple[set[str], bool]] = []
        """Names of the fields, and whether the record was written whole."""
        self.gate: asyncio.Event | None = None
        """Set: writes wait for it."""
        self.is_away = False

    async def write_record(
        self,
        lease: Lease,
        changes: Mapping[str, bytes | None],
        ttl_s: float,
        *,
        whole: bool = False,
    ) -> bool:
        if self.is_away:
            raise StoreUnavailableError("it is away")
        self.writes.append((set(changes), whole))
        if self.gate is not None:
            await self.gate.wait()
        return await super().write_record(lease, changes, ttl_s, whole=whole)

    async def forget(self) -> None:
        """Lose everything, as a Redis that starts again."""
        await self.close()


@dataclass
class Talk:
    """A call, as far as its writer sees it."""

    items: list[Item] = field(default_factory=list)
    received: int = 0
    tokens: list[NewToken] = field(default_factory=lambda: [new_token(RESUME_PREFIX)])

    def say(self, text: str) -> None:
        self.items.append(Message(ItemId(f"item_{len(self.items)}"), "user", "text", text))
        self.received += 1

    def snapshot(self) -> Snapshot:
        session = SessionState(
            SessionSettings(), tuple(self.items), 0, 0, 0, 0, (), 0, False, False, None
        )
        return session, self.received, [(each.token_id, each.digest) for each in self.tokens]


Story = Callable[[ManualClock, WatchedStore], Awaitable[None]]


def play(story: Story) -> None:
    async def test(clock: ManualClock) -> None:
        await story(clock, WatchedStore(clock))

    virtual_time.run(test)


def begin(fleet: FleetCalls, key_id: str = "key:1") -> CallStateWriter:
    return fleet.begin(SESSION, START, key_id, 3600)


async def stop(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.wait([task])


def test_changes_of_one_moment_are_one_write() -> None:
    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, writer = Talk(), begin(FleetCalls(store, RESUME_S))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(writer.run(talk.snapshot))
            await asyncio.sleep(1)
            assert [whole for _, whole in store.writes] == [True]
            before_ns = clock.now_ns()
            for number in range(100):
                talk.say(f"{number}")
                writer.changed()
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            assert clock.now_ns() - before_ns < MIN_INTERVAL_S * 1e9, "the first is not delayed"
            named, whole = store.writes[1]
            assert (len(named), whole) == (102, False)
            talk.say("once more")
            writer.changed()
            await asyncio.sleep(MIN_INTERVAL_S * 2)
            assert [each for each, _ in store.writes[2:]] == [{"head", "order", "item:item_100"}]
            await asyncio.sleep(3 * RENEW_EVERY_S)
            assert {each == set() for each, _ in store.writes[3:]} == {True}, "renewals only"
            await stop(running)
        record = await store.read_record(f"call:{SESSION}")
        assert record is not None
        state = read_state(record.fields)
        assert (len(state.session.items), state.head.received) == (101, 101)
        assert (state.head.fixed, state.head.key_id) == (("tools",), "key:1")

    play(story)


def test_one_write_is_on_its_way() -> None:
    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, writer = Talk(), begin(FleetCalls(store, RESUME_S))
        store.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(writer.run(talk.snapshot))
            for number in range(50):
                talk.say(f"{number}")
                writer.changed()
                await asyncio.sleep(1)
            assert len(store.writes) == 1, "the store is slow, and the call goes on"
            store.gate.set()
            await asyncio.sleep(1)
            assert [len(named) for named, _ in store.writes[1:]] == [49 + len(("head", "order"))]
            await stop(running)

    play(story)


def test_a_store_that_forgot_gets_everything() -> None:
    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, writer = Talk(), begin(FleetCalls(store, RESUME_S))
        async with asyncio.TaskGroup() as group:
            running = group.create_task(writer.run(talk.snapshot))
            talk.say("one")
            await asyncio.sleep(1)
            store.is_away = True
            talk.say("two")
            writer.changed()
            await asyncio.sleep(10)
            assert len(store.writes) == 1
            await store.forget()
            store.is_away = False
            await asyncio.sleep(RENEW_EVERY_S)
            record = await store.read_record(f"call:{SESSION}")
            assert record is not None
            assert len(read_state(record.fields).session.items) == 2
            found = await FleetCalls(store, RESUME_S).find(talk.tokens[0].text, "key:1")
            assert found is not None
            await store.forget()  # without having been away
            await asyncio.sleep(RENEW_EVERY_S + 1)
            assert await FleetCalls(store, RESUME_S).find(talk.tokens[0].text, "key:1") is not None
            await stop(running)

    play(story)


def test_a_call_goes_on_elsewhere_and_ends_here() -> None:
    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, here, there = Talk(), FleetCalls(store, RESUME_S), FleetCalls(store, RESUME_S)
        writer = begin(here)
        talk.say("one")

        async def serve() -> None:
            with pytest.raises(CallTakenOverError):
                await writer.run(talk.snapshot)
            await writer.close(keeps=False)

        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            await asyncio.sleep(1)
            found = await there.find(talk.tokens[0].text, "key:1")
            assert found is not None
            talk.say("two")  # between the look and the taking over
            writer.changed()
            await asyncio.sleep(0.01)
            taken = await there.take_over(found)
            assert taken is not None
            assert [item.id for item in taken.state.session.items] == ["item_0", "item_1"]
            assert await there.take_over(found) is None, "by another connection"
            assert not await writer.holds()
            await asyncio.sleep(RENEW_EVERY_S + 1)
        assert writer.closed.is_set()
        record = await store.read_record(f"call:{SESSION}")
        assert record is not None
        assert not record.is_over, "the first server has not ended it"
        await taken.writer.close(keeps=False)
        assert await there.find(talk.tokens[0].text, "key:1") is None
        late = Lease(f"call:{SESSION}", "late")
        with pytest.raises(LeaseLostError):
            await store.write_record(late, {}, RESUME_S, whole=True)

    play(story)


def test_a_call_comes_back_to_its_first_server() -> None:
    """Which has not noticed yet that it was elsewhere."""

    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, here, there = Talk(), FleetCalls(store, RESUME_S), FleetCalls(store, RESUME_S)
        writer = begin(here)
        ended: list[str] = []

        async def serve() -> None:
            with pytest.raises(CallTakenOverError):
                await writer.run(talk.snapshot)
            ended.append("first")
            await writer.close(keeps=False)

        async with asyncio.TaskGroup() as group:
            group.create_task(serve())
            await asyncio.sleep(1)
            found = await there.find(talk.tokens[0].text, "key:1")
            assert found is not None
            assert await there.take_over(found) is not None
            again = await here.find(talk.tokens[0].text, "key:1")
            assert again is not None
            taken = await here.take_over(again)
            assert ended == ["first"], "its own part is over before"
            assert taken is not None

    play(story)


def test_only_the_token_and_the_key_open_a_call() -> None:
    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, fleet = Talk(), FleetCalls(store, RESUME_S)
        writer = begin(fleet)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(writer.run(talk.snapshot))
            await asyncio.sleep(1)
            text = talk.tokens[0].text
            wrong = ["", "resume_", text[:-1] + "~", text + "x", text[7:], "é" * 300, text[:19]]
            for each in wrong:
                assert await fleet.find(each, "key:1") is None, each
            assert await fleet.find(text, "key:2") is None
            assert await fleet.find(text, "key:1") is not None
            talk.tokens = [new_token(RESUME_PREFIX)]
            writer.changed()
            await asyncio.sleep(1)
            assert await fleet.find(text, "key:1") is None, "its successor has arrived"
            assert await fleet.find(talk.tokens[0].text, "key:1") is not None
            await stop(running)
        await writer.close(keeps=True)
        assert await fleet.find(talk.tokens[0].text, "key:1") is not None
        await writer.close(keeps=False)
        assert await fleet.find(talk.tokens[0].text, "key:1") is not None, "it is closed already"
        await asyncio.sleep(RESUME_S + 1)
        assert await fleet.find(talk.tokens[0].text, "key:1") is None

    play(story)


def test_a_record_that_can_not_be_read_stays() -> None:
    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, fleet = Talk(), FleetCalls(store, RESUME_S)
        writer = begin(fleet)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(writer.run(talk.snapshot))
            await asyncio.sleep(1)
            await stop(running)
        record = await store.read_record(f"call:{SESSION}")
        assert record is not None
        lease = Lease(f"call:{SESSION}", record.lease_token)
        await store.write_record(lease, {"head": b'{"format": 99}'}, RESUME_S)
        with pytest.raises(UnreadableStateError, match="another version"):
            await fleet.find(talk.tokens[0].text, "key:1")
        after = await store.read_record(f"call:{SESSION}")
        assert after is not None
        assert after.lease_token == record.lease_token

    play(story)


def test_a_part_that_does_not_end_here_is_waited_for_with_each_try() -> None:
    """Otherwise the call would be here twice, and its end would free the line of the other."""

    async def story(clock: ManualClock, store: WatchedStore) -> None:
        talk, here, there = Talk(), FleetCalls(store, RESUME_S), FleetCalls(store, RESUME_S)
        writer = begin(here)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(writer.run(talk.snapshot))
            await asyncio.sleep(1)
            await stop(running)
        elsewhere = await there.find(talk.tokens[0].text, "key:1")
        assert elsewhere is not None
        assert await there.take_over(elsewhere) is not None
        for _ in range(2):
            found = await here.find(talk.tokens[0].text, "key:1")
            assert found is not None
            with pytest.raises(StoreUnavailableError, match="still ends its part"):
                await here.take_over(found)
        await writer.close(keeps=False)
        found = await here.find(talk.tokens[0].text, "key:1")
        assert found is not None
        assert await here.take_over(found) is not None

    play(story)
