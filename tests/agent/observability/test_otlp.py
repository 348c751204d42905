"""Traces on the wire: what a collector gets, and who decides whether it gets anything."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.calls.call import ActiveCall
from agent.calls.registry import CallRegistry
from agent.config.layers import load_config
from agent.config.schema import Config
from agent.observability.otlp import OtlpSender
from agent.observability.spans import spans_of
from agent.observability.trace_export import CollectorError, TraceExporter
from agent.server.service import _exporter
from latency_budget.account.clock import ManualClock
from latency_budget.account.turn import SessionId
from tests.latency_budget.test_store import NOW_NS
from tests.support.service.otlp_collector import START_NS, Collector, attributes, turn

pytest_plugins = ["tests.support.service.otlp_fixtures"]


def test_a_turn_arrives_as_opentelemetry_has_it(
    collector: Collector, exporter: TraceExporter
) -> None:
    finished = turn()
    exporter.add(finished)
    assert exporter.flush()
    (taken,) = collector.taken
    assert taken.path == "/v1/traces"
    assert taken.headers["content-type"] == "application/x-protobuf"
    (resource_spans,) = taken.request.resource_spans
    resource = attributes(resource_spans.resource.attributes)
    assert resource["service.name"] == "halfsec"
    assert resource["halfsec.config_fingerprint"] == "f00"
    assert resource["telemetry.sdk.name"] == "opentelemetry"
    (scope_spans,) = resource_spans.scope_spans
    assert scope_spans.scope.name == "halfsec"
    made = spans_of(finished)
    assert len(made) > 8
    assert [
        (span.name, span.start_time_unix_nano, span.end_time_unix_nano, attributes(span.attributes))
        for span in scope_spans.spans
    ] == [
        (
            span.name,
            span.start_unix_ns,
            span.end_unix_ns,
            {k: list(v) if isinstance(v, tuple) else v for k, v in span.attributes.items()},
        )
        for span in made
    ]
    root, *children = scope_spans.spans
    assert root.start_time_unix_nano == START_NS + NOW_NS
    assert root.end_time_unix_nano - root.start_time_unix_nano == 450_000_000
    assert root.parent_span_id == b""
    assert root.kind == root.SPAN_KIND_SERVER
    assert [(each.name, each.time_unix_nano) for each in root.events] == [
        (each.name, each.at_unix_ns) for each in made[0].events
    ]
    (link,) = root.links
    assert int.from_bytes(link.trace_id) == made[0].links[0].trace
    assert int.from_bytes(link.span_id) == made[0].links[0].span
    assert {child.parent_span_id for child in children} == {root.span_id}
    assert {child.trace_id for child in children} == {root.trace_id}
    assert {child.kind for child in children} == {root.SPAN_KIND_INTERNAL}


def test_the_standard_variables_are_obeyed(
    collector: Collector, collector_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20c2VjcmV0,x-tenant=b")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front-desk")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    sender = OtlpSender(f"http://127.0.0.1:{collector_port}/otlp/v1/traces/")
    sender.send(spans_of(turn()))
    sender.close()
    (taken,) = collector.taken
    assert taken.path == "/otlp/v1/traces"
    assert taken.headers["authorization"] == "Basic c2VjcmV0"
    assert taken.headers["x-tenant"] == "b"
    assert taken.headers["content-encoding"] == "gzip"
    resource = attributes(taken.request.resource_spans[0].resource.attributes)
    assert resource["service.name"] == "front-desk"
    assert resource["deployment.environment"] == "test"


def call_over(exporter: TraceExporter, *, store_texts: bool) -> None:
    """A call with one turn, which began when the monotonic clock stood at 5 s."""
    config = Config()
    kept = replace(config.latency_budget, store_texts=store_texts)
    clock = ManualClock(5_000_000_000)
    calls = CallRegistry(replace(config, latency_budget=kept), clock, exporter=exporter)
    call: ActiveCall = calls.admit(SessionId("sess_x"), "sales")
    clock.advance_ms(60_000)
    entry = replace(turn().entry, session=call.session_id)
    calls.turn_over(call, replace(entry, caller_text="Who is \ud800 there?", agent_text="Nobody."))
    calls.leave(call)
    calls.leave(call)


def test_a_call_and_its_turns(collector: Collector, exporter: TraceExporter) -> None:
    call_over(exporter, store_texts=False)
    assert exporter.flush()
    by_name = {span.name: span for span in collector.spans()}
    call, over = by_name["call"], by_name["turn"]
    assert collector.names().count("call") == 1
    assert over.links[0].span_id == call.span_id
    assert over.trace_id != call.trace_id
    assert call.end_time_unix_nano - call.start_time_unix_nano == 60_000_000_000
    assert over.start_time_unix_nano - call.start_time_unix_nano == 2_000_000_000
    assert attributes(call.attributes)["session.id"] == "sess_x"
    assert attributes(over.attributes)["gen_ai.agent.name"] == "sales"
    assert attributes(over.attributes)["gen_ai.request.model"] == Config().llm_engine.model
    assert b"there" not in collector.taken[0].body
    assert b"Nobody" not in collector.taken[0].body


def test_words_leave_only_where_they_are_kept(
    collector: Collector, exporter: TraceExporter
) -> None:
    call_over(exporter, store_texts=True)
    assert exporter.flush()
    (told,) = [attributes(span.attributes) for span in collector.spans() if span.name == "turn"]
    assert "there?" in json.loads(told["gen_ai.input.messages"])[0]["parts"][0]["content"]
    assert json.loads(told["gen_ai.output.messages"])[0]["parts"][0]["content"] == "Nobody."


def test_a_path_that_no_encoding_has(collector: Collector, exporter: TraceExporter) -> None:
    exporter.add(replace(turn(), model="/models/\udce4.gguf"))
    assert exporter.flush()
    told = attributes(collector.spans()[0].attributes)
    assert told["gen_ai.request.model"] == "/models/?.gguf"


def test_a_certificate_and_headers_that_are_none(
    collector_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem")
    safe = OtlpSender(f"https://127.0.0.1:{collector_port}")
    with pytest.raises(CollectorError, match=r"no traces reach the collector: .*/nowhere\.pem"):
        safe.send(spans_of(turn()))
    safe.close()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "key=two%0alines")
    plain = OtlpSender(f"http://127.0.0.1:{collector_port}")
    with pytest.raises(CollectorError, match="is OTEL_EXPORTER_OTLP_HEADERS right") as caught:
        plain.send(spans_of(turn()))
    assert caught.value.is_final
    plain.close()


def without_otel(folder: Path) -> dict[str, str]:
    """An environment in which everything is installed but the extra `otel`."""
    import numpy

    installed = Path(numpy.__file__).parent.parent
    for path in installed.iterdir():
        if not path.name.startswith("opentelemetry"):
            (folder / path.name).symlink_to(path)
    root = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{folder}", "PORT": "0"}


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_without_the_extra(tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-S", "-m", "agent", command),
            *("--set", "latency_budget.otlp_endpoint=http://localhost:4318"),
        ],
        env=without_otel(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    missing = "opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http"
    if command == "serve":
        assert done.returncode == 2
        assert done.stderr == (
            f"halfsec: latency_budget.otlp_endpoint needs {missing}: pip install 'halfsec[otel]'\n"
        )
    else:
        assert done.returncode == 1
        line = next(line for line in done.stdout.splitlines() if " traces " in line)
        assert line.split() == ["WRONG", "traces", *missing.split(), "not", "installed"]
        assert "-> pip install 'halfsec[otel]'" in done.stdout


def test_it_is_off_by_default_and_by_opentelemetrys_own_switch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _exporter(Config()) is None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert _exporter(load_config({"latency_budget.otlp_endpoint": "http://127.0.0.1:9"})) is None


def test_nothing_of_it_is_imported_where_it_is_off() -> None:
    code = "import agent.server, sys; print([m for m in sys.modules if 'opentelemetry' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
