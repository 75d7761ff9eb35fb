"""Chains of blocks with known bytes; into a store and out of it, checked."""

import numpy as np

from services.common.keys import next_key, root_key
from services.fabric.region import MemoryRegion
from services.kvstore.block import Block
from services.kvstore.client import StoreClient
from services.kvstore.engines.page import PAGE_BYTES
from tests.waiting import PATIENCE_S

LENGTH = 20_000


def payload(block: Block) -> bytes:
    """Bytes that belong to the block's key alone."""
    return np.random.default_rng(int.from_bytes(block.key, "little")).bytes(block.length)


def keys(blocks: list[Block]) -> list[bytes]:
    return [block.key for block in blocks]


def chain(count: int, seed: int = 0, length: int = LENGTH, tenant: str = "") -> list[Block]:
    parent, blocks = root_key("test", tenant), []
    tokens = np.random.default_rng(seed).integers(0, 50_000, (count, 64)).astype("<u4")
    for position in range(count):
        key = next_key(parent, tokens[position])
        blocks.append(Block(key, parent, position, length, tokens[position].tobytes()))
        parent = key
    return blocks


def size(*blocks: Block) -> int:
    """What blocks take of the capacity of a store of files."""
    return sum(PAGE_BYTES + block.length for block in blocks)


async def put(client: StoreClient, blocks: list[Block]) -> list[str]:
    async with client.write(blocks, PATIENCE_S) as batch:
        for at, block in enumerate(blocks):
            if not batch.reason(at):
                batch.fill(at, payload(block))
        return await batch.commit(PATIENCE_S)


async def get(client: StoreClient, blocks: list[Block], region: MemoryRegion) -> int:
    """Blocks of the chain that can be read; their bytes are checked."""
    async with client.lease(keys(blocks), PATIENCE_S, PATIENCE_S) as hit:
        if not hit.hit:
            return 0
        length = blocks[0].length
        got = await client.read(hit.lease_id, 0, hit.hit, length, region.descriptor(), timeout_s=PATIENCE_S)
    for at, block in enumerate(blocks[: got.blocks]):
        assert region.view[at * length : (at + 1) * length].tobytes() == payload(block)
    return got.blocks
