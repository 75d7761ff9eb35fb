"""Prefill layer by layer (D6): one engine's tokens, the closed form's bytes, and nothing held, however it ends."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.gpu_backend.kv_agent.one_by_one import LAYERS, VOCAB, OneByOne, alone, one_by_one

LENGTHS = (1, 63, 64, 65, 127, 128, 129, 192, 193, 257)
NEW = 4


def prompt(length: int, seed: int) -> NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, VOCAB, length).astype(np.uint32)


async def right_tokens(o: OneByOne, lengths: tuple[int, ...] = LENGTHS) -> None:
    """Every hit that prompts of these lengths can have, read by each side; and bytes over each link to the block."""
    block = o.decode.engine.geometry.block_bytes
    for length in lengths:
        for hit in range((length - 1) // 64 + 1):
            for by in ("prefill", "decode") if hit else ("prefill",):
                tokens = prompt(length, length * 1000 + hit * 10 + (by == "decode"))
                if hit:
                    await o.stored(tokens, hit)
                before = o.moved()
                assert await o.ask(tokens, NEW, hit, by) == alone(tokens, NEW), (length, hit, by)
                moved = {link: (count - before[link]) / block for link, count in o.moved().items()}
                pages, here = -(-length // 64), hit if by == "prefill" else 0
                assert moved == moved | {
                    "store_to_prefill_buffer": here,
                    "prefill_buffer_to_prefill_pages": here,
                    "store_to_decode_buffer": hit - here,
                    "decode_buffer_to_prefill_pages": hit - here,
                    "prefill_pages_to_decode_buffer": pages - (hit - here),
                    "decode_buffer_to_decode_pages": pages,
                }, (length, hit, by)


@pytest.mark.parametrize("resident", [0, 1, 2, LAYERS - 1], ids=lambda resident: f"window{resident}")
async def test_every_hit_length(spawn: Any, tmp_path: Path, resident: int) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, resident=resident) as o:
        await right_tokens(o)


async def test_the_slow_reference(spawn: Any, tmp_path: Path) -> None:
    store = await spawn()
    async with one_by_one(store.address, tmp_path, by_layers=False) as o:
        await right_tokens(o, (65, 193))
