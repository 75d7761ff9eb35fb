"""A prefill and a decode engine in this process: scheduler, synthetic engine and KV agent each, one store between them.

The engines' output depends on all KV before it, and each step verifies the KV of every layer that its pages hold.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from services.common.keys import root_key
from services.fabric import _ring
from services.fabric.hosting import RegionHost
from services.fabric.region import MemoryRegion
from services.fabric.ring import Finish, RingClient, RingGeometry, RingOwner, SlotState
from services.fabric.ring.layout import RECORD, kv_reads
from services.fabric.transports import open_region
from services.gpu_backend.engines.offline import Run, generate
from services.gpu_backend.engines.synthetic import SyntheticEngine, SyntheticSettings
from services.gpu_backend.engines.synthetic_model import DecodeCost, PrefillCost, SyntheticModel
from services.gpu_backend.kv_agent import AgentSettings, HostPages, KvAgent, Peers, RingPrompts
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_agent.handover import TransferFailed
from services.gpu_backend.kv_agent.inbound import UnknownTransfer
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from services.kvstore.client import StoreClient
from tests.gpu_backend.kv_agent.conftest import PATIENT
from tests.waiting import until

LANES, CONTEXT, VOCAB, LAYERS = 4, 1024, 1000, 5
ROOT = root_key("one by one", "")
MODEL = SyntheticModel(LAYERS, 3, PrefillCost(), DecodeCost())
SETTINGS = SyntheticSettings(
    words=tuple(range(7, 7 + 251)), vocab=VOCAB, max_context=CONTEXT, model=MODEL, contextual=True, verify=True
)
IGNORE, HAND_OVER = _ring.RecordFlags.IGNORE_EOS, _ring.RecordFlags.HAND_OVER | _ring.RecordFlags.NO_PERSIST


def alone(prompt: NDArray[np.uint32], count: int) -> list[int]:
    """What one engine without any of this says."""
    engine = SyntheticEngine(SETTINGS)
    engine.allocate(CONTEXT // 64, 1, CONTEXT)
    return generate(engine, [Run(prompt.tolist(), count)], CONTEXT)[0]


def here(hit: int, by: str) -> int:
    """Blocks of a hit that the prefill side reads."""
    return {"prefill": hit, "decode": 0, "split": (hit + 1) // 2}[by]


class Side:
    """One engine's, at work between `run`'s beginning and end. `by_layers` False: the slow reference. A prefill step
    takes step_s."""

    def __init__(
        self, folder: Path, name: str, store: StoreClient, settings: AgentSettings, regions: RegionHost,
        *, pages: int, resident: int = 0, by_layers: bool = True, peers: Any = None, step_tokens: int = 512,
        step_s: float = 0.0,
    ) -> None:  # fmt: skip
        model = replace(MODEL, prefill=PrefillCost(step_s=step_s))
        self.engine = SyntheticEngine(replace(SETTINGS, model=model, resident_layers=resident))
        self.engine.allocate(pages, LANES, step_tokens)
        geometry = RingGeometry(64, 1 << 16, 1 << 16)
        self.region = MemoryRegion.create(f"ring.{name}", geometry.size_bytes, directory=folder)
        owner = RingOwner(self.region, geometry, epoch=1, max_context=CONTEXT, vocab_size=VOCAB, page_count=pages)
        self.scheduler = HostScheduler(
            owner.buffer, self.engine, SchedulerSettings(LANES, step_tokens, pages, kv_orders=True, store_limit=pages),
            max_context=CONTEXT, layers=lambda memory: memory.layer_counters(0 < resident < LAYERS),
        )  # fmt: skip
        self._join(owner)
        self.agent = KvAgent(
            self.scheduler.orders, RingPrompts(owner), HostPages(self.engine.kv_pages, LAYERS, resident), store,
            settings, name, regions, LAYERS, peers, self.scheduler.layers if by_layers else None,
        )  # fmt: skip

    def _join(self, owner: RingOwner) -> None:
        """The front end's part of the ring."""
        share = owner.share(0)
        owner.grant(share)
        self.ring = RingClient(open_region(self.region.descriptor()), share)
        self._next_slot = 0

    @contextlib.asynccontextmanager
    async def run(self, settle: bool = True) -> AsyncIterator[None]:
        running = asyncio.create_task(self.agent.run())
        await asyncio.sleep(0)  # it listens to steps
        self.scheduler.start()
        try:
            yield
            if settle:
                await until(lambda: self.agent.idle and self.idle)
        finally:
            running.cancel()
            try:
                with contextlib.suppress(asyncio.CancelledError):
                    await running
            finally:
                self.scheduler.stop(10)
                if settle:
                    self.scheduler.check()
                self._close()

    def _close(self) -> None:
        self.region.close()

    @property
    def idle(self) -> bool:
        counters = self.scheduler.counters()
        all_free = counters["free_pages"] == self.scheduler.settings.pages and counters["free_lanes"] == LANES
        return all_free and not self.scheduler.unfinished and not self.scheduler.orders.unreleased

    def submit(self, prompt: NDArray[np.uint32], most: int, state: SlotState, **fields: Any) -> "Asked":
        slot, self._next_slot = self._next_slot, (self._next_slot + 1) % 8
        word = int(self.ring.read_words()[slot])
        if _ring.unpack_word(word)[0] is SlotState.DECODE_COMPLETED:
            empty = _ring.slot_word(SlotState.EMPTY, Finish.NONE, _ring.unpack_word(word)[2], 0)
            assert self.ring.publish(
                np.array([slot], np.uint64), np.array([word], np.uint64), np.array([empty], np.uint64)
            ).all()
            word = empty
        generation = _ring.next_generation(_ring.unpack_word(word)[2])
        record = np.zeros(1, RECORD)
        record["generation"], record["sequence"] = generation, self.ring.submitted + 1
        record["prompt_begin"], record["prompt_count"] = self.ring.share.prompt_begin + slot * CONTEXT, len(prompt)
        record["token_begin"], record["max_tokens"] = self.ring.share.token_begin + slot * CONTEXT, most
        record["top_p"] = 1.0
        record["kv_root"][0] = np.frombuffer(ROOT, np.uint8)
        for name, value in fields.items():
            record[name] = value
        slots = np.array([slot], np.uint64)
        self.ring.write_prompts(
            record["prompt_begin"].astype(np.uint64), np.array([len(prompt)], np.uint64), prompt.astype(np.uint32)
        )
        self.ring.write_records(slots, record)
        pending = _ring.slot_word(state, Finish.NONE, generation, 0)
        assert self.ring.publish(slots, np.array([word], np.uint64), np.array([pending], np.uint64)).all()
        self.scheduler.poke()
        return Asked(self, slot, generation, int(record["token_begin"][0]))


class Asked:
    """A request of one side's ring."""

    def __init__(self, side: Side, slot: int, generation: int, token_begin: int) -> None:
        self._side, self.slot, self.generation, self._token_begin = side, slot, generation, token_begin

    @property
    def word(self) -> tuple[SlotState, Finish, int, int]:
        return _ring.unpack_word(int(self._side.ring.read_words()[self.slot]))

    async def ended(self) -> Finish:
        await until(lambda: self.word[0] is SlotState.DECODE_COMPLETED)
        return self.word[1]

    def tokens(self) -> list[int]:
        count = np.array([self.word[3]], np.uint64)
        found: list[int] = self._side.ring.read_tokens(np.array([self._token_begin], np.uint64), count).tolist()
        return found

    def cached(self) -> int:
        return int(self._side.ring.read_reports(np.array([self.slot], np.uint64))["cached_tokens"][0])

    def cancel(self) -> None:
        self._side.ring.cancel(np.array([self.slot], np.uint64), np.array([self.generation], np.uint32))
        self._side.scheduler.poke()


class Straight:
    """Peers, without gRPC: calls the decode side's agent. `gone` refuses."""

    def __init__(self) -> None:
        self.decode: Side | None = None
        self.gone, self.changed = False, asyncio.Event()

    def lives(self, engine: int) -> bool:
        return not self.gone

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def open(self, transfer: int, block_bytes: int, machine: str) -> tuple[BufferPlace, range]:
        assert self.decode
        try:
            if self.gone:
                raise UnknownTransfer("it is gone")
            return await self.decode.agent.receiver.open(transfer, block_bytes, machine)
        except UnknownTransfer as error:
            raise TransferFailed(str(error)) from error

    async def finish(self, transfer: int, first_token: int) -> None:
        assert self.decode
        try:
            if self.gone:
                raise UnknownTransfer("it is gone")
            self.decode.agent.receiver.finish(transfer, first_token)
        except UnknownTransfer as error:
            raise TransferFailed(str(error)) from error


class OneByOne:
    def __init__(self, prefill: Side, decode: Side, peers: Straight, store: StoreClient) -> None:
        self.prefill, self.decode, self.peers, self.store = prefill, decode, peers, store
        self._transfers = 0

    def start(self, prompt: NDArray[np.uint32], most: int, hit: int, by: str) -> tuple[Asked, Asked]:
        """`hit` blocks are read `by` the prefill or the decode side, or by both (split)."""
        self._transfers += 1
        cut = here(hit, by)
        shared = {"transfer": self._transfers, "cached_tokens": 64 * hit}
        decode = self.decode.submit(
            prompt, most, SlotState.KV_PENDING, flags=IGNORE, kv_reads=kv_reads(cut, hit), **shared
        )
        prefill = self.prefill.submit(
            prompt, 1, SlotState.PREFILL_PENDING, flags=IGNORE | HAND_OVER,
            kv_reads=kv_reads(0, cut), **shared,
        )  # fmt: skip
        return prefill, decode

    async def ask(
        self, prompt: NDArray[np.uint32], most: int, hit: int = 0, by: str = "prefill", cached: int | None = None
    ) -> list[int]:
        """The tokens; `cached` tokens of the prompt are not computed, by default all that were stored."""
        prefill, decode = self.start(prompt, most, hit, by)
        finishes = await prefill.ended(), await decode.ended()
        assert finishes == (Finish.HANDED_OVER, Finish.LENGTH)
        assert prefill.cached() == (64 * hit if cached is None else cached)
        assert decode.tokens()[0] == prefill.tokens()[0]
        return decode.tokens()

    async def stored(self, prompt: NDArray[np.uint32], blocks: int) -> None:
        """Has these blocks of the prompt in the store."""
        await until(lambda: self.decode.agent.idle and self.decode.idle)
        before = self.decode.agent.counters.blocks_stored
        await self.ask(prompt[: 64 * blocks + 1], 1 + 1)
        await until(lambda: self.decode.agent.counters.blocks_stored >= before + blocks)

    def moved(self) -> dict[str, int]:
        sides = (self.prefill.agent.counters.links, self.decode.agent.counters.links)
        return {str(link): sum(links[link] for links in sides) for link in sides[0]}


@contextlib.asynccontextmanager
async def one_by_one(
    address: str, folder: Path, transport: str = "shm", resident: int = 0, by_layers: bool = True,
    prefill_pages: int = 64, step_tokens: int = 512, step_s: float = 0.0, settle: bool = True,
    **changed: Any,
) -> AsyncGenerator[OneByOne, None]:  # fmt: skip
    settings = AgentSettings(**{"busy_poll_s": 0.002, "idle_poll_s": 0.004, **PATIENT, **changed})
    peers = Straight()
    with RegionHost(transport, "127.0.0.1:0") as regions:
        async with StoreClient(address) as store:
            prefill = Side(
                folder, "prefill", store, settings, regions, pages=prefill_pages, resident=resident,
                by_layers=by_layers, peers=cast(Peers, peers), step_tokens=step_tokens, step_s=step_s,
            )  # fmt: skip
            decode = Side(folder, "decode", store, settings, regions, pages=64)
            peers.decode = decode
            async with decode.run(settle), prefill.run(settle):
                yield OneByOne(prefill, decode, peers, store)
            assert decode.agent.receiver.memory.free == decode.agent.receiver.memory.size
