"""The service on a Ray cluster of three nodes on this machine: `make test-ray`.

Not collected by the ordinary suite: it needs the extra `ray` and several hundred megabytes. Ray,
its proxy and the service are real; the engines are doubles (`doubles.py`), whose replies name the
replica and the version of the settings, so that a test knows which replica holds a call.
`run_ray_redis.py` has the calls that lose their replica.
"""

import asyncio
import contextlib
import json
import random
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

import pytest
import ray
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Response

from agent.errors import CLOSE_DRAINING, ConfigError
from agent.server.ray_options import MAX_QUEUED
from agent.server.ray_serve import ServeArguments, application
from latency_budget.account.clock import SystemClock
from latency_budget.capacity.fleet import FleetSimulation, ReplicaFigures, ScalingRules
from latency_budget.capacity.load import CallLoad
from tests.ray.cluster import LINES, LOOK_S, RULES, WAIT_S, RayCluster, until
from tests.ray.doubles import ModelFreeReplica

LOAD_S: Final = 120.0
"""Length of the load that is compared with the simulation."""
SEED: Final = 5

pytest_plugins = ["tests.ray.ray_fixtures"]
pytestmark = pytest.mark.asyncio


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
                replica, version, _ = text.split()
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
    assert (await asyncio.to_thread(cluster.get, "/readyz"))[0] == 200
    assert (await asyncio.to_thread(cluster.get, "/readyz", "evil.example"))[0] == 403


async def test_replicas_are_added_before_the_last_line_is_taken(cluster: RayCluster) -> None:
    """Twelve calls one after another, each as soon as there is a free line: none is refused, and
    six replicas on three nodes hold two each."""
    cluster.deploy()
    async with contextlib.AsyncExitStack() as stack:
        callers: list[Caller] = []
        for number in range(6 * LINES):
            callers.append(await stack.enter_async_context(calling(cluster.url)))
            wanted = min(6, len(callers) + 1)
            await until(partial(cluster.has_running, wanted))
            assert LINES * cluster.replicas("RUNNING") > number + 1 or number == 11
        holders = [(await each.holder())[0] for each in callers]
    assert {holders.count(each) for each in holders} == {LINES}
    assert len(set(holders)) == 6


async def test_a_call_that_finds_all_lines_taken_waits_and_the_next_are_refused(
    cluster: RayCluster,
) -> None:
    cluster.deploy(ScalingRules(1, 1, 0.99))
    async with several(cluster.url, LINES) as callers:
        waiting = [holder_of_next(cluster.url) for _ in range(MAX_QUEUED)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in waiting]
            refused = await refusal(cluster.url)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
            holder, _ = await callers[0].holder()
            tasks[0].cancel()  # a client that waits no longer leaves its place to another
            await place(cluster.url)
            for each in callers:
                await each.socket.close()
        assert {each.result()[0] for each in tasks[1:]} == {holder}


async def place(url: str) -> None:
    """Wait until a call is let wait, and take it back."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                async with asyncio.timeout(2), connect(url, open_timeout=WAIT_S):
                    pass
            except InvalidStatus:
                continue
            except TimeoutError:
                return


async def refusal(url: str) -> Response:
    """The response to a call that is refused, once one is."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                async with asyncio.timeout(2), connect(url, open_timeout=WAIT_S):
                    pass
            except InvalidStatus as refused:
                return refused.response
            except TimeoutError:  # it was let wait: those before it are not all there yet
                continue


async def holder_of_next(url: str) -> tuple[str, str]:
    """Replica and version of a call that comes again until it is let in."""
    while True:
        with contextlib.suppress(InvalidStatus):
            async with calling(url) as caller:
                return await caller.holder()
        await asyncio.sleep(LOOK_S)


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
        assert (await caller.holder())[1] == "v1"
        await asyncio.to_thread(
            cluster.deploy, ScalingRules(1, 1, 1.0), version="v2", drain_s=2, wait=False
        )
        assert await caller.close_code() == CLOSE_DRAINING


async def test_a_cluster_without_room_says_what_lacks(cluster: RayCluster) -> None:
    with pytest.raises(ConfigError, match="A replica needs 4 CPU on one node; the largest here"):
        application(ServeArguments(num_cpus=4), ModelFreeReplica)
    with pytest.raises(ConfigError, match="6 fit into the 3 nodes"):
        application(ServeArguments(num_cpus=1, min_replicas=7, max_replicas=8), ModelFreeReplica)


async def test_each_node_exports_the_metrics_of_its_replicas(cluster: RayCluster) -> None:
    cluster.deploy()
    ports = [node["MetricsExportPort"] for node in ray.nodes()]

    def exported() -> bool:
        for port in ports:
            with contextlib.suppress(urllib.error.URLError):
                url = f"http://127.0.0.1:{port}/metrics"
                text = urllib.request.urlopen(url).read().decode()
                lines = [
                    each for each in text.splitlines() if each.startswith("ray_halfsec_calls{")
                ]
                if any(each.endswith(" 1.0") and 'deployment="Voice"' in each for each in lines):
                    return True
        return False

    async with calling(cluster.url):
        await until(exported)


async def test_the_proxy_adds_little_to_a_message(cluster: RayCluster) -> None:
    """Printed, not asserted: the way of a small message to the replica and back."""
    cluster.deploy()
    clock, times = SystemClock(), []
    async with calling(cluster.url) as caller:
        for _ in range(200):
            began_ns = clock.now_ns()
            await caller.socket.send(json.dumps({"type": "no such event"}))
            while json.loads(await caller.socket.recv())["type"] != "error":
                pass
            times.append((clock.now_ns() - began_ns) / 1e6)
    times.sort()
    print(f"to the replica and back: p50 {times[100]:.1f} ms, p95 {times[190]:.1f} ms")


async def test_the_simulation_predicts_refusals_and_replicas(cluster: RayCluster) -> None:
    """The same calls, played to the cluster and then to the simulation, which is told how long a
    start took: refusals and time of replicas differ by 15 % at most."""
    rules = replace(RULES, downscale_delay_s=600.0)
    await asyncio.to_thread(cluster.deploy, rules)
    load = CallLoad((7200.0,), 7.0)
    arrivals = list(load.arrivals(0, LOAD_S, random.Random(SEED)))
    clock = SystemClock()
    refused = 0
    counts: list[tuple[float, int, int]] = []
    """Time, replicas that start, replicas that run."""

    def now_s() -> float:
        return (clock.now_ns() - began_ns) / 1e9

    async def hold(at_s: float, length_s: float) -> None:
        nonlocal refused
        await asyncio.sleep(at_s - now_s())
        try:
            async with calling(cluster.url):
                await asyncio.sleep(length_s)
        except InvalidStatus as error:
            refused += error.response.status_code == 503

    async def watch() -> None:
        while True:
            found = await asyncio.to_thread(cluster.states)
            counts.append((now_s(), found.get("STARTING", 0), found.get("RUNNING", 0)))
            await asyncio.sleep(0.5)

    began_ns = clock.now_ns()
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        calls = [group.create_task(hold(*each)) for each in arrivals]
        await asyncio.sleep(LOAD_S)
        watching.cancel()
        await asyncio.wait(calls)
    starting_s = running_s = 0.0
    for (at_s, starting, running), (next_s, _, _) in pairwise(counts):
        starting_s += starting * (next_s - at_s)
        running_s += running * (next_s - at_s)
    start_s = starting_s / (counts[-1][2] - counts[0][2])
    queue = replace(rules, max_queued_requests=MAX_QUEUED)
    simulation = FleetSimulation(ReplicaFigures(LINES, start_s), queue, SEED)
    predicted = simulation.run(load, 0, LOAD_S, warm=False)
    assert predicted.arrived == len(arrivals)
    print(
        f"a start took {start_s:.1f} s; of {len(arrivals)} calls {refused} were refused, predicted "
        f"{predicted.refused}; {starting_s + running_s:.0f} s of replicas, predicted "
        f"{predicted.replica_hours * 3600:.0f}"
    )
    assert refused == pytest.approx(predicted.refused, rel=0.15)
    assert starting_s + running_s == pytest.approx(predicted.replica_hours * 3600, rel=0.15)
