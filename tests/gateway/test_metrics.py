"""/metrics: the gateway's own figures and the mesh's."""

from typing import Any

from hostless.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.common import rpc
from tests.gateway.conftest import Site, site_of
from tests.gateway.fakes import MODEL, FakeScheduler, FakeTokenizer, error


async def test_metrics_of_requests(site: Site) -> None:
    assert (await site.chat()).status == 200
    assert (await site.chat(stream=True)).status == 200
    assert (await site.chat(temperature=9)).status == 400
    metrics = await site.metrics()
    label = f'{{model_name="{MODEL}"}}'
    for name in (
        "time_to_first_token_seconds",
        "time_to_second_token_seconds",
        "time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
    ):
        assert metrics[f"{name}_count{label}"] == 2, name
    assert metrics[f"inter_token_latency_seconds_count{label}"] == 4
    assert metrics[f"prompt_tokens_total{label}"] == 14
    assert metrics[f"generation_tokens_total{label}"] == 6
    assert metrics[f"prefix_cache_queries_total{label}"] == 14
    assert metrics[f"prefix_cache_hits_total{label}"] == 0
    assert metrics[f'request_success_total{{finished_reason="stop",model_name="{MODEL}"}}'] == 2
    assert metrics['request_refused_total{code="invalid_request_error",status="400"}'] == 1
    assert (metrics["tokenizer_up"], metrics["mesh_up"]) == (1, 0)


async def test_clients_cannot_make_labels(site: Site) -> None:
    async def script(submit: Any) -> Any:
        yield error(404, "no such model", code="model_not_found")

    site.fake.script = script
    answer = await site.chat(model="made-up")
    assert answer.status == 404
    assert "made-up" not in (await site.get("/metrics")).text


def mesh_status() -> scheduler_pb2.MeshStatus:
    report = scheduler_pb2.EngineReport(
        free_pages=25,
        running=2,
        waiting=1,
        slot_states=[5, 0, 1, 2],
        prefill_launches=3,
        decode_launches=40,
        preemptions=6,
    )
    info = scheduler_pb2.EngineInfo(engine_id="e0", model="m", page_count=100)
    gone = scheduler_pb2.EngineStatus(info=scheduler_pb2.EngineInfo(engine_id="e1", page_count=100), report=report)
    live = scheduler_pb2.EngineStatus(info=info, report=report, live=True)
    return scheduler_pb2.MeshStatus(engines=[live, gone], placements=13, path_choices=[7, 2, 0, 4])


async def test_metrics_of_the_mesh(fake: FakeTokenizer) -> None:
    def register(server: Any) -> None:
        scheduler_pb2_grpc.add_GlobalSchedulerServicer_to_server(FakeScheduler(mesh_status()), server)

    serving = rpc.serve("127.0.0.1:0", register, ["hostless.v1.GlobalScheduler"], grace_s=0)
    async with serving as server, site_of(fake, scheduler=f"127.0.0.1:{server.port}") as site:
        metrics = await site.metrics()
        assert metrics["mesh_up"] == 1
        assert (metrics['engine_up{engine="e0"}'], metrics['engine_up{engine="e1"}']) == (1, 0)
        assert metrics['kv_cache_usage_perc{engine="e0",model_name="m"}'] == 0.75
        assert metrics['num_preemptions_total{engine="e0",model_name="m"}'] == 6
        assert metrics['slot_state{engine="e0",state="empty"}'] == 5
        assert metrics['slot_state{engine="e0",state="decode_processing"}'] == 2
        assert metrics['graph_launches_total{engine="e0",kind="decode"}'] == 40
        assert metrics['path_choice_total{path="unified"}'] == 7
        assert metrics['path_choice_total{path="prefill"}'] == 2
        assert metrics['path_choice_total{path="split"}'] == 4
        assert 'slot_state{engine="e1",state="empty"}' not in metrics


async def test_metrics_while_the_scheduler_is_away(fake: FakeTokenizer) -> None:
    async with site_of(fake, scheduler="127.0.0.1:1") as site:
        metrics = await site.metrics()
        assert metrics["mesh_up"] == 0
        assert not [name for name in metrics if name.startswith("slot_state")]
