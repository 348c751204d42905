"""A collector, and the exporter that tells it of turns."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from agent.observability.otlp import OtlpSender
from agent.observability.trace_export import TraceExporter
from tests.support.service.otlp_collector import Collector, serving


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_") or name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.may_answer.set()


@pytest.fixture
def collector_port(collector: Collector, plain_environment: None) -> Iterator[int]:
    with serving(collector) as port:
        yield port


@pytest.fixture
def exporting(plain_environment: None) -> Iterator[Callable[[int], TraceExporter]]:
    """Makes exporters to a port; they end with the test."""
    with ExitStack() as stack:

        def make(port: int) -> TraceExporter:
            exporter = TraceExporter(OtlpSender(f"http://127.0.0.1:{port}", "f00"))
            exporter.start()
            stack.callback(exporter.close, 0.01)
            return exporter

        yield make


@pytest.fixture
def exporter(collector_port: int, exporting: Callable[[int], TraceExporter]) -> TraceExporter:
    return exporting(collector_port)
