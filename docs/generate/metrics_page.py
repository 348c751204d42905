"""Reference of `/metrics`, from what a server with everything switched on exports."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Final, cast

from prometheus_client.core import Metric

from agent.calls.registry import CallRegistry
from agent.config.schema import Config
from agent.http.endpoints import metrics
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from agent.tools.server_tools import ServerTools
from latency_budget.account.clock import SystemClock
from latency_budget.statistics.histogram import Histogram
from llm_engine import EngineStats

_HEAD: Final = """\
# Metrics

What `GET /metrics` exports, in Prometheus' text format; generated from the code. A counter's sample
has the suffix `_total`, a histogram's `_bucket`, `_sum` and `_count`. The language model's
(`halfsec_llm_*`) are missing while it is being loaded; those of the store, the recorder and the
exporter of traces are there where they are switched on. `process_*` are those of the Prometheus
client. A dashboard for Grafana and alert rules are in `latency_budget/monitoring/`: see
[Observe](../how-to/observe.md).
"""


def families() -> Iterable[Metric]:
    """Every family of metrics that the service can export."""
    clock = SystemClock()
    config = Config()
    # Counters of parts that need a disk or a collector: only their names matter here.
    store = SimpleNamespace(waiting=0, peak_waiting=0, num_set_aside=0, lost=0, problem=None)
    recorder = SimpleNamespace(peak_waiting_s=0.0, problem=None)
    exporter = SimpleNamespace(
        exported=0, dropped=0, refused=0, failures=0, waiting=0, peak_waiting=0, problem=None
    )
    calls = CallRegistry(config, clock, cast(Any, store), cast(Any, exporter), cast(Any, recorder))
    stages = Stages(config, ModelStore(), clock)
    scrape = metrics.Metrics(stages, calls, ServerTools(config, clock))
    yield from scrape._service()
    yield from metrics._engine(_no_engine_stats())


def page() -> str:
    """Markdown of the page."""
    rows = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in sorted(families(), key=lambda each: each.name):
        labels = ", ".join(f"`{name}`" for name in getattr(family, "_labelnames", ()))
        rows.append(f"| `{family.name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join([_HEAD, *rows]) + "\n"


def _no_engine_stats() -> EngineStats:
    """Statistics of an engine that has done nothing."""
    histograms = {"queue_ms", "first_token_ms", "between_tokens_ms"}
    values: dict[str, Any] = {
        name: Histogram() if name in histograms else {} if name == "drafts" else 0
        for name in EngineStats.__dataclass_fields__
    }
    return EngineStats(**values)
