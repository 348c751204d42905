"""Metrics of a replica for Ray, which exports those of all replicas of a node at one port.

Ray has no counter or histogram whose state can be set, so each sample becomes a gauge with the
sample's own name (`halfsec_turns_total`, `halfsec_turn_e2e_seconds_bucket`). Ray puts `ray_` in
front and adds the replica; `deploy/ray/prometheus.yml` takes that prefix away again, and the
dashboard and the alerts for `/metrics` hold. Pure.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from prometheus_client.core import Metric

EXPORT_EVERY_S: Final = 5.0


class SettableGauge(Protocol):
    """What this needs of `ray.serve.metrics.Gauge`."""

    def set(self, value: float, tags: dict[str, str] | None = None) -> None: ...


class MetricsExport:
    """Gauges of one replica. One thread at a time."""

    def __init__(self, make_gauge: Callable[[str, str, tuple[str, ...]], SettableGauge]) -> None:
        """`make_gauge`: makes a gauge of a name, a description, and the names of its tags."""
        self._make_gauge = make_gauge
        self._gauges: dict[str, SettableGauge] = {}

    def export(self, families: Iterable[Metric]) -> None:
        """Set the gauges of all samples."""
        for family in families:
            for sample in family.samples:
                if (gauge := self._gauges.get(sample.name)) is None:
                    names = tuple(sorted(sample.labels))
                    gauge = self._make_gauge(sample.name, family.documentation, names)
                    self._gauges[sample.name] = gauge
                gauge.set(float(sample.value), dict(sample.labels))
