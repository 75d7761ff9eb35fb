"""python -m services.kvstore"""

import contextlib
import logging
import sys

from prometheus_client import CollectorRegistry

from services.common import lifecycle, metrics, rpc
from services.common.settings import load_or_exit
from services.kvstore.engines.files import FileEngine
from services.kvstore.metrics import StoreCollector
from services.kvstore.service import NAME
from services.kvstore.settings import StoreSettings
from services.kvstore.store import open_store

log = logging.getLogger("kvstore")


async def serve(settings: StoreSettings, life: lifecycle.Lifecycle) -> None:
    async with contextlib.AsyncExitStack() as stack:
        service = await stack.enter_async_context(open_store(settings, FileEngine(settings.folder)))
        if settings.metrics_address:
            registry = CollectorRegistry()
            registry.register(StoreCollector(service.stats))
            port = stack.enter_context(metrics.serve(settings.metrics_address, registry))
            log.info("metrics", extra={"port": port})
        server = await stack.enter_async_context(rpc.serve(settings.address, service.register, [NAME]))
        log.info("serving", extra={"port": server.port, "path": str(settings.folder)})
        await life.until_stopping()
        await server.set_serving(False)
    log.info("stopped")


def main() -> int:
    settings = load_or_exit(StoreSettings, "kvstore", "Full Blocks on disk, found by prefix.")
    return lifecycle.run("kvstore", lambda life: serve(settings, life), settings.log_level)


if __name__ == "__main__":
    sys.exit(main())
