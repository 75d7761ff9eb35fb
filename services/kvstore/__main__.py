"""python -m services.kvstore"""

import contextlib
import logging
import sys

from prometheus_client import CollectorRegistry

from services.common import lifecycle, metrics, open_files, rpc
from services.kvstore.engines.catalogue import open_engine
from services.kvstore.metrics import StoreCollector
from services.kvstore.service import NAME
from services.kvstore.settings import StoreSettings
from services.kvstore.store import open_store

log = logging.getLogger("kvstore")


async def serve(settings: StoreSettings, life: lifecycle.Lifecycle) -> None:
    open_files.allow_most()  # engine local keeps a segment each open
    registry = CollectorRegistry()
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(open_store(settings, open_engine(settings)))
        registry.register(StoreCollector(service.stats))
        stack.enter_context(metrics.serve(settings.metrics_address, registry))
        server = await stack.enter_async_context(rpc.serve(settings.address, service.register, [NAME]))
        log.info("serving", extra={"port": server.port, "engine": settings.engine})
        await life.until_stopping()
        service.drain()
        await server.set_serving(False)
    log.info("stopped")


if __name__ == "__main__":
    sys.exit(lifecycle.main("kvstore", "Full Blocks on disk, found by prefix.", StoreSettings, serve))
