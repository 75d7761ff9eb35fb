"""What the engines say of themselves, through the global scheduler, as Prometheus metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hostless.v1 import scheduler_pb2 as pb
from services.fabric.ring import SlotState

_READ_PATHS = {
    pb.READ_PATH_UNIFIED: "unified",
    pb.READ_PATH_PREFILL: "prefill",
    pb.READ_PATH_DECODE: "decode",
    pb.READ_PATH_SPLIT: "split",
}


def mesh_families(status: pb.MeshStatus | None) -> Iterator[Metric]:
    """`status` None: the scheduler did not answer; then only hostless:mesh_up is told."""
    yield GaugeMetricFamily("hostless:mesh_up", "1 if the global scheduler answered.", float(status is not None))
    if status is None:
        return
    engine, both = ["engine"], ["engine", "model_name"]
    up = GaugeMetricFamily("hostless:engine_up", "1 while the engine's lease stands.", labels=engine)
    usage = GaugeMetricFamily("hostless:kv_cache_usage_perc", "KV pages in use; 1 is all of them.", labels=both)
    preempted = CounterMetricFamily("hostless:num_preemptions", "Requests evicted to decode_paused.", labels=both)
    requests = GaugeMetricFamily("hostless:engine_requests", "In an engine's lanes.", labels=["engine", "state"])
    slots = GaugeMetricFamily("hostless:slot_state", "Slots of the ring, by state.", labels=["engine", "state"])
    launches = CounterMetricFamily("hostless:graph_launches", "Graphs launched.", labels=["engine", "kind"])
    for one in status.engines:
        name, report = one.info.engine_id, one.report
        up.add_metric([name], float(one.live))
        preempted.add_metric([name, one.info.model], report.preemptions)
        launches.add_metric([name, "prefill"], report.prefill_launches)
        launches.add_metric([name, "decode"], report.decode_launches)
        if not one.live:
            continue  # what it last said of its slots and pages is no longer so
        if one.info.page_count:
            usage.add_metric([name, one.info.model], 1 - report.free_pages / one.info.page_count)
        requests.add_metric([name, "running"], report.running)
        requests.add_metric([name, "waiting"], report.waiting)
        for state, count in zip(SlotState, report.slot_states, strict=False):
            slots.add_metric([name, state.name.lower()], count)
    paths = CounterMetricFamily("hostless:path_choice", "Requests placed, by read path.", labels=["path"])
    for path, count in enumerate(status.path_choices):
        paths.add_metric([_READ_PATHS.get(path, str(path))], count)
    yield from (up, usage, preempted, requests, slots, launches, paths)
