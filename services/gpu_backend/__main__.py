"""python -m services.gpu_backend"""

import asyncio
import contextlib
import logging
import sys
import threading

from prometheus_client import CollectorRegistry

from services.common import lifecycle, metrics, rpc
from services.gpu_backend.assembly import assemble
from services.gpu_backend.engine import Engine
from services.gpu_backend.loading import LoadingStopped, load_engine
from services.gpu_backend.metrics import BackendCollector
from services.gpu_backend.service import NAME, EngineService
from services.gpu_backend.settings import BackendSettings

log = logging.getLogger("gpu_backend")

GRACE_S = 0.5


async def serve(settings: BackendSettings, life: lifecycle.Lifecycle) -> None:
    service, registry = EngineService(), CollectorRegistry()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(metrics.serve(settings.metrics_address, registry))
        serving = rpc.serve(settings.address, service.register, [NAME], GRACE_S, serving=False)
        server = await stack.enter_async_context(serving)
        log.info("listening", extra={"port": server.port})
        engine = await _load(settings, life)
        if engine is None:
            return
        backend = assemble(settings, engine, server.port)
        stack.push_async_callback(backend.close)
        registry.register(BackendCollector(backend))
        service.backend = backend
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(backend.run(server.set_serving))
            log.info("serving", extra={"port": server.port, "engine_id": backend.info.engine_id})
            await life.until_stopping()
            await server.set_serving(False)
            await backend.drain(settings.drain_s)
            running.cancel()
    log.info("stopped")


async def _load(settings: BackendSettings, life: lifecycle.Lifecycle) -> Engine | None:
    """The engine, loaded in a thread; None if the process was asked to stop meanwhile."""
    stop = threading.Event()
    loading = asyncio.create_task(asyncio.to_thread(load_engine, settings, stop))
    stopping = asyncio.create_task(life.until_stopping())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    stop.set()
    try:
        engine = await loading
    except LoadingStopped as error:
        log.info(str(error))
        return None
    if life.stopping.is_set():
        engine.close()
        return None
    return engine


if __name__ == "__main__":
    sys.exit(lifecycle.main("gpu_backend", "Ring in, tokens out.", BackendSettings, serve))
