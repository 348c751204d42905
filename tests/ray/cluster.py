"""A Ray cluster of three nodes on this machine, and the service on it, with doubles for engines."""

import asyncio
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ray import serve

from agent.server.ray_options import DEPLOYMENT
from agent.server.ray_serve import ServeArguments, application
from latency_budget.capacity.fleet import ScalingRules
from tests.ray.doubles import ModelFreeReplica

NAME: Final = "halfsec"
LINES: Final = 2
"""Calls that a replica holds, unless a test has others."""
WAIT_S: Final = 90.0
"""Until something has happened that takes seconds on an idle machine."""
LOOK_S: Final = 0.2
RULES: Final = ScalingRules(1, 6, 0.99, downscale_delay_s=2.0)
"""Of the autoscaler, unless a test has others: up at the first call of a replica, down soon."""


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
        lines: int = LINES,
        state_store: str = "",
        wait: bool = True,
    ) -> None:
        """Deploy, or update. `state_store`: the store that makes calls survive their replica;
        without one no call can be resumed."""
        kept = {"agent.state_store": state_store} if state_store else {"agent.resume_s": 0}
        settings = {
            **kept,
            "agent.max_sessions": lines,
            "agent.drain_s": drain_s,
            "agents.default.instructions": version,
            "access.require_key": "never",
            "latency_budget.admission": False,
            "latency_budget.enforce": False,
        }
        arguments = ServeArguments(settings=settings, num_cpus=1)
        app = application(arguments, ModelFreeReplica, rules)
        if wait:
            serve.run(app, name=NAME, route_prefix="/")
        else:
            target = serve.RunTarget(app, name=NAME, route_prefix="/")
            serve.run_many([target], wait_for_applications_running=False)

    def get(self, path: str, host: str = "localhost") -> tuple[int, bytes]:
        """Status and body of a request through the proxy."""
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers={"Host": host})) as got:
                return got.status, got.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def states(self) -> dict[str, int]:
        """Number of replicas in each state."""
        found = serve.status().applications[NAME].deployments[DEPLOYMENT].replica_states
        return {str(state): number for state, number in found.items()}

    def has_running(self, number: int) -> bool:
        """True if so many replicas run, or more."""
        return self.replicas("RUNNING") >= number

    def replicas(self, *states: str) -> int:
        """Number of replicas in these states."""
        found = self.states()
        return sum(found.get(each, 0) for each in states)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
