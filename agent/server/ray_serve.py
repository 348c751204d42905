"""The voice service as replicas of Ray Serve: `serve run agent.server.ray_serve:app`.

Theory of operation. A replica is the service of `halfsec serve` without its port. Ray's proxies,
one on each node, take connections and pass them on, message by message; which replica gets a call,
how many replicas there are, and the update of all of them, one after another, are Ray's business
(see `ray_options.py`). The settings are read once, where the application is built, and sent to each
replica, so that all are the same; keys, models and secrets are those of the replica's node.

Ray sends nothing to a replica before its `__init__` has returned, so that a replica which is there
has its models loaded. One that has lost its device fails Ray's health check and is replaced.
"""

import asyncio
import logging
import os
import socket
from typing import Any, Final, cast

import ray
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve import metrics
from starlette.applications import Starlette

from agent.calls.state_store.load import check_state_store
from agent.config.schema import Config
from agent.config.sources import read_config, read_settings_file
from agent.errors import ConfigError
from agent.http.auth.keys import KeyFile, keys_path
from agent.observability.server_log import log_to_stderr
from agent.server.startup_checks.access import check_access
from agent.server.startup_checks.preflight import (
    check_exports,
    check_gpu,
    check_models,
    check_remote,
    check_store,
    check_torch,
    check_webhooks,
)
from agent.server.startup_checks.telephony import check_telephony
from agent.server.startup_checks.tools import check_tools
from agent.stages.heap import freeze_heap
from agent.stages.machine_speed import measure_machine
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.model_store.hub import hub_obstacle
from latency_budget.account.clock import Clock, SystemClock
from latency_budget.capacity.fleet import ScalingRules
from latency_budget.capacity.plan import target_for

from .ray_metrics import EXPORT_EVERY_S, MetricsExport, SettableGauge
from .ray_options import (
    DEFAULT_CPUS,
    DEFAULT_MAX_REPLICAS,
    DEFAULT_UTILIZATION,
    DEPLOYMENT,
    NO_WEBRTC,
    DrainWatch,
    ReplicaSettings,
    deployment_options,
    flags_on_ray,
    is_removed,
    lack_of_room,
)
from .ray_sockets import ConnectionRequests, LeftHandlers
from .service import Service, drain, make_service, verify_state_store

LOOK_EVERY_S: Final = 1.0
"""Interval of looks at the time since the last health check."""

_log = logging.getLogger(__name__)


class ServeArguments(BaseModel):
    """Arguments of the application: `args` of a configuration file, KEY=VALUE of `serve run`."""

    model_config = ConfigDict(extra="forbid")

    config: str | None = None
    """Settings file where the application is built; else HALFSEC_CONFIG, else halfsec.toml."""
    settings: dict[str, Any] = {}
    """Settings above those of the file and of the environment, like "agent.max_sessions"."""
    min_replicas: int = 1
    max_replicas: int = DEFAULT_MAX_REPLICAS
    num_cpus: float = DEFAULT_CPUS
    """Processors that a replica reserves on its node."""
    num_gpus: float = 0
    memory_mb: float = 0
    nodes_come_later: bool = False
    """Deploy where no node has room now, because the cluster adds nodes (KubeRay, `ray up`)."""


class VoiceReplica:
    """One replica: the service in a process of Ray's. Belongs to the event loop on which Ray makes
    it."""

    async def __init__(self, settings: ReplicaSettings) -> None:  # type: ignore[misc]
        """Load the models; Ray awaits this. `settings`: the same for all replicas. Raises
        ConfigError, ModelError, KeyFileError, RuntimeError."""
        self._clock = SystemClock()
        began_ns = self._clock.now_ns()
        config = settings.config()
        log_to_stderr(config.agent.log_level)
        self.check(config)
        self._watch = DrainWatch(config.agent.drain_s)
        self._service = self.make(config, self._clock)
        self._service.app.webrtc.close(NO_WEBRTC)
        self._left = LeftHandlers()
        self._service.app.asgi.add_middleware(ConnectionRequests, left=self._left)
        await verify_state_store(self._service.state_store)
        self._gauges = MetricsExport(_gauge)
        stages = self._service.stages
        self._beside = asyncio.get_running_loop().create_task(self._run())
        await stages.start()
        if stages.status != "ready":
            raise RuntimeError(stages.failure())
        freeze_heap()
        self._service.calls.ready_after_s = (self._clock.now_ns() - began_ns) / 1e9

    def __serve_build_asgi_app__(self) -> Starlette:
        """The application, whose routes Ray reads; Ray calls this after `__init__`."""
        return self._service.app.asgi

    async def __del__(self) -> None:
        """End what is left of the calls, and the threads; Ray awaits this after the drain."""
        if not hasattr(self, "_beside"):  # `__init__` has failed
            return
        await drain(self._service.calls, 0)
        await self._left.close()
        self._beside.cancel()
        await asyncio.wait({self._beside})
        await self._service.close()

    def check_health(self) -> None:
        """Called by Ray, which replaces a replica where this raises RuntimeError."""
        self._watch.checked(self._now_s())
        if self._service.stages.status == "failed":
            raise RuntimeError(self._service.stages.failure())
        if self._beside.done():
            raise RuntimeError("what runs beside the calls has ended")
        if self._service.calls.stopping.is_set():
            raise RuntimeError("the calls were ended")

    def check(self, config: Config) -> None:
        """What `halfsec serve` checks before it listens."""
        check_access(config, KeyFile(keys_path()))
        check_telephony(config)
        check_exports(config)
        check_store(config)
        check_webhooks(config)
        check_state_store(config)
        check_remote(config)
        check_torch(config)
        check_gpu(config)
        check_models(config, ModelStore())
        check_tools(config)

    def make(self, config: Config, clock: Clock) -> Service:
        return make_service(config, clock, replica=f"{socket.gethostname()}:{os.getpid()}")

    async def _run(self) -> None:
        async with self._service.tools.running(), asyncio.TaskGroup() as group:
            group.create_task(self._service.run())
            group.create_task(self._export_metrics())
            group.create_task(self._drain_when_removed())

    async def _export_metrics(self) -> None:
        while True:
            families = await self._service.app.metrics.families()
            await asyncio.to_thread(self._gauges.export, families)
            await asyncio.sleep(EXPORT_EVERY_S)

    async def _drain_when_removed(self) -> None:
        """Ends calls that outlast the drain with 1012, before Ray kills the process."""
        calls = self._service.calls
        while not (calls.draining and self._watch.left_s(self._now_s()) == 0):
            await asyncio.sleep(LOOK_EVERY_S)
            if not self._watch.is_silent(self._now_s()):
                calls.draining = False
            elif not calls.draining and is_removed(await asyncio.to_thread(_replica_states)):
                calls.draining = True
                calls.waiting.end_all("the server is stopping")
        await drain(calls, 0)

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9


def application(
    arguments: ServeArguments,
    replica: type[VoiceReplica] = VoiceReplica,
    rules: ScalingRules | None = None,
) -> serve.Application:
    """The application, with options of the deployment from the settings; those of a configuration
    file count more. `rules`: of the autoscaler; None: from the arguments. Raises ConfigError, also
    where the cluster has no room."""
    settings = _settings(arguments)
    config = settings.config()
    num_calls = config.agent.max_sessions
    target = round(target_for(num_calls, DEFAULT_UTILIZATION), 3)
    rules = rules or ScalingRules(arguments.min_replicas, arguments.max_replicas, target)
    needs = {
        "CPU": arguments.num_cpus,
        "GPU": arguments.num_gpus,
        "memory": arguments.memory_mb * 1e6,
    }
    if ray.is_initialized() and not arguments.nodes_come_later:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if (lack := lack_of_room(nodes, needs, rules.min_replicas)) is not None:
            raise ConfigError(
                f"{lack} Add nodes, or lower num_cpus, num_gpus, memory_mb or min_replicas of the "
                "application's arguments. nodes_come_later deploys all the same.",
                key="num_cpus",
            )
    deployment = serve.deployment(serve.ingress()(replica)).options(
        name=DEPLOYMENT,
        ray_actor_options={
            "num_cpus": needs["CPU"],
            "num_gpus": needs["GPU"],
            "memory": needs["memory"],
        },
        **deployment_options(num_calls, config.agent.drain_s, rules),
    )
    return deployment.bind(settings)


def app(arguments: ServeArguments) -> serve.Application:
    """The voice service: the import path of `serve run` and of configuration files."""
    return application(arguments)


def _settings(arguments: ServeArguments) -> ReplicaSettings:
    """The settings as they are here. Raises ConfigError."""
    # Variables without "__" are no settings, and one of them may be a key.
    names = [name for name in os.environ if name.startswith("HALFSEC_") and "__" in name]
    env = {name: os.environ[name] for name in names}
    text, name = read_settings_file(arguments.config, os.environ)
    flags = dict(arguments.settings)
    config = read_config(flags, arguments.config, None, measure_machine, hub_obstacle)
    flags |= flags_on_ray(config)
    if config.is_chosen:
        flags |= {"agent.preset": config.agent.preset}
        flags |= {"llm_engine.threads": config.llm_engine.threads}
    return ReplicaSettings(flags, env, text, name)


def _replica_states() -> dict[str, int] | None:
    """Number of replicas of this one's deployment in each state; None where the controller does
    not answer."""
    here = serve.get_replica_context()
    try:
        application = serve.status().applications.get(here.app_name)
    except Exception as error:
        _log.warning("Ray Serve's controller does not answer: %s", error)
        return None
    found = None if application is None else application.deployments.get(here.deployment)
    return {} if found is None else {str(k): n for k, n in found.replica_states.items()}


def _gauge(name: str, text: str, tags: tuple[str, ...]) -> SettableGauge:
    return cast(SettableGauge, metrics.Gauge(name, description=text, tag_keys=tags))
