"""A collector of traces on a local port: takes OTLP over HTTP and decodes it."""

import gzip
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from agent.observability.spans import FinishedTurn
from tests.latency_budget.test_store import NOW_NS, stored

PATIENCE_S: Final = 30.0
START_NS: Final = 7_000_000_000
"""Start of `turn`, on the monotonic clock."""


@dataclass(frozen=True)
class Answer:
    """Answer to one request."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    num_rejected: int = 0


@dataclass(frozen=True)
class Taken:
    """One request, as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    request: ExportTraceServiceRequest


class Collector:
    """Everything that came, in order. Answers 200 unless `answers` has another."""

    def __init__(self) -> None:
        self.taken: list[Taken] = []
        self.answers: deque[Answer] = deque()
        self.may_answer = threading.Event()
        """Clear: requests are read and not answered."""
        self.may_answer.set()
        self.num_hanging = 0
        self._news = threading.Condition()

    def spans(self) -> list[Span]:
        return [span for taken in self.taken for span in spans_in(taken.request)]

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]

    def take(self, taken: Taken) -> Answer:
        with self._news:
            self.num_hanging += 1
            self._news.notify_all()
        assert self.may_answer.wait(PATIENCE_S)
        with self._news:
            self.num_hanging -= 1
            answer = self.answers.popleft() if self.answers else Answer()
            if answer.status == 200:
                self.taken.append(taken)
            self._news.notify_all()
        return answer

    def wait_hanging(self) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.num_hanging > 0, PATIENCE_S)


def spans_in(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            yield from scope_spans.spans


def attributes(pairs: Any) -> dict[str, Any]:
    """Attributes of a span, an event or a resource."""
    found = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        if kind == "array_value":
            value = [getattr(each, each.WhichOneof("value")) for each in value.values]
        found[pair.key] = value
    return found


@contextmanager
def serving(collector: Collector, port: int = 0) -> Iterator[int]:
    """Yields the port. One that served before can be served again: a collector that restarts."""

    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            plain = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = ExportTraceServiceRequest.FromString(plain)
            answer = collector.take(Taken(self.path, headers, plain, request))
            partial = ExportTracePartialSuccess(
                rejected_spans=answer.num_rejected,
                error_message="too long" * bool(answer.num_rejected),
            )
            content = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that gave up before the answer

    server = Server(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="collector")
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join(PATIENCE_S)
        server.server_close()
        for connection in connections:  # as those of a process that ends
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def turn(number: int = 1) -> FinishedTurn:
    """One that starts at START_NS."""
    entry = stored(number).entry
    record = replace(entry.record, started_ns=START_NS)
    silent = replace(entry, record=record, caller_text="", agent_text="", agent="sales")
    return FinishedTurn(silent, "tiny", NOW_NS)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])
