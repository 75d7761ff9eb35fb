"""The prefill side of a hand-over: the hit from the decode side's buffer (D2), the prompt's KV into it (D1, D3)."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import FabricError
from services.fabric.operations import Read, TrafficClass, Write
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent.counters import AgentCounters
from services.gpu_backend.kv_agent.links import KvLink
from services.gpu_backend.kv_agent.orders import Orders
from services.gpu_backend.kv_agent.pages import Pages
from services.gpu_backend.kv_agent.settings import AgentSettings
from services.gpu_backend.scheduler.orders import KvOrderKind

log = logging.getLogger(__name__)


class TransferFailed(Exception):
    """The decode side can't be reached, or wants nothing of this request any more."""


class DecodeSide(Protocol):
    """The decode engine that a transfer's name tells. Both raise TransferFailed."""

    async def open(self, transfer: int, block_bytes: int) -> tuple[RegionDescriptor, int]:
        """The buffer, and how many blocks of the hit are in it."""
        ...

    async def finish(self, transfer: int, first_token: int) -> None: ...


@dataclass(slots=True, eq=False)
class Outbound:
    """The decode side's buffer of one request, opened."""

    buffer: RemoteRegion
    hit_blocks: int


@dataclass(slots=True, eq=False)
class Job:
    order: np.void
    pages: NDArray[np.uint32]

    @property
    def request(self) -> tuple[int, int]:
        return int(self.order["slot"]), int(self.order["generation"])

    @property
    def transfer(self) -> int:
        return int(self.order["transfer"])


class Sender:
    """`run` it as a task. Every order that was submitted is answered within `transfer_s` of being begun, and no page
    is touched after its answer.

    KV crosses by Layer Blocks (D5): a page's layers are pieces of their own, posted together.
    """

    def __init__(
        self,
        orders: Orders,
        kv_pages: Pages,
        layers: int,
        decode_side: DecodeSide,
        counters: AgentCounters,
        settings: AgentSettings,
    ) -> None:
        self._orders, self._kv_pages, self._decode_side = orders, kv_pages, decode_side
        self._counters, self._settings = counters, settings
        self._layer_bytes = kv_pages.block_bytes // layers
        self._queue: asyncio.Queue[Job] = asyncio.Queue()  # bounded by the engine's lanes
        self._open: dict[tuple[int, int], Job] = {}
        self._outbound: dict[tuple[int, int], Outbound] = {}

    def submit(self, order: np.void) -> None:
        """A send; or a load of what the decode side reads."""
        job = Job(order, self._orders.pages_of(order))
        self._open[job.request] = job
        self._queue.put_nowait(job)

    def forget(self, slot: int, generation: int) -> None:
        """The request has ended. Idempotent."""
        if (outbound := self._outbound.pop((slot, generation), None)) is not None:
            outbound.buffer.close()

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(self._settings.send_workers):
                    workers.create_task(self._work())
        finally:
            for job in list(self._open.values()):
                self._answer(job, 0)
            for request in list(self._outbound):
                self.forget(*request)

    async def _work(self) -> None:
        while True:
            job = await self._queue.get()
            done = 0
            try:
                async with asyncio.timeout(self._settings.transfer_s):
                    loads = job.order["kind"] == KvOrderKind.LOAD
                    done = await (self._fetch(job) if loads else self._hand_over(job))
            except (TransferFailed, FabricError, TimeoutError, OSError) as error:
                log.warning("a hand-over failed", extra={"slot": job.request[0], "why": repr(error)})
            finally:
                self._answer(job, done)

    async def _fetch(self, job: Job) -> int:
        """D2: the hit's blocks into pages."""
        outbound = await self._opened(job)
        count, block_bytes = min(outbound.hit_blocks, len(job.pages)), self._kv_pages.block_bytes
        for at in range(count):
            block = np.empty(block_bytes, np.uint8)
            pieces = [Read(at * block_bytes + begin, piece) for begin, piece in self._layers(block)]
            await asyncio.to_thread(outbound.buffer.post, pieces, TrafficClass.KV)
            await self._kv_pages.write(int(job.pages[at]), block)
            self._counters.count(KvLink.DECODE_BUFFER_PREFILL_PAGES, block_bytes)
        return count

    async def _hand_over(self, job: Job) -> int:
        """What the buffer lacks, then the word that it is whole."""
        outbound, block_bytes = await self._opened(job), self._kv_pages.block_bytes
        if outbound.buffer.descriptor.length != len(job.pages) * block_bytes:
            raise TransferFailed(f"the buffer is not one of {len(job.pages)} blocks")
        for at in range(outbound.hit_blocks, len(job.pages)):
            block = (await self._kv_pages.read(int(job.pages[at]))).copy()
            pieces = [Write(at * block_bytes + begin, piece) for begin, piece in self._layers(block)]
            await asyncio.to_thread(outbound.buffer.post, pieces, TrafficClass.KV)
            self._counters.count(KvLink.PREFILL_PAGES_DECODE_BUFFER, block_bytes)
        await self._decode_side.finish(job.transfer, int(job.order["tokens"][0]))
        self._counters.prompts_sent += 1
        return len(job.pages)

    async def _opened(self, job: Job) -> Outbound:
        if (outbound := self._outbound.get(job.request)) is None:
            descriptor, hit_blocks = await self._decode_side.open(job.transfer, self._kv_pages.block_bytes)
            buffer = await asyncio.to_thread(open_region, descriptor)
            outbound = self._outbound[job.request] = Outbound(buffer, hit_blocks)
        return outbound

    def _layers(self, block: NDArray[np.uint8]) -> list[tuple[int, NDArray[np.uint8]]]:
        step = self._layer_bytes
        return [(begin, block[begin : begin + step]) for begin in range(0, len(block), step)]

    def _answer(self, job: Job, blocks: int) -> None:
        """Once a job."""
        if self._open.get(job.request) is job:
            del self._open[job.request]
            self._orders.answer_load(job.order, blocks)
