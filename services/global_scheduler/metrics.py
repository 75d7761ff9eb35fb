"""Prometheus metrics, read from the mesh when scraped: an idle scheduler spends nothing on them.

What engines report of themselves is told by the gateway (services/gateway/mesh_metrics.py) and by the engines.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.global_scheduler.mesh import Mesh


def schedule_seconds(registry: CollectorRegistry) -> Histogram:
    """Time of one Schedule call inside the service."""
    return Histogram(
        "hostless:scheduler_place_seconds",
        "Time to place one burst of requests.",
        buckets=(0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1),
        registry=registry,
    )


class MeshCollector(Collector):
    """Runs on the exporter's thread: it reads copies, made in one step, of what the event loop changes."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def collect(self) -> Iterable[Metric]:
        records = list(self._mesh.engines.values())
        labels = ["engine", "model_name"]
        live = GaugeMetricFamily("hostless:scheduler_engine_live", "1 if requests are placed on it.", labels=labels)
        placed = CounterMetricFamily("hostless:scheduler_placements", "Requests placed, by engine.", labels=["engine"])
        requests = GaugeMetricFamily(
            "hostless:scheduler_engine_requests", "Unfinished, as reported.", labels=["engine"]
        )
        tokens = GaugeMetricFamily("hostless:scheduler_engine_tokens", "Of unfinished, as reported.", labels=["engine"])
        held = GaugeMetricFamily(
            "hostless:scheduler_engine_held_blocks", "KV blocks in its memory, as reported.", labels=["engine"]
        )
        for record in records:
            engine_id, report = record.info.engine_id, record.report
            live.add_metric([engine_id, record.info.model], float(self._mesh.placeable(record)))
            placed.add_metric([engine_id], record.placements)
            requests.add_metric([engine_id], report.requests if report else 0)
            tokens.add_metric([engine_id], report.tokens if report else 0)
            held.add_metric([engine_id], self._mesh.held.count(engine_id))
        paths = CounterMetricFamily("hostless:scheduler_path_choice", "Requests placed, by read path.", labels=["path"])
        for path, count in dict(self._mesh.totals.placements).items():
            paths.add_metric([path.value], count)
        reused = CounterMetricFamily(
            "hostless:scheduler_reused_tokens", "Of hits, placed where they are held in memory.",
            self._mesh.totals.reused_tokens,
        )  # fmt: skip
        refusals = CounterMetricFamily("hostless:scheduler_refusals", "Requests refused, by reason.", labels=["reason"])
        for reason, count in dict(self._mesh.totals.refusals).items():
            refusals.add_metric([reason.value], count)
        waiting = GaugeMetricFamily("hostless:scheduler_waiting", "Requests that wait for engines.", self._mesh.waiting)
        return [live, placed, requests, tokens, held, paths, reused, refusals, waiting]
