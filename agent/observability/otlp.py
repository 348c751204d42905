"""OTLP sender: spans to an OpenTelemetry collector over HTTP. Needs the extra `otel`.

OpenTelemetry's own exporter makes and posts the requests, so that its variables work as documented:
`OTEL_EXPORTER_OTLP_HEADERS`, `_TIMEOUT`, `_COMPRESSION`, `_CERTIFICATE`, `_CLIENT_KEY`,
`_CLIENT_CERTIFICATE`, each also as `OTEL_EXPORTER_OTLP_TRACES_...`; `OTEL_SERVICE_NAME` and
`OTEL_RESOURCE_ATTRIBUTES`. Its batch processor is not used, because it does not report what it
dropped and why. Its retries are not used either, because they hide an unreachable collector for
seconds: each request is one attempt, and its error is caught where it is posted.
"""

import importlib.metadata
import logging
from collections.abc import Sequence
from typing import Any, Final

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from requests.adapters import HTTPAdapter

from .spans import SpanData, SpanId
from .trace_export import CollectorError

PATH: Final = "/v1/traces"

PASSING: Final = frozenset({429, 502, 503, 504})
"""OTLP/HTTP: the statuses after which a client may try again. "All other 4xx or 5xx response status
codes MUST NOT be retried." """

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class OtlpSender:
    """Sender of spans over one connection. Belongs to one thread, except for `close`."""

    def __init__(self, endpoint: str, config_fingerprint: str = "") -> None:
        """`endpoint`: http:// or https://, with or without /v1/traces. Connects at the first
        `send`."""
        url = endpoint.rstrip("/")
        self._post = _Post()
        session = requests.Session()
        session.mount("http://", self._post)
        session.mount("https://", self._post)
        self._exporter = OTLPSpanExporter(
            url if url.endswith(PATH) else url + PATH, session=session
        )
        # The exporter logs every attempt; `trace_export` logs one line for each change.
        logging.getLogger(OTLPSpanExporter.__module__).setLevel(logging.CRITICAL)
        self._resource = _resource(config_fingerprint)
        self._scope = InstrumentationScope("halfsec", _version())

    def send(self, spans: Sequence[SpanData]) -> None:
        """Send a batch. Blocks for at most `OTEL_EXPORTER_OTLP_TIMEOUT` seconds (10), within which
        the collector has to begin its response. Raises CollectorError."""
        self._post.error = None
        result = self._exporter.export([self._readable(span) for span in spans])
        if result is not SpanExportResult.SUCCESS:
            raise self._post.error or CollectorError(
                "no request can be made of traces; is OTEL_EXPORTER_OTLP_HEADERS right?",
                is_final=True,
            )

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _readable(self, span: SpanData) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=_context(span.id),
            parent=None if span.parent is None else _context(span.parent),
            resource=self._resource,
            attributes={
                name: _encodable(value) if isinstance(value, str) else value
                for name, value in span.attributes.items()
            },
            events=[Event(each.name, each.attributes, each.at_unix_ns) for each in span.events],
            links=[Link(_context(each)) for each in span.links],
            kind=SpanKind.SERVER if span.parent is None else SpanKind.INTERNAL,
            start_time=span.start_unix_ns,
            end_time=span.end_unix_ns,
            instrumentation_scope=self._scope,
        )


class _Post(HTTPAdapter):
    """HTTP adapter that posts a request and keeps the reason of a failure in `error`.

    It raises errors that the exporter does not take for connection errors, so that the exporter
    does not retry. It reads the response itself, because the exporter takes a redirection for
    success. No reason has the collector's address, in which there may be a password: `/readyz`
    says it to anybody.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: CollectorError | None = None

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            response = super().send(request, *args, **kwargs)
            self.error = self._complaint(response)
        except OSError as error:  # includes all errors of requests, and of a certificate file
            self.error = CollectorError(f"no traces reach the collector: {_why(error)}")
        if self.error is not None:
            raise self.error
        return response

    def _complaint(self, response: requests.Response) -> CollectorError | None:
        content = response.content
        status = response.status_code
        if not response.ok or status >= 300:
            return CollectorError(
                f"the collector refuses traces: {status} {response.reason}".rstrip(),
                is_final=status not in PASSING,
                after_s=_seconds(response.headers.get("Retry-After", "")),
            )
        try:
            partial = ExportTraceServiceResponse.FromString(content).partial_success
        except DecodeError:  # some backends respond with JSON or HTML
            return None
        if not partial.rejected_spans:
            return None
        return CollectorError(
            f"the collector refuses {partial.rejected_spans} spans: {partial.error_message}",
            is_final=True,
        )


def _resource(config_fingerprint: str) -> Resource:
    """Resource attributes of the service; those of the environment take precedence."""
    ours = {
        SERVICE_NAME: "halfsec",
        "service.version": _version(),
        "halfsec.config_fingerprint": config_fingerprint,
    }
    told = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in ours.items() if name not in told})


def _version() -> str:
    try:
        return importlib.metadata.version("halfsec")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _context(id: SpanId) -> SpanContext:
    return SpanContext(id.trace, id.span, is_remote=False, trace_flags=_SAMPLED)


def _encodable(text: str) -> str:
    """Replace lone surrogates, which a client's JSON may contain and protobuf rejects."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _why(error: BaseException) -> str:
    """The operating system's error message, from the innermost cause of an error of requests."""
    if isinstance(error, requests.Timeout):
        return "it does not answer in time"
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.strerror:
            return below.strerror
        below = below.__cause__ or below.__context__
    return str(error)


def _seconds(retry_after: str) -> float:
    """Seconds of a Retry-After header; 0 for a date, which collectors do not send."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0
