"""Options of the service on Ray Serve, computed without Ray; `tests/ray/` has the rest."""

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from agent.config.layers import load_config
from agent.errors import CLOSE_TIMEOUT_S, ConfigError
from agent.server import ray_options
from agent.server.ray_metrics import MetricsExport
from agent.server.ray_options import (
    HEALTH_PERIOD_S,
    IMPORT_PATH,
    MAX_QUEUED,
    SILENCE_S,
    STOP_MARGIN_S,
    DrainWatch,
    ReplicaSettings,
    deployment_options,
    flags_on_ray,
    is_removed,
    lack_of_room,
    serve_config,
)
from latency_budget.capacity.fleet import ScalingRules
from latency_budget.capacity.plan import target_for

RULES = ScalingRules(2, 8, 2.97)


def test_a_replica_is_sent_as_many_calls_as_it_holds() -> None:
    options = deployment_options(4, 60, RULES)
    assert options["max_ongoing_requests"] == 4
    assert options["max_queued_requests"] == MAX_QUEUED
    scaling = options["autoscaling_config"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (2, 8)
    assert scaling["target_ongoing_requests"] == 2.97 < options["max_ongoing_requests"]
    assert scaling["upscale_delay_s"] < 5 < scaling["downscale_delay_s"]


def test_a_replica_is_killed_after_its_drain() -> None:
    for drain_s in (0, 30, 3600):
        options = deployment_options(2, drain_s, RULES)
        assert options["graceful_shutdown_timeout_s"] > drain_s + 5


def test_a_replica_notices_its_removal_by_the_end_of_health_checks() -> None:
    watch = DrainWatch(60)
    assert not watch.is_silent(10_000)  # loads its models, and is not checked yet
    watch.checked(100)
    for tick in range(1, 30):
        now_s = 100 + tick * HEALTH_PERIOD_S
        assert not watch.is_silent(now_s)
        watch.checked(now_s)
    last_s = 100 + 29 * HEALTH_PERIOD_S
    assert not watch.is_silent(last_s + SILENCE_S)
    assert watch.is_silent(last_s + SILENCE_S + 0.1)
    assert watch.left_s(last_s + 10) == 50
    assert watch.left_s(last_s + 70) == 0
    watch.checked(last_s + 80)
    assert not watch.is_silent(last_s + 81)
    # Even without a drain its calls are ended before Ray kills it.
    assert SILENCE_S + CLOSE_TIMEOUT_S < STOP_MARGIN_S


def test_silence_alone_is_no_removal() -> None:
    assert not is_removed(None)  # the controller is down
    assert not is_removed({"RUNNING": 3})
    assert not is_removed({"RUNNING": 3, "STARTING": 1})
    assert is_removed({"RUNNING": 3, "STOPPING": 1})
    assert is_removed({"STARTING": 1})
    assert is_removed({})  # the application is deleted


def test_the_configuration_file_says_the_same_to_ray_and_to_the_service() -> None:
    (application,) = yaml.safe_load(serve_config(RULES, 4, 600, 3.0))["applications"]
    variables = application["runtime_env"]["env_vars"]
    config = load_config({}, variables)
    (deployment,) = application["deployments"]
    assert config.agent.max_sessions == deployment["max_ongoing_requests"] == 4
    assert config.agent.drain_s == 600 < deployment["graceful_shutdown_timeout_s"]
    assert deployment == {"name": "Voice", **deployment_options(4, 600, RULES)}
    assert application["args"] == {"num_cpus": 3.0}


def test_the_import_path_exists() -> None:
    module, _, name = IMPORT_PATH.partition(":")
    assert module == "agent.server.ray_serve"
    source = Path(ray_options.__file__).with_name("ray_serve.py").read_text(encoding="utf-8")
    assert "webrtc.close(NO_WEBRTC)" in source
    functions = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert name in functions


def test_settings_reach_a_replica_as_they_are() -> None:
    settings = ReplicaSettings(
        {"agent.max_sessions": 3},
        {"HALFSEC_AGENT__DRAIN_S": "7"},
        '[agents.sales]\ngreeting = "Hello."\n',
        "fleet.toml",
    )
    sent = pickle.loads(pickle.dumps(settings))
    config = sent.config()
    assert (config.agent.max_sessions, config.agent.drain_s) == (3, 7)
    assert config.agents["sales"].greeting == "Hello."
    assert config.fingerprint() == settings.config().fingerprint()


def test_what_differs_behind_rays_proxies() -> None:
    flags = flags_on_ray(load_config({}))
    assert flags == {"agent.host": "0.0.0.0", "latency_budget.store": False}
    config = load_config({**flags, "access.require_key": "auto"})
    assert config.agent.host == "0.0.0.0"  # so that a key is needed
    given = load_config({"agent.host": "127.0.0.1", "latency_budget.store": True})
    assert flags_on_ray(given) == {}
    with pytest.raises(ConfigError, match="TLS belongs into Ray's"):
        flags_on_ray(load_config({"access.tls_self_signed": True}))
    with pytest.raises(ConfigError, match="audiosocket_port"):
        flags_on_ray(load_config({"telephony.audiosocket_port": 9000}))


def test_a_cluster_without_room_is_told_what_lacks() -> None:
    small, large = {"CPU": 2.0, "memory": 4e9}, {"CPU": 8.0, "GPU": 1.0}
    assert lack_of_room([small, large], {"CPU": 2.0, "GPU": 0}, 5) is None
    lack = lack_of_room([small, small], {"CPU": 4.0}, 1)
    assert lack == "A replica needs 4 CPU on one node; the largest here have 2 CPU."
    lack = lack_of_room([small, large], {"CPU": 2.0}, 6)
    assert lack is not None
    assert "6 replicas" in lack
    assert "5 fit into the 2 nodes" in lack
    lack = lack_of_room([small, large], {"CPU": 2.0, "GPU": 1.0, "memory": 1e9}, 1)
    assert lack is not None
    assert "GPU" in lack
    assert lack_of_room([], {"CPU": 1.0}, 1) == "This Ray cluster has no nodes."


@pytest.mark.parametrize("calls", range(2, 12))
def test_the_default_target_leaves_a_free_line(calls: int) -> None:
    assert target_for(calls, ray_options.DEFAULT_UTILIZATION) < calls - 1 + 1e-9


def test_each_sample_becomes_a_gauge_of_its_own_name() -> None:
    made: dict[str, tuple[str, ...]] = {}
    told: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    class Gauge:
        def __init__(self, name: str) -> None:
            self.name = name

        def set(self, value: float, tags: dict[str, str] | None = None) -> None:
            told[self.name, tuple((tags or {}).items())] = value

    def make(name: str, text: str, tags: tuple[str, ...]) -> Any:
        assert name not in made
        made[name] = tags
        return Gauge(name)

    export = MetricsExport(make)
    stages = GaugeMetricFamily("halfsec_stage_ready", "Ready.", labels=["stage"])
    stages.add_metric(["asr"], 1)
    stages.add_metric(["llm"], 0)
    families: list[Metric] = [CounterMetricFamily("halfsec_turns", "Turns.", value=3), stages]
    export.export(families)
    assert told["halfsec_turns_total", ()] == 3
    assert told["halfsec_stage_ready", (("stage", "asr"),)] == 1
    assert made["halfsec_stage_ready"] == ("stage",)
    export.export([CounterMetricFamily("halfsec_turns", "Turns.", value=4)])
    assert told["halfsec_turns_total", ()] == 4
