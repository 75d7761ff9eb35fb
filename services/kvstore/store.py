"""Puts a store together: disk, leases, reader, writer, and the tasks that free what was abandoned."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator

from services.common import paths
from services.common.lane.server import serve
from services.common.settings import SettingError
from services.fabric.hosting import RegionHost, open_host
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.kvstore.disk import Disk, Limits
from services.kvstore.engines import StorageEngine
from services.kvstore.keeping import Kept
from services.kvstore.leases import Leases
from services.kvstore.reading import Reader
from services.kvstore.service import StoreService
from services.kvstore.settings import StoreSettings
from services.kvstore.writing import Writer


@contextlib.asynccontextmanager
async def open_store(settings: StoreSettings, engine: StorageEngine) -> AsyncIterator[StoreService]:
    """A store over `engine`, which it closes. At the end, commits under way are finished first."""
    limits = Limits(settings.capacity_bytes, settings.high_watermark, settings.low_watermark, settings.root_share)
    disk = Disk(engine, limits)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(disk.close)
        await disk.open()
        regions = stack.enter_context(open_host(settings.transport, settings.fabric_address))
        region = stack.enter_context(_write_buffer(regions, settings))
        epoch = secrets.randbits(32)
        leases = Leases(disk.index, epoch, settings.max_leases)
        kept = Kept(disk.index, int(settings.capacity_bytes * settings.keep_share))
        reader = Reader(disk, leases, settings.read_threads, settings.max_reads, settings.max_lease_s)
        stack.callback(reader.close)
        async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as lanes:
            writer = Writer(disk, leases, region, epoch, settings.ticket_s, tasks)
            stack.callback(writer.close)
            service = StoreService(settings.engine, disk, leases, kept, reader, writer)
            if settings.lane_port >= 0 and not engine.shared:  # a shared engine may have to be asked, and waited for
                host = settings.address.rpartition(":")[0]
                service.lane_port = await lanes.enter_async_context(serve(host, settings.lane_port, service.answer))
            chores = [tasks.create_task(service.tidy()), tasks.create_task(service.sweep())]
            yield service
            for chore in chores:
                chore.cancel()


def _write_buffer(regions: RegionHost, settings: StoreSettings) -> MemoryRegion:
    try:
        name = f"kvstore.{os.getpid()}.{secrets.token_hex(4)}"
        return regions.create(name, settings.write_buffer_bytes, Rights.WRITE)
    except OSError as error:
        room = f"{settings.write_buffer_bytes} bytes of shared memory in {paths.shm_dir()} (HOSTLESS_SHM)"
        raise SettingError(f"write-buffer-bytes: no {room}: {error.strerror}") from error
