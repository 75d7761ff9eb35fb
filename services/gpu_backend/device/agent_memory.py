"""The KV agent's part of engine memory (step.hpp), in host memory that the GPU maps.

The graphs' part is device memory, which the agent's thread could only copy from. Same layout, other place:
the core writes orders, and the pages of loads, here; the agent answers here.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.gpu_backend.scheduler.memory import KV_ORDER


class AgentMemory:
    """What OrderQueue needs of a scheduler: its native calls, and the views of its memory.

    orders        KV_ORDER[order_capacity]: order n is at n modulo the capacity
    block_tables  u32[lanes, lane_pages]: for a load's lane, its first block_count pages; nothing else
    """

    def __init__(self, memory: NDArray[np.uint8], layout: dict[str, int]) -> None:
        def view(offset: str, count: int, dtype: Any) -> NDArray[Any]:
            begin = layout[offset]
            return memory[begin : begin + count * np.dtype(dtype).itemsize].view(dtype)

        self.orders: NDArray[Any] = view("orders_offset", layout["order_capacity"], KV_ORDER)
        lanes, lane_pages = layout["lanes"], layout["lane_pages"]
        tables = view("block_tables_offset", lanes * lane_pages, np.uint32)
        self.block_tables: NDArray[np.uint32] = tables.reshape(lanes, lane_pages)
        self._memory, self._at = memory, layout

    def orders_head(self) -> int:
        return _ring.load_acquire_u64(self._memory, self._at["orders_head_offset"])

    def release_orders(self, tail: int) -> None:
        if tail > self.orders_head():
            raise ValueError("release_orders(): there are no such orders yet")
        _ring.store_release_u64(self._memory, self._at["orders_tail_offset"], tail)

    def answer_load(self, slot: int, generation: int, blocks: int) -> None:
        if not 0 <= slot < self._at["slots"]:
            raise ValueError(f"answer_load(): there is no slot {slot}")
        _ring.store_release_u64(self._memory, self._at["load_done_offset"] + 8 * slot, generation | blocks << 32)
