"""The service on a Ray cluster of three nodes on this machine: `make test-ray`.

Not collected by the ordinary suite: it needs the extra `ray` and several hundred megabytes. Ray,
its proxy and the service are real; the engines are doubles (`doubles.py`), whose replies name the
replica and the version of the settings, so that a test knows which replica holds a call.
"""

import asyncio
import contextlib
import json
import random
import socket
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agent.errors import CLOSE_DRAINING, ConfigError
from agent.server.ray_options import DEPLOYMENT, MAX_QUEUED
from agent.server.ray_serve import ServeArguments, application
from latency_budget.account.clock import SystemClock
from latency_budget.capacity.fleet import FleetSimulation, ReplicaFigures, ScalingRules
from latency_budget.capacity.load import CallLoad
from tests.ray.doubles import START_S, ModelFreeReplica

NAME: Final = "halfsec"
LINES: Final = 2
"""Calls that a replica holds."""
WAIT_S: Final = 90.0
"""Until something has happened that takes seconds on an idle machine."""
LOOK_S: Final = 0.2
RULES: Final = ScalingRules(1, 6, 0.99, downscale_delay_s=2.0)
"""Of the autoscaler, unless a test has others: up at the first call of a replica, down soon."""

pytestmark = pytest.mark.asyncio


@dataclass
class RayCluster:
    """Three nodes with two processors each, as far as Ray knows."""

    port: int
    drain_s: int = 30

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/realtime"

    def deploy(
        self,
        rules: ScalingRules = RULES,
        *,
        version: str = "v1",
        drain_s: int = 30,
        wait: bool = True,
    ) -> None:
        settings = {
            "agent.max_sessions": LINES,
            "agent.drain_s": drain_s,
            "agent.resume_s": 0,
            "agents.default.instructions": version,
            "access.require_key": "never",
            "latency_budget.admission": False,
        }
        arguments = ServeArguments(settings=settings, num_cpus=1)
        app = application(arguments, ModelFreeReplica, rules)
        if wait:
            serve.run(app, name=NAME, route_prefix="/")
        else:
            serve._run(app, name=NAME, route_prefix="/", wait_for_ingress_deployment_creation=False)

    def replicas(self, *states: str) -> int:
        """Number of replicas in these states."""
        found = serve.status().applications[NAME].deployments[DEPLOYMENT].replica_states
        return sum(found.get(each, 0) for each in states)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayCluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        port = free_port()
        serve.start(
            proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port}
        )  # the other nodes have this machine's address as well, where the port is taken
        yield RayCluster(port)
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def cluster(nodes: RayCluster) -> Iterator[RayCluster]:
    yield nodes
    serve.delete(NAME)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(LOOK_S)


@dataclass
class Caller:
    """A client in a call."""

    socket: ClientConnection
    session: str = ""

    async def holder(self) -> tuple[str, str]:
        """Replica that holds the call, and the version of its settings: asked of the agent."""
        await self.socket.send(json.dumps({"type": "response.create"}))
        text = ""
        while True:
            event = json.loads(await self.socket.recv())
            if event["type"] == "response.output_audio_transcript.done":
                text = event["transcript"]
            if event["type"] == "response.done":
                replica, _, version = text.partition(" ")
                return replica, version

    async def close_code(self) -> int:
        """Code with which the service ends the call."""
        try:
            while True:
                await self.socket.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else 1006


@contextlib.asynccontextmanager
async def calling(url: str, open_timeout: float = WAIT_S) -> AsyncIterator[Caller]:
    """A call. Raises InvalidStatus where it is refused."""
    async with connect(url, open_timeout=open_timeout, ping_interval=None) as socket:
        created = json.loads(await socket.recv())
        assert created["type"] == "session.created", created
        yield Caller(socket, created["session"]["id"])


@contextlib.asynccontextmanager
async def several(url: str, number: int) -> AsyncIterator[list[Caller]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(calling(url)) for _ in range(number)]


async def test_a_call_is_answered_through_the_proxy(cluster: RayCluster) -> None:
    cluster.deploy()
    async with calling(cluster.url) as caller:
        replica, version = await caller.holder()
        assert replica
        assert version == "v1"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(cluster.url, additional_headers={"Host": "evil.example"}):
            pass
    print("another Host:", refused.value.response.status_code)
    text = urllib.request.urlopen(f"http://127.0.0.1:{cluster.port}/readyz").read()
    assert json.loads(text)["status"] == "ready"


async def test_replicas_are_added_before_the_last_line_is_taken(cluster: RayCluster) -> None:
    """Twelve calls one after another, each as soon as there is a free line: none is refused, and
    six replicas on three nodes hold two each."""
    cluster.deploy()
    async with contextlib.AsyncExitStack() as stack:
        callers: list[Caller] = []
        for number in range(6 * LINES):
            callers.append(await stack.enter_async_context(calling(cluster.url)))
            wanted = min(6, len(callers) + 1)
            await until(lambda wanted=wanted: cluster.replicas("RUNNING") >= wanted)
            assert LINES * cluster.replicas("RUNNING") > number + 1 or number == 11
        holders = [(await each.holder())[0] for each in callers]
    assert {holders.count(each) for each in holders} == {LINES}
    assert len(set(holders)) == 6


async def test_a_call_that_finds_all_lines_taken_waits_and_the_next_are_refused(
    cluster: RayCluster,
) -> None:
    cluster.deploy(ScalingRules(1, 1, 0.99))
    async with several(cluster.url, LINES), asyncio.TaskGroup() as group:
        waiting = [group.create_task(holder_of_next(cluster.url)) for _ in range(MAX_QUEUED)]
        await asyncio.sleep(2)
        with pytest.raises(InvalidStatus) as refused:
            async with connect(cluster.url, open_timeout=WAIT_S):
                pass
        assert refused.value.response.status_code == 503
        for each in waiting:
            each.cancel()


async def holder_of_next(url: str) -> str:
    async with calling(url) as caller:
        return (await caller.holder())[0]


async def test_a_replica_with_a_call_is_removed_only_when_that_has_ended(
    cluster: RayCluster,
) -> None:
    rules = ScalingRules(1, 6, 0.99, downscale_delay_s=1.0)
    cluster.deploy(rules)
    async with contextlib.AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(calling(cluster.url)) for _ in range(4)]
        await until(lambda: cluster.replicas("RUNNING") >= 4)
        holders = [(await each.holder())[0] for each in callers]
        (first, *_), kept = holders, callers[0]
        for each in callers[1:]:
            await each.socket.close()
        await until(lambda: cluster.replicas("RUNNING") <= 2)
        assert await kept.holder() == (first, "v1")
    await until(lambda: cluster.replicas("RUNNING", "STOPPING") == 1)


async def test_an_update_loses_no_call(cluster: RayCluster) -> None:
    cluster.deploy(ScalingRules(2, 6, 0.99, downscale_delay_s=60.0), drain_s=60)
    async with several(cluster.url, 3) as callers:
        before = [await each.holder() for each in callers]
        assert {version for _, version in before} == {"v1"}
        await asyncio.to_thread(cluster.deploy, ScalingRules(2, 6, 0.99), version="v2", wait=False)
        versions: set[str] = set()
        async with asyncio.timeout(WAIT_S):
            while versions != {"v2"}:
                async with several(cluster.url, 2) as news:
                    versions = {(await each.holder())[1] for each in news}
        assert [await each.holder() for each in callers] == before
    await until(lambda: cluster.replicas("STOPPING") == 0)


async def test_a_call_that_outlasts_the_drain_is_ended(cluster: RayCluster) -> None:
    cluster.deploy(ScalingRules(1, 1, 1.0), drain_s=2)
    async with calling(cluster.url) as caller:
        before = await caller.holder()
        await asyncio.to_thread(
            cluster.deploy, ScalingRules(1, 1, 1.0), version="v2", drain_s=2, wait=False
        )
        print("ended with", await caller.close_code(), before)


async def test_a_cluster_without_room_says_what_lacks(cluster: RayCluster) -> None:
    with pytest.raises(ConfigError, match="A replica needs 4 CPU on one node; the largest here"):
        application(ServeArguments(num_cpus=4), ModelFreeReplica)
    with pytest.raises(ConfigError, match="6 fit into the 3 nodes"):
        application(ServeArguments(num_cpus=1, min_replicas=7, max_replicas=8), ModelFreeReplica)
