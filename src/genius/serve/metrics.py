"""The server's metrics, in Prometheus' format."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "genius_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "genius_request_seconds",
            "Time to an answer.",
            ["route"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.refused = Counter(
            "genius_refused", "Requests refused, by reason.", ["reason"], registry=self.registry
        )
        self.active = Gauge("genius_requests_active", "Requests under way.", registry=self.registry)
        self.held = Gauge(
            "genius_body_bytes_held", "Bytes of request bodies in memory.", registry=self.registry
        )
        self.waiting = Gauge(
            "genius_searches_waiting", "Searches that wait for their turn.", registry=self.registry
        )
        self.batch = Histogram(
            "genius_search_batch_size",
            "Searches answered together.",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self.registry,
        )
        self.changed = Counter(
            "genius_items_changed", "Items added, updated or removed.", ["how"], registry=self.registry
        )
        self.items = Gauge("genius_items", "Items in the index.", ["modality"], registry=self.registry)
        self.generation = Gauge(
            "genius_generation", "Generation of the arrays in use.", registry=self.registry
        )

    def text(self) -> bytes:
        """All of them, to be scraped."""
        return generate_latest(self.registry)
