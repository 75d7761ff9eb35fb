"""Prometheus metrics of the store, read from its statistics when scraped."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hostless.v1.kvstore_pb2 import StatsReply

GAUGES = {
    "blocks": "Full Blocks stored.",
    "bytes": "Bytes that stored blocks take.",
    "capacity_bytes": "Most bytes that stored blocks take.",
    "leases": "Leases that readers hold.",
    "tickets": "Blocks on their way in.",
    "read_queue_tokens": "Tokens of blocks that are being read, or wait for it.",
    "index_bytes": "Memory of the index, and of what the engine knows of where blocks lie.",
    "kept_blocks": "Blocks kept from eviction.",
    "roots": "Models, layouts and tenants that have blocks.",
    "draining": "1: no more leases and blocks are taken.",
}
COUNTERS = {
    "lookups": "Lookups of chains.",
    "keys_asked": "Block keys looked for.",
    "keys_hit": "Block keys found.",
    "blocks_read": "Blocks, or slices of blocks, brought to readers, verified.",
    "blocks_written": "Blocks committed.",
    "blocks_evicted": "Blocks that made room for others.",
    "bytes_read": "Bytes brought to readers, verified.",
    "bytes_written": "Bytes of blocks committed.",
    "blocks_adopted": "Blocks of other stores, found in a shared engine.",
    "blocks_corrupt": "Blocks found broken and dropped.",
}


class StoreCollector(Collector):
    """`stats` is called on the exporter's thread."""

    def __init__(self, stats: Callable[[], StatsReply]) -> None:
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for name, help_text in GAUGES.items():
            yield GaugeMetricFamily(f"hostless:kvstore_{name}", help_text, getattr(stats, name))
        for name, help_text in COUNTERS.items():
            yield CounterMetricFamily(f"hostless:kvstore_{name}", help_text, getattr(stats, name))
