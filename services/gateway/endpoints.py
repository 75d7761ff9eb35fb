"""Everything but the completions: models, health, readiness, version, metrics."""

import logging
from collections.abc import Iterable
from typing import Any

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import scheduler_pb2
from services.gateway.errors import ApiError, unavailable
from services.gateway.exchange import Exchanges
from services.gateway.mesh_metrics import mesh_families
from services.gateway.metrics import model_families, process_families
from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable

log = logging.getLogger(__name__)

STATUS_TIMEOUT_S = 0.5
_PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Endpoints:
    def __init__(self, exchanges: Exchanges, scheduler: SchedulerClient | None, version: str) -> None:
        self._exchanges = exchanges
        self._scheduler = scheduler
        self._version = version
        self._process = ProcessCollector(registry=None)

    async def models(self, request: Request) -> Response:
        described = await self._exchanges.session.describe()
        return JSONResponse({"object": "list", "data": [_model(model) for model in described.models]})

    async def model(self, request: Request) -> Response:
        wanted = request.path_params["model"]
        described = await self._exchanges.session.describe()
        for model in described.models:
            if model.id == wanted:
                return JSONResponse(_model(model))
        known = ", ".join(model.id for model in described.models) or "none"
        text = f"the model {wanted!r} does not exist; models here: {known}"
        raise ApiError(404, text, param="model", code="model_not_found")

    async def health(self, request: Request) -> Response:
        """The process is alive."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """A request sent now would be served."""
        if self._exchanges.draining:
            raise unavailable("the gateway is shutting down", "not_ready")
        described = await self._exchanges.session.describe()
        if not described.ready:
            raise unavailable(described.reason or "the tokenizer is not ready", "not_ready")
        if not self._exchanges.session.connected:
            raise unavailable(f"no session with the tokenizer at {self._exchanges.session.address}", "not_ready")
        return JSONResponse({"status": "ready"})

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": self._version})

    async def metrics(self, request: Request) -> Response:
        scrape = _Scrape(
            (
                *model_families(self._exchanges.metrics.models),
                *process_families(self._exchanges.metrics, self._exchanges.session.connected),
                *mesh_families(await self._mesh_status()),
                *self._process.collect(),
            )
        )
        return Response(generate_latest(scrape), headers={"Content-Type": _PROMETHEUS_TEXT})

    async def _mesh_status(self) -> scheduler_pb2.MeshStatus | None:
        if self._scheduler is None:
            return None
        try:
            return await self._scheduler.status(STATUS_TIMEOUT_S)
        except SchedulerUnavailable as error:
            log.debug("no metrics of the mesh", extra={"reason": str(error)})
            return None


class _Scrape(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _model(model: pb.Model) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "hostless",
        "max_model_len": model.context_length,
    }
