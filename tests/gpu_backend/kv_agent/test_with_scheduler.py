"""Agent, scheduler core, ring and store together: the second request loads what the first one computed."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from services.common.keys import block_keys, root_key
from services.fabric import _ring
from services.fabric.region import MemoryRegion
from services.fabric.ring import Finish, RingClient, RingGeometry, RingOwner, SlotState
from services.fabric.ring.layout import RECORD, kv_reads
from services.fabric.transports import open_region
from services.gpu_backend.engine import ModelGeometry, StepView
from services.gpu_backend.kv_agent import AgentSettings, HostPages, KvAgent, RingPrompts
from services.gpu_backend.scheduler.host import HostScheduler
from services.gpu_backend.scheduler.settings import SchedulerSettings
from services.kvstore.client import StoreClient
from tests.gpu_backend.kv_agent.conftest import PATIENT
from tests.waiting import until

PAGES, LANES, VOCAB, CONTEXT = 64, 4, 50_000, 2048
ROOT = root_key("attentive", "")


class AttentiveEngine:
    """Its KV of a token is (token, position); its next token depends on the KV of every position before."""

    def __init__(self) -> None:
        self.geometry = ModelGeometry(1, 1, 1, 1, VOCAB, CONTEXT, "uint32", "attentive")
        self.kv_pages = np.zeros((PAGES, self.geometry.block_bytes), np.uint8)
        self.computed = 0

    def allocate(self, pages: int, lanes: int, step_tokens: int) -> None:
        raise NotImplementedError

    def step(self, view: StepView) -> None:
        kv = self.kv_pages.view(np.uint32).reshape(PAGES, 64, 2)
        for index, sequence in enumerate(view.sequences[: view.sequence_count]):
            begin, count, first = (int(sequence[name]) for name in ("token_begin", "token_count", "position"))
            table = view.block_tables[sequence["lane"]]
            positions = np.arange(first, first + count)
            kv[table[positions // 64], positions % 64, 0] = view.tokens[begin : begin + count]
            kv[table[positions // 64], positions % 64, 1] = positions
            self.computed += count
            if sequence["sample"]:
                seen = np.arange(first + count)
                whole = kv[table[seen // 64], seen % 64].astype(np.uint64)
                view.out_tokens[index] = int((whole[:, 0] * 31 + whole[:, 1] * 17).sum()) % VOCAB

    def close(self) -> None:
        return


@dataclass
class Mesh:
    engine: AttentiveEngine
    scheduler: HostScheduler
    ring: RingClient
    agent: KvAgent
    store: StoreClient
    next_slot: int = 0
    tokens_at: int = 0

    async def ask(self, prompt: np.ndarray, max_tokens: int, cached: int = 0) -> tuple[list[int], int]:
        """Runs a request to its end; returns its tokens and how many prompt tokens were loaded."""
        slot, self.next_slot = self.next_slot, self.next_slot + 1
        word = int(self.ring.read_words()[slot])
        generation = _ring.next_generation(_ring.unpack_word(word)[2])
        record = np.zeros(1, RECORD)
        record["generation"], record["sequence"] = generation, self.ring.submitted + 1
        record["prompt_begin"], record["prompt_count"] = self.ring.share.prompt_begin, len(prompt)
        record["token_begin"], record["max_tokens"] = self.ring.share.token_begin + self.tokens_at, max_tokens
        record["top_p"], record["cached_tokens"], record["kv_reads"] = 1.0, cached, kv_reads(0, cached // 64)
        record["flags"] = _ring.RecordFlags.IGNORE_EOS
        record["kv_root"][0] = np.frombuffer(ROOT, np.uint8)
        slots, one = np.array([slot], np.uint64), np.array([max_tokens], np.uint64)
        self.ring.write_prompts(
            record["prompt_begin"].astype(np.uint64), np.array([len(prompt)], np.uint64), prompt.astype(np.uint32)
        )
        self.ring.write_records(slots, record)
        pending = _ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, generation, 0)
        assert self.ring.publish(slots, np.array([word], np.uint64), np.array([pending], np.uint64)).all()
        self.scheduler.poke()

        def completed() -> bool:
            state, finish, _, _ = _ring.unpack_word(int(self.ring.read_words()[slot]))
            assert finish in (Finish.NONE, Finish.LENGTH)
            return state is SlotState.DECODE_COMPLETED

        await until(completed)
        tokens = self.ring.read_tokens(record["token_begin"].astype(np.uint64), one).tolist()
        self.tokens_at += max_tokens
        return tokens, int(self.ring.read_reports(slots)["cached_tokens"][0])


@contextlib.asynccontextmanager
async def mesh(address: str, folder: Path) -> Any:
    geometry, engine = RingGeometry(64, 1 << 16, 1 << 16), AttentiveEngine()
    with MemoryRegion.create("ring", geometry.size_bytes, directory=folder) as region:
        owner = RingOwner(region, geometry, epoch=1, max_context=CONTEXT, vocab_size=VOCAB, page_count=PAGES)
        settings = SchedulerSettings(LANES, 256, PAGES, kv_orders=True, store_limit=PAGES)
        scheduler = HostScheduler(owner.buffer, engine, settings, max_context=CONTEXT)
        share = owner.share(0)
        owner.grant(share)
        scheduler.start()
        async with StoreClient(address) as store:
            agent = KvAgent(
                scheduler.orders,
                RingPrompts(owner),
                HostPages(engine.kv_pages),
                store,
                AgentSettings(**cast(Any, PATIENT), busy_poll_s=0.002),
                "e",
            )
            running = asyncio.create_task(agent.run())
            try:
                ring = RingClient(open_region(region.descriptor()), share)
                yield Mesh(engine, scheduler, ring, agent, store)
                await until(lambda: agent.idle and not scheduler.unfinished and not scheduler.orders.unreleased)
                scheduler.check()
            finally:
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                scheduler.stop(5)


async def test_the_second_request_computes_only_what_is_new(spawn: Any, tmp_path: Path) -> None:
    prompt = np.random.default_rng(3).integers(0, VOCAB, 64 * 10 + 17)
    store = await spawn()
    async with mesh(store.address, tmp_path) as m:
        alone, cached = await m.ask(prompt, 100)
        assert cached == 0
        blocks = (len(prompt) + 100 - 1) // 64
        await until(lambda: m.agent.counters.blocks_stored + m.agent.counters.blocks_dropped == blocks)
        assert m.agent.counters.blocks_dropped == 0
        # the next turn: the whole conversation so far, and something new
        turn = np.concatenate([prompt, np.array(alone), [1, 2, 3]])
        async with m.store.lease(block_keys(ROOT, turn), 60, 60) as hit:
            assert hit.hit == blocks
            before = m.engine.computed
            loaded, cached = await m.ask(turn, 5, cached=64 * hit.hit)
            assert cached == 64 * blocks
            assert m.engine.computed - before == len(turn) - cached + 4
        assert (await m.ask(turn, 5))[0] == loaded


@pytest.mark.parametrize("there", [True, False])
async def test_a_lease_on_other_blocks_loads_nothing(spawn: Any, tmp_path: Path, there: bool) -> None:
    generator = np.random.default_rng(4)
    prompt, other = generator.integers(0, VOCAB, 64 * 4 + 1), generator.integers(0, VOCAB, 64 * 4 + 1)
    store = await spawn()
    async with mesh(store.address, tmp_path) as m:
        await m.ask(prompt, 3)
        expected, _ = await m.ask(other, 3)
        if not there:
            store.process.kill()
            await store.process.wait()
        third = generator.integers(0, VOCAB, 64 * 4 + 1)
        assert (await m.ask(third, 3, cached=256))[1] == 0
        assert (await m.ask(other, 3))[0] == expected
