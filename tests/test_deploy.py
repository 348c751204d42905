"""The files in `deploy/` name ports, paths, settings and commands that exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from agent.__main__ import build_parser
from agent.calls.state_store.redis_store import RedisStateStore
from agent.config.layers import load_config
from agent.config.state_address import parse_state_store
from agent.http.auth.middleware import PROBES
from agent.server.ray_options import DEPLOYMENT, IMPORT_PATH
from docs.generate.metrics_page import families
from latency_budget.account.clock import SystemClock
from tests.support.service.redis_server import redis_server

ROOT: Final = Path(__file__).resolve().parents[1]
DEPLOY: Final = ROOT / "deploy"
COMPOSE_DIRECTORY: Final = DEPLOY / "compose"
COMPOSE: Final = yaml.safe_load((COMPOSE_DIRECTORY / "compose.yml").read_text())
CONTAINERFILE: Final = (DEPLOY / "Containerfile").read_text()
UNIT: Final = DEPLOY / "systemd" / "halfsec.service"
NGINX: Final = (DEPLOY / "proxy" / "nginx.conf").read_text()
CADDY: Final = (DEPLOY / "proxy" / "Caddyfile").read_text()
MANIFESTS: Final = {
    each["kind"]: each
    for each in yaml.safe_load_all((DEPLOY / "kubernetes" / "halfsec.yaml").read_text())
}
RAY_DIRECTORY: Final = DEPLOY / "ray"
RAY_SERVICE: Final = yaml.safe_load((RAY_DIRECTORY / "rayservice.yaml").read_text())
PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
PORT: Final = load_config({}).agent.port


def check_settings(environment: dict[str, str]) -> None:
    """Settings in the environment are accepted."""
    own = {name: value for name, value in environment.items() if name.startswith("HALFSEC_")}
    home = own.pop("HALFSEC_HOME", "")
    assert home in ("", "/data", "/var/lib/halfsec")
    assert all("__" in name for name in own)
    load_config({}, env=own)  # raises for an unknown setting, and for a value out of its bounds


def check_command(arguments: list[str]) -> None:
    assert build_parser().parse_args(arguments).command == arguments[0]


def container() -> dict[str, Any]:
    (found,) = MANIFESTS["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_image_has_what_the_wheel_is_made_of() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", CONTAINERFILE, flags=re.MULTILINE))
    packages = PYPROJECT["tool"]["setuptools"]["packages"]
    assert copied == {name.partition(".")[0] for name in packages}
    extras = set(re.findall(r"halfsec\[([\w,]+)\]", CONTAINERFILE))
    known = PYPROJECT["project"]["optional-dependencies"].keys()
    assert {name for group in extras for name in group.split(",")} <= known
    assert not any("piper" in group for group in extras)  # GPL


def test_the_image_serves() -> None:
    (command,) = re.findall(r"^CMD (\[.*\])$", CONTAINERFILE, flags=re.MULTILINE)
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", CONTAINERFILE, flags=re.MULTILINE)
    assert json.loads(entry) == list(PYPROJECT["project"]["scripts"])
    check_command(json.loads(command))
    check_settings(dict(re.findall(r"(HALFSEC_\w+)=(\S+)", CONTAINERFILE)))
    assert f"EXPOSE {PORT}" in CONTAINERFILE
    assert any(f"http://localhost:{PORT}{path}'" in CONTAINERFILE for path in PROBES)
    first_start = re.findall(r"--start-period=(\d+)m", CONTAINERFILE)
    probe = container()["startupProbe"]
    assert [60 * int(each) for each in first_start] == [
        probe["periodSeconds"] * probe["failureThreshold"]
    ], "the same time for models to be fetched"
    users = re.findall(r"^USER (\d+):\d+$", CONTAINERFILE, flags=re.MULTILINE)
    assert users == ["10001", "10001", "10001"]


def test_compose_names_what_exists() -> None:
    service = COMPOSE["services"]["halfsec"]
    check_command(service["command"])
    check_settings(service["environment"])
    assert service["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    (network,) = COMPOSE["networks"]["default"]["ipam"]["config"]
    proxies = json.loads(service["environment"]["HALFSEC_ACCESS__TRUSTED_PROXIES"])
    assert proxies == [network["subnet"]], "where a proxy on the host comes from"
    build = service["build"]
    assert (COMPOSE_DIRECTORY / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == DEPLOY / "Containerfile"
    assert f" AS {build['target']}" in CONTAINERFILE
    for each in COMPOSE["services"].values():
        for volume in each["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (COMPOSE_DIRECTORY / source).is_file(), source
            else:
                assert source in COMPOSE["volumes"]
    drain_s = int(re.findall(r"HALFSEC_AGENT__DRAIN_S=(\d+)", CONTAINERFILE)[0])
    assert int(service["stop_grace_period"].removesuffix("s")) > drain_s + 5


def test_compose_keeps_turns_in_its_database() -> None:
    environment = COMPOSE["services"]["halfsec"]["environment"]
    written = environment["HALFSEC_LATENCY_BUDGET__STORE"]
    store = load_config({"latency_budget.store": written}).latency_budget.store
    host, _, database = str(store).removeprefix("postgresql://***@").partition("/")
    server = COMPOSE["services"][host]["environment"]
    assert server["POSTGRES_DB"] == database
    login, _, _ = written.removeprefix("postgresql://").partition("@")
    user, _, password = login.partition(":")
    assert user == server["POSTGRES_USER"]
    variable = password.strip("${}")
    assert server["POSTGRES_PASSWORD"].startswith(f"${{{variable}:?")
    assert "postgres" in re.findall(r"halfsec\[([\w,]+)\]", CONTAINERFILE)[0].split(",")


def test_what_compose_takes_from_the_shell_stops_no_command() -> None:
    written = (COMPOSE_DIRECTORY / "compose.yml").read_text()
    names = set(re.findall(r"\$\{(HALFSEC_\w+)", written))
    assert names, "the passwords"
    load_config({}, env=dict.fromkeys(names, "s3cret"))


def with_redis_password(text: str) -> str:
    return re.sub(r"\$\{HALFSEC_REDIS_PASSWORD(:\?[^}]*)?\}", "s3cret", text)


async def test_compose_keeps_the_state_of_calls_in_its_redis(tmp_path: Path) -> None:
    environment = COMPOSE["services"]["halfsec"]["environment"]
    written = with_redis_password(environment["HALFSEC_AGENT__STATE_STORE"])
    service = COMPOSE["services"][str(urlsplit(written).hostname)]
    (volume,) = service["volumes"]
    assert volume == "redis:/data", "where the image works"
    program, *options = map(with_redis_password, service["command"])
    assert program == "redis-server"
    assert "redis" in re.findall(r"halfsec\[([\w,]+)\]", CONTAINERFILE)[0].split(",")
    with redis_server(*options, "--dir", str(tmp_path)) as redis:
        address = parse_state_store(written.replace("@redis:6379/", f"@127.0.0.1:{redis.port}/"))
        assert address is not None
        store = RedisStateStore(address, SystemClock())
        await store.check()
        await store.put("call", b"state", 60)
        redis.stop()
        redis.start()
        assert await store.get("call") == b"state"
        await store.close()


def test_compose_asks_its_redis_for_its_health() -> None:
    service = COMPOSE["services"]["redis"]
    health = service["healthcheck"]["test"]
    assert health[:2] == ["CMD", "redis-cli"]
    password = with_redis_password(service["environment"]["REDISCLI_AUTH"])
    with redis_server("--requirepass", password) as redis:
        command = ["redis-cli", "-p", str(redis.port), *health[2:]]
        for given, status in ((password, 0), ("another", 1)):
            environment = {**os.environ, "REDISCLI_AUTH": given}
            checked = subprocess.run(command, env=environment, capture_output=True, check=False)
            assert checked.returncode == status
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


def test_prometheus_reads_the_metrics_by_an_allowed_name() -> None:
    settings = yaml.safe_load((COMPOSE_DIRECTORY / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    environment = COMPOSE["services"]["halfsec"]["environment"]
    assert host in json.loads(environment["HALFSEC_AGENT__ALLOWED_HOSTS"])
    assert host in COMPOSE["services"]
    assert int(port) == PORT
    assert job["metrics_path"] == "/metrics"
    (secret,) = COMPOSE["services"]["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
    mounted = {each.split(":")[1] for each in COMPOSE["services"]["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{name}" for name in settings["rule_files"]} <= mounted


def test_grafana_finds_its_dashboard_and_prometheus() -> None:
    mounted = {each.split(":")[1] for each in COMPOSE["services"]["grafana"]["volumes"]}
    provider = yaml.safe_load((COMPOSE_DIRECTORY / "grafana-dashboards.yml").read_text())
    path = provider["providers"][0]["options"]["path"]
    assert any(each.startswith(path + "/") for each in mounted)
    source = yaml.safe_load((COMPOSE_DIRECTORY / "grafana-datasource.yml").read_text())
    assert source["datasources"][0]["url"].startswith("http://prometheus:")
    dashboard = json.loads((ROOT / "latency_budget" / "monitoring" / "grafana.json").read_text())
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{(\w+)\}", json.dumps(dashboard["panels"])))
    assert not {each for each in used if each.startswith("DS_")} - variables


def test_kubernetes_probes_and_selects_what_exists() -> None:
    found, spec = container(), MANIFESTS["Deployment"]["spec"]
    check_command(found["args"])
    check_settings({each["name"]: each["value"] for each in found["env"]})
    (port,) = found["ports"]
    assert port["containerPort"] == PORT
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert found[probe]["httpGet"]["path"] in PROBES
        assert found[probe]["httpGet"]["port"] == port["name"]
    assert found["readinessProbe"]["httpGet"]["path"] == "/readyz"
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == MANIFESTS["Service"]["spec"]["selector"] == labels
    assert MANIFESTS["Service"]["spec"]["ports"][0]["targetPort"] == port["name"]
    pod = spec["template"]["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert {each["name"] for each in found["volumeMounts"]} == set(volumes)
    claim = volumes["data"]["persistentVolumeClaim"]["claimName"]
    assert claim == MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]
    assert pod["securityContext"]["runAsUser"] == 10001  # as in the image


def test_pods_get_no_variables_of_other_services() -> None:
    cluster = RAY_SERVICE["spec"]["rayClusterConfig"]
    groups = [MANIFESTS["Deployment"]["spec"], cluster["headGroupSpec"]]
    for each in [*groups, *cluster["workerGroupSpecs"]]:
        assert each["template"]["spec"]["enableServiceLinks"] is False


def test_the_ray_service_says_the_same_to_ray_and_to_the_service() -> None:
    (application,) = yaml.safe_load(RAY_SERVICE["spec"]["serveConfigV2"])["applications"]
    assert application["import_path"] == IMPORT_PATH
    variables = application["runtime_env"]["env_vars"]
    check_settings(variables)
    config = load_config({}, variables)
    (deployment,) = application["deployments"]
    assert deployment["name"] == DEPLOYMENT
    assert deployment["max_ongoing_requests"] == config.agent.max_sessions
    stop_s = deployment["graceful_shutdown_timeout_s"]
    assert stop_s > config.agent.drain_s + 5
    spec = RAY_SERVICE["spec"]
    assert spec["rayClusterDeletionDelaySeconds"] > stop_s
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > stop_s
    assert application["args"]["num_cpus"] <= float(
        pod["containers"][0]["resources"]["requests"]["cpu"]
    )
    scaling = deployment["autoscaling_config"]
    assert scaling["max_replicas"] <= group["maxReplicas"]
    assert scaling["target_ongoing_requests"] < deployment["max_ongoing_requests"]
    (models,) = pod["initContainers"]
    check_command(models["command"][1:])
    assert spec["rayClusterConfig"]["rayVersion"] in (ROOT / "constraints.txt").read_text()


def test_prometheus_sees_rays_metrics_by_our_names() -> None:
    settings = yaml.safe_load((RAY_DIRECTORY / "prometheus.yml").read_text())
    (job,) = settings["scrape_configs"]
    (rule,) = job["metric_relabel_configs"]
    assert (rule["target_label"], rule["replacement"]) == ("__name__", "$1")
    for family in families():
        match = re.fullmatch(rule["regex"], f"ray_{family.name}")
        assert match is not None
        assert match[1] == family.name
    assert re.fullmatch(rule["regex"], "ray_node_cpu_count") is None


def test_the_unit_serves() -> None:
    lines = [line for line in UNIT.read_text().splitlines() if "=" in line and line[0] != "#"]
    values = [tuple(line.split("=", 1)) for line in lines]
    (start,) = (value for name, value in values if name == "ExecStart")
    program, *arguments = shlex.split(start)
    assert Path(program).name in PYPROJECT["project"]["scripts"]
    check_command(arguments)
    environment = dict(value.split("=", 1) for name, value in values if name == "Environment")
    check_settings(environment)
    (stop_s,) = (int(value) for name, value in values if name == "TimeoutStopSec")
    assert stop_s > int(environment["HALFSEC_AGENT__DRAIN_S"]) + 5
    assert not any(name == "MemoryDenyWriteExecute" for name, _ in values)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text().replace("/opt/halfsec/bin/halfsec", "/bin/true")
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^(User|Group)=.*$", r"\1=root", text, flags=re.MULTILINE))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_proxies_pass_on_what_the_server_needs() -> None:
    assert f"proxy_pass http://127.0.0.1:{PORT};" in NGINX
    for name in ("Host $host", "Upgrade $http_upgrade", "X-Forwarded-For $remote_addr"):
        assert f"proxy_set_header {name};" in NGINX
    assert "proxy_buffering off;" in NGINX
    limit_s = load_config({}).agent.session_limit_s
    for name in ("read", "send"):
        (seconds,) = re.findall(rf"proxy_{name}_timeout (\d+)s;", NGINX)
        assert int(seconds) > limit_s
    assert f"reverse_proxy 127.0.0.1:{PORT}" in CADDY
