"""The figures of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from foreshape.interop.batch_queue import Batch

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class RequestMetrics:
    """Counters and histograms in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._requests = Counter("foreshape_requests", "Requests by route and status.", ["route", "status"], registry=registry)
        self._seconds = Histogram("foreshape_request_seconds", "Seconds from a request's head to its answer.", ["route"], registry=registry, buckets=_SECONDS)
        self._known: dict[tuple[str, int], tuple[Counter, Histogram]] = {}
        self._of_models = Counter("foreshape_model_requests", "Requests by model and status.", ["model", "version", "status"], registry=registry)
        self._model_seconds = Histogram(
            "foreshape_model_request_seconds", "Seconds from a request's head to its answer.", ["model", "version"], registry=registry, buckets=_SECONDS
        )
        self._statuses: dict[tuple[str, str], dict[int, tuple[Counter, Histogram]]] = {}
        self._batches = Histogram(
            "foreshape_batch_examples", "Examples that were computed together.", ["model", "version"], registry=registry, buckets=_EXAMPLES
        )
        self._computing = Counter("foreshape_batch_seconds", "Seconds that batches were computed for.", ["model", "version"], registry=registry)
        self._joined = Counter("foreshape_batched_requests", "Requests that were computed.", ["model", "version"], registry=registry)
        self._tokens = Counter("foreshape_tokens", "Tokens of texts, or rows of ragged inputs, that were computed.", ["model", "version"], registry=registry)
        self._shared = Counter(
            "foreshape_shared_tokens", "Tokens of prompts that were taken from the cache of another text.", ["model", "version"], registry=registry
        )
        self._waited = Histogram(
            "foreshape_queue_seconds", "Seconds for which a request waited to be computed.", ["model", "version"], registry=registry, buckets=_SECONDS
        )
        self.waiting = Gauge("foreshape_waiting_requests", "Requests that wait for a model.", ["model", "version"], registry=registry)
        self.running = Gauge("foreshape_open_requests", "Requests without an answer yet.", registry=registry)
        self.pending = Gauge("foreshape_pending_bytes", "Bytes of requests without an answer yet.", registry=registry)

    def answered(self, route: str, status: int, seconds: float, model: tuple[str, str] | None = None) -> None:
        """Count an answer; ``model``: a known name and version, since clients must not choose labels."""
        counters = self._known.get((route, status))
        if counters is None:
            counters = self._known[route, status] = (self._requests.labels(route, status), self._seconds.labels(route))
        figures = [counters]
        if model is not None:
            statuses = self._statuses.setdefault(model, {})
            if status not in statuses:
                statuses[status] = (self._of_models.labels(*model, status), self._model_seconds.labels(*model))
            figures.append(statuses[status])
        for requests, durations in figures:
            requests.inc()
            durations.observe(seconds)

    def ran(self, model: str, version: str) -> Callable[[Batch], None]:
        """Return a listener to a model's batches."""
        examples, seconds, requests = self._batches.labels(model, version), self._computing.labels(model, version), self._joined.labels(model, version)
        tokens, shared, waited = self._tokens.labels(model, version), self._shared.labels(model, version), self._waited.labels(model, version)

        def count(batch: Batch) -> None:
            examples.observe(batch.examples)
            seconds.inc(batch.seconds)
            requests.inc(batch.requests)
            tokens.inc(batch.rows)
            shared.inc(batch.shared)
            for moment in batch.waited:
                waited.observe(moment)

        return count

    def forget(self, model: str, version: str) -> None:
        """Remove the figures of a version whose files are gone: versions come without end."""
        for status in self._statuses.pop((model, version), ()):
            self._of_models.remove(model, version, status)
        for figure in (self._model_seconds, self._batches, self._computing, self._joined, self._tokens, self._shared, self._waited):
            with suppress(KeyError):  # nothing was counted
                figure.remove(model, version)

    def text(self) -> bytes:
        """Return all of them in Prometheus's text format."""
        return generate_latest(self._registry)
