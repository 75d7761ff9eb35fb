"""Prometheus metrics of an engine, read when scraped: no host code counts on the token path."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.fabric.ring import SlotState
from services.gpu_backend.backend import Backend
from services.gpu_backend.kv_agent import KvAgent

COUNTERS = {
    "prompt_tokens": "Prompt tokens computed by prefill.",
    "cached_tokens": "Prompt tokens loaded from the KV store instead.",
    "generated_tokens": "Tokens sampled.",
    "mixed_launches": "Prefill steps in which running requests took part.",
    "preemptions": "Requests that lost their KV pages and came back later.",
    "blocks_offered": "Full KV blocks offered to the KV store.",
    "blocks_dropped": "Full KV blocks not offered, because too many were on their way.",
    "finished": "Requests that ended, however.",
    "cancelled": "Requests that ended by cancelling.",
    "engine_errors": "Steps that the engine could not compute.",
}
GAUGES = {
    "running": "Requests in the decode batch.",
    "waiting": "Requests claimed, without a lane.",
    "loading": "Requests whose KV is being loaded or handed over.",
    "expecting": "Requests whose prompt is being prefilled elsewhere.",
    "prefilling": "Requests whose prompt is being computed.",
    "free_pages": "KV pages that nobody holds.",
    "free_lanes": "Places in the batch that nobody holds.",
}


STORE_COUNTERS = {
    "loads": "Requests whose KV was asked of the store.",
    "loads_short": "Loads that brought fewer blocks than asked.",
    "blocks_loaded": "KV blocks loaded from the store.",
    "bytes_loaded": "Their bytes.",
    "blocks_reused": "KV blocks that were held in memory, and so not loaded.",
    "blocks_stored": "KV blocks made durable in the store.",
    "bytes_stored": "Their bytes.",
    "blocks_dropped": "KV blocks offered and not stored.",
    "blocks_existing": "KV blocks offered that the store had.",
    "prompts_sent": "Prompts handed over to decode engines.",
    "prompts_received": "Prompts whose KV came from prefill engines.",
}


STORE_GAUGES: dict[str, tuple[str, Callable[[KvAgent], int]]] = {
    "receive_buffer_bytes": (
        "Held by prompts that are prefilled elsewhere.",
        lambda agent: agent.receiver.memory.size - agent.receiver.memory.free,
    ),
    "receive_buffer_late_bytes": (
        "Of these, of prompts that have ended: a prefill engine has stood still in them for 10 s and more.",
        lambda agent: agent.receiver.late_bytes,
    ),
    "left_bytes": (
        "Memory of decode engines that have ended, which stays open on this engine's GPU until it ends.",
        lambda agent: agent.left_bytes,
    ),
    "held_blocks": ("KV blocks held in memory.", lambda agent: len(agent.held)),
    "read_queue_tokens": ("Tokens waiting to be loaded.", lambda agent: agent.read_queue_tokens),
}


class BackendCollector(Collector):
    """Runs on the exporter's thread; reads counters that the scheduler publishes atomically."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterable[Metric]:
        backend = self._backend
        engine_id = backend.info.engine_id
        counters = backend.scheduler.counters()
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"hostless:engine_{name}", text, labels=["engine"])
            counter.add_metric([engine_id], counters[name])
            yield counter
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"hostless:engine_{name}", text, labels=["engine"])
            gauge.add_metric([engine_id], counters[name])
            yield gauge
        launches = CounterMetricFamily("hostless:engine_graph_launches", "Steps launched.", labels=["engine", "kind"])
        for kind in ("prefill", "decode"):
            launches.add_metric([engine_id, kind], counters[f"{kind}_launches"])
        yield launches
        slots = GaugeMetricFamily("hostless:engine_slot_state", "Ring slots in each state.", labels=["engine", "state"])
        for state, count in zip(SlotState, backend.load().slot_states, strict=True):
            slots.add_metric([engine_id, state.name.lower()], count)
        yield slots
        usage = GaugeMetricFamily("hostless:engine_kv_cache_usage_perc", "Share of KV pages held.", labels=["engine"])
        usage.add_metric([engine_id], 1 - counters["free_pages"] / backend.info.page_count)
        yield usage
        if backend.kv_link:
            yield from _store_metrics(engine_id, backend.kv_link.agent)
        leases = GaugeMetricFamily("hostless:engine_front_end_leases", "Front ends attached.", labels=["engine"])
        leases.add_metric([engine_id], len(backend.leases.held))
        yield leases


def _store_metrics(engine_id: str, agent: KvAgent) -> Iterable[Metric]:
    for name, text in STORE_COUNTERS.items():
        counter = CounterMetricFamily(f"hostless:engine_kv_{name}", text, labels=["engine"])
        counter.add_metric([engine_id], getattr(agent.counters, name))
        yield counter
    moved = CounterMetricFamily("hostless:engine_kv_link_bytes", "KV moved over a link.", labels=["engine", "link"])
    for link, moved_bytes in agent.counters.links.items():
        moved.add_metric([engine_id, link.value], moved_bytes)
    yield moved
    for name, (text, value) in STORE_GAUGES.items():
        gauge = GaugeMetricFamily(f"hostless:engine_kv_{name}", text, labels=["engine"])
        gauge.add_metric([engine_id], value(agent))
        yield gauge
