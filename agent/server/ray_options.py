"""Options of the voice service on Ray Serve, and whether a cluster has room for it. Pure.

`ray_serve.py` deploys with them; `halfsec plan --serve-config` writes them to a file. They rest on
what Ray Serve 2.60 does (tests/ray/run_ray.py tries each):

- A WebSocket is one request from handshake to close, so `max_ongoing_requests` counts calls. It is
  the number of calls that a replica holds: more, and calls would be sent to a full replica, which
  refuses them, while another has a free line.
- A call that finds all replicas full would wait in the proxy, for minutes; `max_queued_requests`
  bounds how many do. The next one gets 503.
- Autoscaling counts the same requests. Its target is below what a replica holds, so that replicas
  are added while there are free lines.
- A call by WebRTC is one short request, so Ray would count none of its length, send more to a full
  replica, and remove one in the middle of such calls. They are refused (`NO_WEBRTC`).
- A replica that is removed takes no new calls and is killed `graceful_shutdown_timeout_s` later, or
  as soon as its calls have ended.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from agent.config.layers import load_config
from agent.config.schema import Config
from agent.errors import ConfigError
from agent.http.refusal import HttpRefusal
from latency_budget.capacity.fleet import ScalingRules

DEPLOYMENT: Final = "Voice"
"""Name of the deployment."""

IMPORT_PATH: Final = "agent.server.ray_serve:app"

MAX_QUEUED: Final = 4
"""Requests that wait in one proxy for a replica. Pages and other short requests come through here
also while all lines are taken; more would let callers wait in silence."""

STOP_MARGIN_S: Final = 20.0
"""Time after the drain until Ray kills: to notice the removal, for the last goodbyes, and for the
end of the threads."""

HEALTH_PERIOD_S: Final = 2.0
"""Interval of Ray's health checks, by whose end a replica notices that it is removed."""

SILENCE_S: Final = 5 * HEALTH_PERIOD_S
"""Time without a health check after which a replica asks whether replicas are removed. Shorter: a
controller that is only slow is taken for silent."""

RETRY_AFTER_S: Final = 10
"""`Retry-After` of a refusal, as where all lines of `halfsec serve` are busy."""

SURGE_PERCENT: Final = 25
"""Replicas that an update adds before it removes old ones. 0: those that are updated take no calls
until their successors have started. More: an update needs more room."""

DEFAULT_MAX_REPLICAS: Final = 4
DEFAULT_UTILIZATION: Final = 0.7
"""Share of a replica's lines that the autoscaler aims at where no plan says another."""

DEFAULT_CPUS: Final = 2.0


NO_WEBRTC: Final = HttpRefusal(
    501,
    "Calls by WebRTC are not taken behind Ray Serve, which would not count them. "
    "Calls by WebSocket are taken at /v1/realtime.",
    "webrtc_not_available",
    "server_error",
)


@dataclass(frozen=True, slots=True)
class ReplicaSettings:
    """Layers of the settings, as they are sent to the replicas: a `Config` can't be pickled."""

    flags: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables with settings; others are those of the replica's node."""
    file_text: str = ""
    file_name: str = "halfsec.toml"

    def config(self) -> Config:
        """The settings. Raises ConfigError."""
        return load_config(self.flags, self.env, self.file_text, self.file_name)


def flags_on_ray(config: Config) -> dict[str, object]:
    """What differs from `halfsec serve`, where the settings leave it open: Ray's proxies may listen
    to all, so a key is needed; replicas of one node would share the file of the store.

    Raises ConfigError for settings that have no effect behind Ray's proxies.
    """
    for key, is_set, instead in (
        ("access.tls_cert", config.access.has_tls, "TLS belongs into Ray's http_options"),
        (
            "telephony.audiosocket_port",
            bool(config.telephony.audiosocket_port),
            "Ray's proxies carry HTTP and WebSockets only; use another carrier's stream",
        ),
    ):
        if is_set:
            raise ConfigError(f"{key} is set, which Ray Serve can't do: {instead}.", key=key)
    usual = {"agent.host": "0.0.0.0", "latency_budget.store": False}
    given = {key for key, origin in config.origins.items() if not origin.startswith("preset ")}
    return {key: value for key, value in usual.items() if key not in given}


def deployment_options(num_calls: int, drain_s: float, rules: ScalingRules) -> dict[str, Any]:
    """Options of the deployment. `num_calls`: calls that a replica holds, as admission measured it
    (`halfsec_calls_capacity`); it has to be `agent.max_sessions` as well."""
    return {
        "max_ongoing_requests": num_calls,
        "max_queued_requests": MAX_QUEUED,
        "graceful_shutdown_timeout_s": drain_s + STOP_MARGIN_S,
        "graceful_shutdown_wait_loop_s": 1.0,
        "health_check_period_s": HEALTH_PERIOD_S,
        "health_check_timeout_s": 30.0,
        "backpressure_config": {"status_code": 503, "retry_after_s": RETRY_AFTER_S},
        "max_surge_percent": SURGE_PERCENT,
        "autoscaling_config": {
            "min_replicas": rules.min_replicas,
            "max_replicas": rules.max_replicas,
            "initial_replicas": rules.min_replicas,
            "target_ongoing_requests": rules.target_ongoing_requests,
            "upscale_delay_s": rules.upscale_delay_s,
            "downscale_delay_s": rules.downscale_delay_s,
            "look_back_period_s": rules.look_back_period_s,
            "metrics_interval_s": rules.metrics_interval_s,
        },
    }


def serve_config(
    rules: ScalingRules,
    num_calls: int,
    drain_s: float,
    num_cpus: float = DEFAULT_CPUS,
) -> str:
    """Configuration for `serve deploy`, as YAML."""
    variables = {
        "HALFSEC_AGENT__MAX_SESSIONS": str(num_calls),
        "HALFSEC_AGENT__DRAIN_S": str(round(drain_s)),
    }
    application = {
        "name": "halfsec",
        "import_path": IMPORT_PATH,
        "route_prefix": "/",
        "args": {"num_cpus": num_cpus},
        "runtime_env": {"env_vars": variables},
        "deployments": [{"name": DEPLOYMENT, **deployment_options(num_calls, drain_s, rules)}],
    }
    config = {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": 8000},
        "applications": [application],
    }
    return str(yaml.safe_dump(config, sort_keys=False))


class DrainWatch:
    """Tells a replica that it is being removed, which Ray does not.

    Ray checks the health of running replicas only, so a replica that is removed is checked no more.
    Nor is one whose controller is down, so the controller is asked as well, but only then: asking
    all the time, the replicas of a large fleet would keep it busy. A health check that comes after
    all takes everything back. Times are in seconds of any clock that does not go back.
    """

    def __init__(self, drain_s: float) -> None:
        self._drain_s = drain_s
        self._checked_s = math.inf
        """Time of the last check; before the first one the replica does not run yet."""

    def checked(self, now_s: float) -> None:
        """Ray has checked the replica's health."""
        self._checked_s = now_s

    def is_silent(self, now_s: float) -> bool:
        """True if the controller is to be asked."""
        return now_s - self._checked_s > SILENCE_S

    def left_s(self, now_s: float) -> float:
        """Time that is left for the calls of a replica that is removed."""
        return max(0.0, self._checked_s + self._drain_s - now_s)


def is_removed(states: Mapping[str, int] | None) -> bool:
    """True if a replica without health checks is being removed. `states`: the number of the
    deployment's replicas in each state, as the controller says; None: it does not answer."""
    return states is not None and ("STOPPING" in states or not states.get("RUNNING"))


def lack_of_room(
    nodes: Sequence[Mapping[str, float]], needs: Mapping[str, float], num_replicas: int
) -> str | None:
    """Sentence that says why so many replicas do not fit into these nodes; None: they do. `nodes`:
    resources of each; `needs`: those of one replica."""
    wanted = {name: number for name, number in needs.items() if number}
    shown = ", ".join(f"{number:g} {name}" for name, number in wanted.items())
    if not nodes:
        return "This Ray cluster has no nodes."
    fitting = [
        min((int(node.get(name, 0) // number) for name, number in wanted.items()), default=10**6)
        for node in nodes
    ]
    if not any(fitting):
        largest = ", ".join(
            f"{max(node.get(name, 0) for node in nodes):g} {name}" for name in wanted
        )
        return f"A replica needs {shown} on one node; the largest here have {largest}."
    if sum(fitting) < num_replicas:
        return (
            f"{num_replicas} replicas with {shown} each are the least; {sum(fitting)} fit into the "
            f"{len(nodes)} nodes of this Ray cluster."
        )
    return None
