"""The shipped dashboard and alert rules name only metrics that the server exports."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request

import latency_budget
from agent.calls.recording import Recorder
from agent.calls.registry import CallRegistry
from agent.config.schema import Config, LlmSettings
from agent.http.endpoints.metrics import Metrics
from agent.observability.otlp import OtlpSender
from agent.observability.trace_export import TraceExporter
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock
from latency_budget.enforcement.action_effect import MIN_TURNS
from latency_budget.storage.store import TurnStore
from tests.latency_budget.test_store import stored
from tests.support.fakes.llm_models import save_tiny_model
from tests.support.session.chain_turns import chain_turn

yaml = pytest.importorskip("yaml")

FOLDER = Path(latency_budget.__file__).parent / "monitoring"
RECORDED = re.compile(r"halfsec:[a-z0-9_:]+")
TOLD = re.compile(r"\bhalfsec_[a-z0-9_]+")
LABELS = re.compile(r"by \(([a-z_, ]+)\)|\{\{\s*\$?(?:labels\.)?([a-z]+)\s*\}\}")


@pytest.fixture
async def told(tmp_path: Path) -> dict[str, set[str]]:
    """Names of all samples with the labels that they have, of a service that has seen a turn."""
    save_tiny_model(tmp_path / "tiny", "llama", num_hidden_layers=1)
    settings = LlmSettings(model=str(tmp_path / "tiny"), dtype="float32", context=256, cache_mb=16)
    stages = Stages(Config(llm_engine=settings), ModelStore(tmp_path, {}), SystemClock())
    exporter = TraceExporter(OtlpSender("http://127.0.0.1:4318"))
    recorder = Recorder(tmp_path / "calls", SystemClock())
    store = TurnStore(tmp_path / "turns.sqlite")
    calls = CallRegistry(Config(), SystemClock(), store, exporter, recorder)
    calls.history.add(stored().entry)
    for _ in range(MIN_TURNS):
        calls.policy.observe(chain_turn(), 500)
    await stages.llm.start()
    try:
        answer = await Metrics(stages, calls).serve(Request({"type": "http"}))
    finally:
        await stages.close()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(bytes(answer.body).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    return found


async def test_every_metric_is_exposed(told: dict[str, set[str]]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    texts = [rule["expr"] for rule in rules()]
    texts += [target["expr"] for panel in panels() for target in panel["targets"]]
    assert len(texts) > 30
    for text in texts:
        names = TOLD.findall(text)
        assert names or RECORDED.findall(text), text
        assert [name for name in names if name not in told] == []
        assert set(RECORDED.findall(text)) <= recorded
        labels = {label.strip() for found, _ in LABELS.findall(text) for label in found.split(",")}
        assert labels - {""} <= set().union(*(told[name] for name in names)), text


def test_the_dashboard_shows_handoffs_and_tools_in_the_background() -> None:
    asked = {target["expr"] for panel in panels() for target in panel["targets"]}
    assert "sum(rate(halfsec_handoffs_total[$__rate_interval])) * 60" in asked
    assert "sum(halfsec_background_tools)" in asked


def test_panels_stand_side_by_side() -> None:
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels())
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Prometheus) is missing")
def test_prometheus_reads_the_rules_and_what_panels_ask(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    asked = [re.sub(r"\$__[a-z_]+", "5m", text) for text in asked]
    recorded = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(asked)]
    of_panels = tmp_path / "panels.yml"
    of_panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    command = ["promtool", "check", "rules", str(FOLDER / "alerts.yml"), str(of_panels)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
