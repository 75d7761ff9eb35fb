"""The KV agent's part of engine memory (step.hpp), in host memory that the GPU maps.

The graphs' part is device memory, which the agent's thread could only copy from. Same layout, other place:
the core writes orders, and the pages of loads, here; the agent answers here.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        self._head = view("orders_head_offset", 1, np.uint64)
        self._tail = view("orders_tail_offset", 1, np.uint64)
        self._answers = view("load_done_offset", layout["slots"], np.uint64)

    # An aligned word is written and read whole, and a GPU sees a CPU's stores in their order.

    def orders_head(self) -> int:
        return int(self._head[0])

    def release_orders(self, tail: int) -> None:
        if tail > self.orders_head():
            raise ValueError("release_orders(): there are no such orders yet")
        self._tail[0] = tail

    def answer_load(self, slot: int, generation: int, blocks: int) -> None:
        self._answers[slot] = generation | blocks << 32
