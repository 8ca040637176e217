"""What a Prometheus server reads at ``/metrics``: counts, sizes and times, and what the worker is doing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rlcd_lite.serve.worker import State

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_NOW = {  # what goes up and down; all else of a worker's state counts from its start
    "alive": "Whether the thread that owns the model runs",
    "waiting": "Requests that were not begun",
    "waiting_tokens": "Estimated tokens of the requests that were not begun",
    "running": "Requests of the current batch",
    "tokens_a_second": "Recent speed, in estimated tokens a second",
    "kept_texts": "Texts whose keys and values are kept",
    "kept_bytes": "Bytes of kept keys and values",
}


class Metrics:
    """Metrics of one server, in a registry of their own. ``state``: what the worker is doing."""

    def __init__(self, state: Callable[[], State]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Worker(state))
        self._requests = Counter("rlcd_lite_requests", "Requests that were answered", ("route", "status"), registry=self.registry)
        self._seconds = Histogram(
            "rlcd_lite_request_seconds", "Time to answer a request", ("route",), buckets=_SECONDS, registry=self.registry
        )
        self._bytes = Counter("rlcd_lite_bytes", "Bytes of bodies", ("route", "direction"), registry=self.registry)

    def count(self, route: str, status: int, seconds: float, received: int, sent: int) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)
        self._bytes.labels(route, "received").inc(received)
        self._bytes.labels(route, "sent").inc(sent)


class _Worker(Collector):
    """A worker's state, looked at when it is asked for."""

    def __init__(self, state: Callable[[], State]) -> None:
        self._state = state

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        state = self._state()
        for field in fields(state):
            name, value = f"rlcd_lite_worker_{field.name}", float(getattr(state, field.name))
            if field.name in _NOW:
                yield GaugeMetricFamily(name, _NOW[field.name], value=value)
            else:
                yield CounterMetricFamily(name, f"The worker's {field.name.replace('_', ' ')}, since its start", value=value)
