"""python -m services.gpu_backend"""

import asyncio
import contextlib
import logging
import os
import sys
import threading

from prometheus_client import CollectorRegistry

from services.common import lifecycle, metrics, rpc
from services.gpu_backend.assembly import assemble
from services.gpu_backend.backend import Backend
from services.gpu_backend.loading import LoadingStopped
from services.gpu_backend.metrics import BackendCollector
from services.gpu_backend.service import NAME, TRANSFERS, EngineService
from services.gpu_backend.serving import Served, prepare
from services.gpu_backend.settings import BackendSettings

log = logging.getLogger("gpu_backend")

GRACE_S = 0.5


async def serve(settings: BackendSettings, life: lifecycle.Lifecycle) -> None:
    service, registry = EngineService(), CollectorRegistry()
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(metrics.serve(settings.metrics_address, registry))
        serving = rpc.serve(settings.address, service.register, [NAME, TRANSFERS], GRACE_S, serving=False)
        server = await stack.enter_async_context(serving)
        log.info("listening", extra={"port": server.port})
        served = await _load(settings, settings.name(server.port), life)
        if served is None:
            return
        try:
            backend = assemble(settings, served, server.port)
        except BaseException:
            served.closing.close()
            raise
        stack.push_async_callback(_close, backend)
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


async def _load(settings: BackendSettings, engine_id: str, life: lifecycle.Lifecycle) -> Served | None:
    """The engine, prepared in a thread; None if the process was asked to stop meanwhile."""
    stop = threading.Event()
    loading = asyncio.create_task(asyncio.to_thread(prepare, settings, engine_id, stop))
    stopping = asyncio.create_task(life.until_stopping())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    stop.set()
    try:
        served = await loading
    except LoadingStopped as error:
        log.info(str(error))
        return None
    if life.stopping.is_set():
        served.closing.close()
        return None
    return served


async def _close(backend: Backend) -> None:
    try:
        await backend.close()
    except TimeoutError:
        # An orderly end of the process would wait for the GPU, and its supervisor for the process.
        log.exception("a step does not end; the process ends without it")
        logging.shutdown()
        os._exit(1)


if __name__ == "__main__":
    sys.exit(lifecycle.main("gpu_backend", "Ring in, tokens out.", BackendSettings, serve))
