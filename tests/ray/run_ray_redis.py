"""Calls that survive their replica: Ray Serve and a Redis together (`make test-ray`).

The cluster, its proxy, the Redis and the clients, which are those of the SDK, are real; the engines
are doubles (`doubles.py`), which tell each caller the replica and its process.
"""

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import pytest
from redis import Redis

from agent.calls.call_state import read_state
from agent.calls.state_store.redis_store import LEASE
from agent.client import events as ev
from agent.client.call import Call, connect
from agent.client.dial import Connection, Dial
from agent.client.errors import ConnectError
from agent.client.events import EventReader
from agent.realtime.endpoint import STORE_FAILS
from latency_budget.account.clock import SystemClock
from latency_budget.capacity.fleet import ScalingRules
from tests.ray.cluster import WAIT_S, RayCluster, until
from tests.ray.doubles import STORY, TALE, THINK, WHO, said
from tests.support.service.redis_server import REDIS, RedisServer, redis_server
from tests.support.service.tcp_proxy import TcpProxy, tcp_proxy

NUM_REPLICAS: Final = 3
NUM_CALLS: Final = 30
LINES: Final = 16
"""Calls that a replica holds: any two hold all."""
FEW_LINES: Final = 5
"""Where a dozen calls are to need all replicas: Ray's proxy fills that of its own node first."""
HEARD_S: Final = 3.0
"""Speech of a story after which words of it were heard, whatever was sent ahead."""
PREFIX: Final = "test:"

Event = TypeVar("Event", bound=ev.ClientEvent)
Words = list[tuple[str, str, str]]
"""Role, text and status of each item that has words."""

pytest_plugins = ["tests.ray.ray_fixtures"]
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(
        REDIS is None, reason="there is no Redis here: apt-get install redis-server"
    ),
]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis that outlives the replicas: name it before the cluster."""
    with redis_server() as server:
        yield server


def deploy(
    cluster: RayCluster,
    redis: RedisServer,
    num_replicas: int = NUM_REPLICAS,
    **options: Any,
) -> None:
    """Deploy so many replicas, whatever the load."""
    rules = ScalingRules(num_replicas, num_replicas, 1.0)
    address = redis.address(PREFIX)
    cluster.deploy(rules, **{"lines": LINES, **options}, state_store=address)


@dataclass(frozen=True)
class Holder:
    """Who holds a call, as its agent says."""

    replica: str
    version: str
    pid: int

    @property
    def name(self) -> str:
        """The reply to `WHO`."""
        return f"{self.replica} {self.version} {self.pid}"

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def holder_in(text: str) -> Holder:
    replica, version, pid, *_ = text.split()
    return Holder(replica, version, int(pid))


@dataclass
class Caller:
    """A client of the SDK in a call, with all that it has received."""

    call: Call
    seen: list[ev.ClientEvent] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        async for event in self.call.events():
            self.seen.append(event)
            self._news.set()

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; the call may not be lost meanwhile."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                assert not [*self.of(ev.Restarted), *self.of(ev.Closed)], "the call is lost"
                self._news.clear()
                await self._news.wait()

    async def until_resumed(self, number: int = 1) -> ev.Resumed:
        """Wait for this resumption of the call."""
        await self.until(lambda: len(self.of(ev.Resumed)) >= number)
        return self.of(ev.Resumed)[number - 1]

    async def until_heard(self, speech_s: float) -> None:
        """Wait until so much speech was received in all."""
        await self.until(lambda: self.heard_s > speech_s)

    async def until_replies(self, number: int) -> None:
        """Wait until so many replies have begun."""
        await self.until(lambda: len(self.of(ev.ReplyStarted)) >= number)

    async def say(self, phrase: str) -> None:
        assert await self.call.send_audio(said(phrase), self.call.input_rate_hz)

    async def answer(self, number: int) -> str:
        """Words of this reply of the call, once they were played."""
        await self.until(lambda: len(self.of(ev.ReplyDone)) >= number)
        done = self.of(ev.ReplyDone)[number - 1]
        assert done.status == "completed"
        await self.until(
            lambda: done.response_id in [each.response_id for each in self.of(ev.TurnReport)]
        )
        return done.text

    async def ask(self) -> Holder:
        """Ask who holds the call."""
        number = len(self.of(ev.ReplyDone)) + 1
        await self.say(WHO)
        return holder_in(await self.answer(number))

    @property
    def heard_s(self) -> float:
        """Speech that was received, in s."""
        return sum(len(each.pcm) / each.rate_hz for each in self.of(ev.ReplyAudio))


@contextlib.asynccontextmanager
async def callers(port: int, number: int) -> AsyncIterator[list[Caller]]:
    async with contextlib.AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        made = []
        for _ in range(number):
            made.append(Caller(await stack.enter_async_context(connect(f"ws://127.0.0.1:{port}"))))
            group.create_task(made[-1].listen())
        yield made


async def ask_all(group: Sequence[Caller]) -> list[Holder]:
    return await asyncio.gather(*(each.ask() for each in group))


def words_of(resumed: ev.Resumed) -> Words:
    """The conversation, as a client sees it when it is back."""
    assert resumed.num_items == len(resumed.items)
    items = [
        (item["role"], " ".join(part.get("transcript") or "" for part in item["content"]))
        for item in resumed.items
    ]
    statuses = [item["status"] for item in resumed.items]
    return [
        (role, text.strip(), status)
        for (role, text), status in zip(items, statuses, strict=True)
        if text.strip()
    ]


def turn(phrase: str, answer: str) -> Words:
    """Items of a turn that was answered whole."""
    return [("user", phrase, "completed"), ("assistant", answer, "completed")]


async def break_all(network: TcpProxy, group: Sequence[Caller]) -> list[Words]:
    """Break all connections at once. Returns the conversations, as the clients see them then."""
    numbers = [len(each.of(ev.Resumed)) + 1 for each in group]
    network.cut()
    back = [each.until_resumed(number) for each, number in zip(group, numbers, strict=True)]
    return [words_of(resumed) for resumed in await asyncio.gather(*back)]


def most_of(holders: Sequence[Holder]) -> Holder:
    """The holder of most calls."""
    return Counter(holders).most_common(1)[0][0]


async def test_calls_survive_the_death_of_their_replica(
    redis: RedisServer, cluster: RayCluster
) -> None:
    """Thirty calls in mid-turn, half of them in a reply that is heard, half before its first word:
    a replica dies, and each of its calls goes on at another, with no turn answered twice."""
    deploy(cluster, redis)
    clock = SystemClock()
    async with tcp_proxy(cluster.port) as network, callers(network.port, NUM_CALLS) as group:
        first = await ask_all(group)
        victim = most_of(first)
        assert len(set(first)) == NUM_REPLICAS
        listeners, waiting = in_halves(group, first)
        heard_s = [each.heard_s for each in listeners]
        await asyncio.gather(*(each.say(STORY) for each in listeners))
        await asyncio.gather(*(each.say(THINK) for each in waiting))
        for each, before_s in zip(listeners, heard_s, strict=True):
            await each.until_heard(before_s + HEARD_S)
        for each in waiting:
            await each.until_replies(2)
        assert {len(each.of(ev.ReplyDone)) for each in group} == {1}, "all are in mid-turn"
        killed_ns = clock.now_ns()
        victim.kill()
        lost = [each for each, holder in zip(group, first, strict=True) if holder == victim]
        resumed = await asyncio.gather(*(each.until_resumed() for each in lost))
        noticed_s = [(each.of(ev.Reconnecting)[0].at_ns - killed_ns) / 1e9 for each in lost]
        back_s = sorted((each.at_ns - killed_ns) / 1e9 for each in resumed)
        print(
            f"{len(lost)} of {NUM_CALLS} calls lost their replica: the last one noticed it after "
            f"{max(noticed_s):.2f} s; they were resumed after p50 "
            f"{back_s[len(back_s) // 2]:.2f} s, the last one after {back_s[-1]:.2f} s"
        )

        told: dict[int, Words] = {}
        """Of each call, the conversation as it has to be at the end."""
        for each, event in zip(lost, resumed, strict=True):
            told[id(each)] = await check_resumed(each, event, victim, is_waiting=each in waiting)
        for each, holder in zip(group, first, strict=True):
            if holder != victim:
                reply = await each.answer(2)
                phrase, wanted = (
                    (THINK, holder.name) if each in waiting else (STORY, f"{holder.name} {TALE}")
                )
                assert reply == wanted
                assert not each.of(ev.Reconnecting), "calls of other replicas go on undisturbed"
                assert len(each.of(ev.ReplyStarted)) == 2
                told[id(each)] = turn(WHO, holder.name) + turn(phrase, wanted)
        assert await break_all(network, group) == [told[id(each)] for each in group]


def in_halves(
    group: Sequence[Caller], holders: Sequence[Holder]
) -> tuple[list[Caller], list[Caller]]:
    """Two halves, each with half of the calls of each replica."""
    by_holder = sorted(zip(group, holders, strict=True), key=lambda pair: pair[1].replica)
    ordered = [each for each, _ in by_holder]
    return ordered[::2], ordered[1::2]


async def check_resumed(
    caller: Caller, resumed: ev.Resumed, victim: Holder, *, is_waiting: bool
) -> Words:
    """Check a call that has lost its replica, and ask who holds it now. Returns its conversation.

    `is_waiting`: no word of the answer was heard when that happened.
    """
    words = words_of(resumed)
    begun = turn(WHO, victim.name)
    assert words[:2] == begun
    assert words[2] == ("user", THINK if is_waiting else STORY, "completed")
    assert resumed.will_answer == is_waiting
    if is_waiting:
        assert len(words) == 3
        answer = await caller.answer(2)
        assert holder_in(answer).replica != victim.replica
        words.append(("assistant", answer, "completed"))
    else:
        ((role, text, status),) = words[3:]
        assert (role, status) == ("assistant", "incomplete")
        assert f"{victim.name} {TALE}".startswith(text)
        assert len(text) > len(victim.name)
    now = await caller.ask()
    assert now.replica != victim.replica
    since = caller.seen[caller.seen.index(resumed) :]
    started = [each.response_id for each in since if isinstance(each, ev.ReplyStarted)]
    assert len(started) == (2 if is_waiting else 1), "no turn is answered twice"
    played = {each.response_id for each in since if isinstance(each, ev.ReplyAudio | ev.ReplyText)}
    assert played == set(started), "nothing of the old reply comes later"
    return words + turn(WHO, now.name)


async def test_clients_resume_where_all_lines_are_taken(
    redis: RedisServer, cluster: RayCluster
) -> None:
    """Their own calls hold the lines that they need."""
    deploy(cluster, redis, 1, lines=2)
    async with tcp_proxy(cluster.port) as network, callers(network.port, 2) as group:
        (holder,) = set(await ask_all(group))
        for number in range(1, 4):
            told = await break_all(network, group)
            assert told == [number * turn(WHO, holder.name)] * 2
            assert set(await ask_all(group)) == {holder}


async def test_an_update_loses_no_call_that_outlasts_the_drain(
    redis: RedisServer, cluster: RayCluster
) -> None:
    deploy(cluster, redis, drain_s=2, lines=FEW_LINES)
    async with tcp_proxy(cluster.port) as network, callers(network.port, 12) as group:
        sessions = [each.call.session_id for each in group]
        old = await ask_all(group)
        assert len(set(old)) == NUM_REPLICAS
        await asyncio.to_thread(deploy, cluster, redis, drain_s=2, lines=FEW_LINES, version="v2")
        await until(lambda: cluster.replicas("STOPPING") == 0)
        await asyncio.gather(*(each.until_resumed() for each in group))
        new = await ask_all(group)
        assert not {each.replica for each in old} & {each.replica for each in new}
        assert [each.call.session_id for each in group] == sessions
        assert await break_all(network, group) == [
            turn(WHO, before.name) + turn(WHO, after.name)
            for before, after in zip(old, new, strict=True)
        ]
        async with callers(cluster.port, 1) as (fresh,):
            assert (await fresh.ask()).version == "v2"


async def test_redis_answers_nothing_for_a_while(redis: RedisServer, cluster: RayCluster) -> None:
    """Calls go on and new ones begin; a call whose replica dies meanwhile is refused with the
    reason, and resumed later. What was said meanwhile survives the next death."""
    deploy(cluster, redis, lines=FEW_LINES)
    clock = SystemClock()
    dial = Dial(cluster.url, None, True, None, clock)
    async with callers(cluster.port, 12) as group:
        plain = await dial.open()
        victim, token = await holder_and_token(plain)
        first = await ask_all(group)
        lost = [each for each, holder in zip(group, first, strict=True) if holder == victim]
        others = [each for each in group if each not in lost]
        kept = [holder for holder in first if holder != victim]
        assert lost
        assert len(set(kept)) == NUM_REPLICAS - 1

        away_ns = clock.now_ns()
        redis.suspend()
        assert await ask_all(others) == kept
        async with callers(cluster.port, 1) as (fresh,):
            await fresh.ask()
        victim.kill()
        for _ in range(2):
            with pytest.raises(ConnectError, match=f"1013 {STORE_FAILS}"):
                await dial.open(token)
        assert not any(each.of(ev.Resumed) for each in lost)
        redis.proceed()
        away_s = (clock.now_ns() - away_ns) / 1e9

        again = await dial.open(token)
        assert again.resumed is not None
        await again.socket.close()
        for each in lost:
            assert words_of(await each.until_resumed()) == turn(WHO, victim.name)
            assert (await each.ask()).replica != victim.replica
        print(f"Redis was away for {away_s:.1f} s; {len(lost)} calls were resumed after that")

        said_meanwhile = 2 * len(turn(WHO, ""))
        await until(
            lambda: (
                {num_recorded(redis, each.call.session_id) for each in others} == {said_meanwhile}
            )
        )
        second = most_of(kept)
        second.kill()
        for each, holder in zip(others, kept, strict=True):
            if holder == second:
                assert words_of(await each.until_resumed()) == 2 * turn(WHO, second.name)
                assert (await each.ask()).replica != second.replica
            else:
                assert await each.ask() == holder
                assert not each.of(ev.Reconnecting)


async def holder_and_token(connection: Connection) -> tuple[Holder, str]:
    """Ask who holds a call; the token that resumes it came before."""
    reader, token = EventReader(), ""
    await connection.socket.send(json.dumps({"type": "response.create"}))
    while True:
        event = reader.read(await connection.socket.recv(), 0)
        if isinstance(event, ev.ResumeToken):
            token = event.token
        elif isinstance(event, ev.ReplyDone):
            return holder_in(event.text), token


def num_recorded(redis: RedisServer, session_id: str) -> int:
    """Number of items in the record of a call."""
    with Redis(port=redis.port) as client:
        found = cast(dict[bytes, bytes], client.hgetall(f"{PREFIX}call:{session_id}"))
    fields = {name.decode(): value for name, value in found.items() if name.decode() != LEASE}
    return len(read_state(fields).session.items)
