"""A hit's blocks into the buffer of a prompt that is expected (D2, D15): what is held here, the rest from the store."""

import asyncio
import logging

from services.gpu_backend.kv_agent.inbound import Inbound, UnknownTransfer
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.load_buffer import LoadBuffer
from services.gpu_backend.kv_agent.receive_buffers import ReceiveBuffers
from services.gpu_backend.kv_agent.shared import Shared
from services.kvstore.client import StoreUnavailable

log = logging.getLogger(__name__)


class HitReader:
    """Of one Receiver, for several hits at once."""

    def __init__(self, shared: Shared, buffers: ReceiveBuffers) -> None:
        self._kv_pages, self._client, self._held = shared.kv_pages, shared.client, shared.held
        self._health, self._counters, self._settings = shared.health, shared.counters, shared.settings
        self._buffers = buffers

    async def read(self, inbound: Inbound, on_the_way: LoadBuffer) -> int:
        """Full Blocks from the store (D2), but for those that are held. Whatever fails costs the prefill side more to
        compute, and nothing else."""
        if not (inbound.held or self._health.available):
            return 0
        block_bytes = self._kv_pages.block_bytes
        self._counters.loads += 1
        held = loaded = 0
        try:
            async with asyncio.timeout(self._settings.load_deadline_s):
                held = await self._take_held(inbound)
                if held < len(inbound.reads) and self._health.available:
                    loaded = await self._read_blocks(inbound, inbound.reads[held:], on_the_way)
        except UnknownTransfer:
            held = loaded = 0
        except (StoreUnavailable, TimeoutError, OSError) as error:
            if isinstance(error, StoreUnavailable):
                self._health.failed(error)
            log.warning("a hit was not read", extra={"slot": inbound.request[0], "why": repr(error)})
            self._replace(inbound)  # the store may still be writing to it
            held = 0
        self._counters.loads_short += held + loaded < len(inbound.reads)
        self._counters.blocks_loaded += loaded
        self._counters.bytes_loaded += loaded * block_bytes
        self._counters.blocks_reused += held
        self._counters.count(KvLink.STORE_DECODE_BUFFER, loaded * block_bytes)
        self._counters.count(KvLink.HELD_DECODE_BUFFER, held * block_bytes)
        return held + loaded

    async def _take_held(self, inbound: Inbound) -> int:
        """Of `reads`, the first ones, as many as are held, into the buffer."""
        first = inbound.reads.start
        with self._held.pinned(inbound.keys[: inbound.reads.stop]) as run:
            for at in range(first, len(run)):
                if inbound.gone.done():
                    return 0
                buffer = await inbound.buffer_in(self._buffers)
                await buffer.put(at, run.block(at)[None])
            return max(0, len(run) - first)

    async def _read_blocks(self, inbound: Inbound, reads: range, on_the_way: LoadBuffer) -> int:
        settings, loaded = self._settings, 0
        async with self._client.lease(
            inbound.keys[: reads.stop], settings.load_deadline_s, settings.read_timeout_s
        ) as hit:
            self._health.answered()
            while (first := reads.start + loaded) < hit.hit and not inbound.gone.done():
                asked, got, why = await self._read_some(inbound, hit.lease_id, range(first, hit.hit), on_the_way)
                loaded += got
                if got < asked:
                    log.info("fewer blocks than expected", extra={"got": got, "why": why})
                    break
        return loaded

    async def _read_some(
        self, inbound: Inbound, lease: int, blocks: range, on_the_way: LoadBuffer
    ) -> tuple[int, int, str]:
        """The first of `blocks`, as many as go at once: how many were asked for, how many came, and why not all."""
        buffer, block_bytes, first = await inbound.buffer_in(self._buffers), self._kv_pages.block_bytes, blocks.start
        if (target := buffer.store_target()) is not None:
            count = min(max(1, self._settings.load_buffer_bytes // block_bytes), len(blocks))
            offset, timeout_s = first * block_bytes, self._settings.read_timeout_s
            got = await self._client.read(lease, first, count, block_bytes, target, offset, timeout_s)
            return count, got.blocks, got.reason
        count = min(on_the_way.blocks, len(blocks))
        try:
            target, timeout_s = await on_the_way.descriptor(), self._settings.read_timeout_s
            got = await self._client.read(lease, first, count, block_bytes, target, 0, timeout_s)
        except BaseException:
            on_the_way.discard()  # the store may still be writing
            raise
        if got.blocks and not inbound.gone.done():
            await buffer.put(first, on_the_way.first(got.blocks))
        return count, got.blocks, got.reason

    def _replace(self, inbound: Inbound) -> None:
        """A buffer that the store may be writing to ends; the next one is another."""
        if inbound.buffer is not None and inbound.buffer.store_target() is not None:
            inbound.buffer.end()
            inbound.buffer = None
