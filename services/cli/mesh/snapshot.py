"""The state of a mesh at one moment, gathered from its health services, its scheduler and its metrics."""

import asyncio
from dataclasses import dataclass, field

from services.cli.errors import CliError
from services.cli.mesh.run_folder import Mesh, RunningService
from services.cli.openai_api import OpenAiApi

ASK_S = 3.0

GATEWAY_FIGURES = {
    "running": "hostless:num_requests_running",
    "waiting": "hostless:num_requests_waiting",
    "generated tokens": "hostless:generation_tokens_total",
}


@dataclass(frozen=True)
class ServiceState:
    name: str
    pid: int
    address: str
    metrics: str  # host:port of /metrics; empty: not known
    healthy: bool
    problem: str  # empty when healthy
    restarts: int


@dataclass(frozen=True)
class EngineState:
    """Of one engine; counters count from its start."""

    engine_id: str
    role: str  # unified, prefill or decode
    model: str
    live: bool
    accepting: bool
    running: int
    waiting: int
    slots: dict[str, int]  # by state, those that are not zero
    free_pages: int
    pages: int
    generated_tokens: int
    prompt_tokens: int  # computed
    cached_tokens: int  # loaded instead
    preemptions: int

    @property
    def hit_rate(self) -> float:
        """Part of the prompt tokens that came from the KV store; 0 when there were none."""
        total = self.prompt_tokens + self.cached_tokens
        return self.cached_tokens / total if total else 0.0


@dataclass(frozen=True)
class Snapshot:
    url: str
    ready: bool
    reason: str  # why not ready
    services: list[ServiceState]
    engines: list[EngineState]
    figures: dict[str, float] = field(default_factory=dict)  # of the gateway
    scheduler_problem: str = ""


async def take(mesh: Mesh) -> Snapshot:
    """Asks every service at the same time. What does not answer is part of the picture, never an error."""
    scheduler = mesh.service("global_scheduler")
    found, (engines, problem), figures = await asyncio.gather(
        asyncio.gather(*(_service(service) for service in mesh.services)),
        _engines(scheduler),
        asyncio.to_thread(_figures, mesh.url),
    )
    services = list(found)
    gateway = next(state for state in services if state.name == "gateway")
    return Snapshot(
        url=mesh.url,
        ready=gateway.healthy,
        reason=gateway.problem,
        services=services,
        engines=engines,
        figures=figures,
        scheduler_problem=problem,
    )


async def _service(service: RunningService) -> ServiceState:
    from services.common import probe

    target = f"http://{service.address}/ready" if service.name == "gateway" else service.address
    problem = await probe.ask(target)
    return ServiceState(
        name=service.name,
        pid=service.pid,
        address=service.address,
        metrics=service.metrics,
        healthy=problem is None,
        problem=problem or "",
        restarts=service.restarts,
    )


async def _engines(scheduler: RunningService | None) -> tuple[list[EngineState], str]:
    from hostless.v1.scheduler_pb2 import Role
    from services.fabric._ring import SlotState
    from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable

    if scheduler is None:
        return [], ""
    async with SchedulerClient(scheduler.address) as client:
        try:
            status = await client.status(ASK_S)
        except SchedulerUnavailable:
            return [], f"engines: not known, as the global scheduler at {scheduler.address} does not answer"
    engines = []
    for engine in sorted(status.engines, key=lambda engine: engine.info.engine_id):
        info, report = engine.info, engine.report
        counts = {state.name.lower(): n for state, n in zip(SlotState, report.slot_states, strict=False) if n}
        engines.append(
            EngineState(
                engine_id=info.engine_id,
                role=Role.Name(info.role).removeprefix("ROLE_").lower(),
                model=info.model,
                live=engine.live,
                accepting=report.accepting,
                running=report.running,
                waiting=report.waiting,
                slots=counts,
                free_pages=report.free_pages,
                pages=info.page_count,
                generated_tokens=report.generated_tokens,
                prompt_tokens=report.prompt_tokens,
                cached_tokens=report.cached_tokens,
                preemptions=report.preemptions,
            )
        )
    return engines, ""


def _figures(url: str) -> dict[str, float]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        families = list(text_string_to_metric_families(OpenAiApi(url, timeout_s=ASK_S).text("/metrics")))
    except (CliError, ValueError):
        return {}  # the gateway's row says what is wrong with it, unless it is no gateway
    samples = [sample for family in families for sample in family.samples]
    return {
        label: sum(sample.value for sample in samples if sample.name == name) for label, name in GATEWAY_FIGURES.items()
    }
