"""What the engines say of themselves, through the global scheduler, as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hostless.v1 import scheduler_pb2 as pb

SLOT_STATES = (
    "empty",
    "prefill_pending",
    "prefill_processing",
    "decode_processing",
    "decode_paused",
    "decode_completed",
    "kv_pending",
)
"""By the ring's SlotState."""

READ_PATHS = ("unified", "prefill", "decode")
"""By hostless.v1.ReadPath."""


def mesh_families(status: pb.MeshStatus | None) -> Iterator[Metric]:
    """`status` None: the scheduler did not answer; then only hostless:mesh_up is told."""
    yield GaugeMetricFamily("hostless:mesh_up", "1 if the global scheduler answered.", float(status is not None))
    if status is None:
        return
    engine = ["engine"]
    up = GaugeMetricFamily("hostless:engine_up", "1 while the engine's lease stands.", labels=engine)
    usage = GaugeMetricFamily("hostless:kv_cache_usage_perc", "KV pages in use; 1 is all of them.", labels=engine)
    preempted = CounterMetricFamily("hostless:num_preemptions", "Requests evicted to decode_paused.", labels=engine)
    requests = GaugeMetricFamily("hostless:engine_requests", "In an engine's lanes.", labels=["engine", "state"])
    slots = GaugeMetricFamily("hostless:slot_state", "Slots of the ring, by state.", labels=["engine", "state"])
    launches = CounterMetricFamily("hostless:graph_launches", "Graphs launched.", labels=["engine", "kind"])
    for one in status.engines:
        name, report = one.info.engine_id, one.report
        up.add_metric([name], float(one.live))
        if one.info.page_count:
            usage.add_metric([name], 1 - report.free_pages / one.info.page_count)
        preempted.add_metric([name], report.preemptions)
        requests.add_metric([name, "running"], report.running)
        requests.add_metric([name, "waiting"], report.waiting)
        for index, count in enumerate(report.slot_states):
            slots.add_metric([name, _name(SLOT_STATES, index)], count)
        launches.add_metric([name, "prefill"], report.prefill_launches)
        launches.add_metric([name, "decode"], report.decode_launches)
    paths = CounterMetricFamily("hostless:path_choice", "Requests placed, by read path.", labels=["path"])
    for index, count in enumerate(status.path_choices):
        paths.add_metric([_name(READ_PATHS, index)], count)
    yield from (up, usage, preempted, requests, slots, launches, paths)


def _name(names: tuple[str, ...], index: int) -> str:
    return names[index] if index < len(names) else str(index)
