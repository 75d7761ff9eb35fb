"""kill -9 under load, again and again: `python -m tests.kvstore.crash --rounds 200 --engine local`.

A round: writers and a reader work on a store in its own process; at a random moment it is killed and started again.
Then every block whose commit was confirmed is read back and its bytes compared; no block is visible that was never sent
to commit; what the store says that it holds is what it lists, and what its disk holds; nothing else lies about. In
every third round the store is too small for the load, so that it dies while it evicts; blocks may be gone then, not
wrong.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from services.fabric.region import MemoryRegion
from services.kvstore.block import Block
from services.kvstore.client import StoreClient, StoreUnavailable
from tests.kvstore.blocks import LENGTH, chain, get, payload, put
from tests.kvstore.processes import start_store
from tests.processes import ServiceProcess

CHAIN = 64
WRITERS = 2
LIFE_S = 0.3
"""A store lives so long at most under load: what varies is where in its work it dies."""


@dataclass
class Written:
    """One writer's chain: blocks confirmed, from the first, and those that were only filled."""

    blocks: list[Block]
    confirmed: int = 0
    never_committed: list[Block] = field(default_factory=list)


class Crashes:
    def __init__(self, folder: Path, engine: str, seed: int = 0) -> None:
        self.folder, self.engine, self.dice = folder, engine, random.Random(seed)
        self.written: list[Written] = []
        self.seeds = iter(range(seed * 1_000_000, (seed + 1) * 1_000_000))
        self.blocks_confirmed = self.rounds = 0

    async def round(self, region: MemoryRegion) -> None:
        small = self.rounds % 3 == 2
        store = await self.start(small)
        now = [Written(chain(CHAIN, next(self.seeds))) for _ in range(WRITERS)]
        async with asyncio.TaskGroup() as load:
            work = [load.create_task(self.write(store, written)) for written in now]
            work.append(load.create_task(self.read(store)))
            await asyncio.sleep(self.dice.uniform(0, LIFE_S))
            await store.kill()
        self.written += now
        self.blocks_confirmed += sum(written.confirmed for written in now)
        store = await self.start(small)
        try:
            await self.check(store, region, now if not small else [], now)
        finally:
            await store.kill()
        if small:
            self.written.clear()  # anything may have been evicted
        self.rounds += 1

    async def start(self, small: bool) -> ServiceProcess:
        capacity = (CHAIN * 24_576) if small else 1 << 30
        return await start_store(engine=self.engine, path=self.folder, capacity_bytes=capacity)

    async def write(self, store: ServiceProcess, written: Written) -> None:
        async with StoreClient(store.address) as client:
            with contextlib.suppress(StoreUnavailable):
                for at in range(0, CHAIN - 1, 2):
                    if await put(client, written.blocks[at : at + 2]) != ["", ""]:
                        return
                    written.confirmed = at + 2
                    await self.fill_only(client, written)

    async def fill_only(self, client: StoreClient, written: Written) -> None:
        (block,) = chain(1, next(self.seeds))
        written.never_committed.append(block)
        async with client.write([block]) as batch:
            if not batch.reason(0):
                batch.fill(0, payload(block))

    async def read(self, store: ServiceProcess) -> None:
        if not self.written:
            return
        with MemoryRegion.create(f"load.{os.getpid()}", CHAIN * LENGTH) as region:
            async with StoreClient(store.address) as client:
                with contextlib.suppress(StoreUnavailable):
                    while True:
                        await get(client, self.dice.choice(self.written).blocks, region)

    async def check(
        self, store: ServiceProcess, region: MemoryRegion, whole: list[Written], now: list[Written]
    ) -> None:
        async with StoreClient(store.address) as client:
            for written in whole:
                found = await get(client, written.blocks, region)
                assert found >= written.confirmed, f"{written.confirmed} blocks were confirmed, {found} are there"
            for written in now:
                await get(client, written.blocks, region)  # what is there has the right bytes
                for block in written.never_committed:
                    assert (await client.lookup([block.key])).hit == 0, "a block is visible that nobody committed"
            stats = await client.stats()
            listed = [block async for block in client.blocks()]
            assert stats.blocks_corrupt == 0, f"{stats.blocks_corrupt} broken blocks"
            assert len(listed) == stats.blocks
            self.check_disk(stats.bytes, len(listed))

    async def check_all(self, region: MemoryRegion) -> None:
        """Everything confirmed since the last small round."""
        store = await self.start(False)
        try:
            await self.check(store, region, self.written, [])
        finally:
            await store.kill()

    def check_disk(self, stored: int, blocks: int) -> None:
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.name != "lock"]
        if self.engine == "files":
            assert sum(path.stat().st_size for path in files) == stored, "the disk holds something else"
            assert len(files) == blocks, "a file is left over"
            return
        allocated = sum(path.stat().st_blocks * 512 for path in files)
        one_block = 4096 + -(-LENGTH // 4096) * 4096
        slack = one_block + len(files) * (1 << 20)  # a segment's own pages, what of it was laid out ahead
        assert allocated <= stored + slack, f"{allocated} bytes on the disk, {stored} told"


async def crash(rounds: int, engine: str, seed: int, folder: Path) -> Crashes:
    crashes = Crashes(folder, engine, seed)
    begun = time.monotonic()
    with MemoryRegion.create(f"crash.{os.getpid()}", CHAIN * LENGTH) as region:
        for number in range(rounds):
            await crashes.round(region)
            if (number + 1) % 20 == 0:
                print(f"{number + 1} rounds, {crashes.blocks_confirmed} blocks, {time.monotonic() - begun:.0f} s")
        await crashes.check_all(region)
    return crashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--engine", default="files", choices=("files", "local"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="on the disk to test; default: a temporary one")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hostless-crash-", dir=options.folder))
    try:
        crashes = asyncio.run(crash(options.rounds, options.engine, options.seed, folder))
    finally:
        shutil.rmtree(folder)
    print(
        f"{crashes.rounds} kills, {crashes.blocks_confirmed} blocks confirmed: none lost, none wrong, nothing left over"
    )


if __name__ == "__main__":
    main()
