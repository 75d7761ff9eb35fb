"""A prompt that is prefilled elsewhere and decoded here, while it is on its way (D1-D3): the decode side's Handover."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from services.common.keys import BLOCK_TOKENS
from services.gpu_backend.kv_agent.buffer_memory import Share
from services.gpu_backend.kv_agent.receive_buffer import ReceiveBuffer
from services.gpu_backend.kv_agent.receive_buffers import ReceiveBuffers


class UnknownTransfer(Exception):
    """No request waits under this name, or not any more."""


@dataclass(slots=True, eq=False)
class Inbound:
    """A prompt that is expected. This side reads the blocks `reads` from the store, some or all of the hit (D2, D15);
    `keys` are those of all the hit's blocks. `held`: of `reads`, when it was expected."""

    order: np.void
    keys: list[bytes]
    reads: range
    blocks: int
    held: int
    share: Share | None = None
    buffer: ReceiveBuffer | None = None
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: bool = False
    answered: bool = False
    give_up: asyncio.TimerHandle | None = None
    hit: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """How many of `reads` are in the buffer, once they are read."""
    gone: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def unread_tokens(self) -> int:
        return 0 if self.hit.done() else (len(self.reads) - self.held) * BLOCK_TOKENS

    @property
    def name(self) -> int:
        return int(self.order["transfer"])

    @property
    def request(self) -> tuple[int, int]:
        return int(self.order["slot"]), int(self.order["generation"])

    async def buffer_in(self, buffers: ReceiveBuffers) -> ReceiveBuffer:
        """Its buffer, made at the first call, once there is memory. Raises OSError, UnknownTransfer."""
        async with self.making:
            if not self.gone.done() and self.share is not None and self.buffer is None:
                made = await buffers.make(self.share, self.blocks)
                if self.gone.done():
                    buffers.unmake(made)
                else:
                    self.buffer = made
        if self.gone.done() or self.buffer is None:
            raise UnknownTransfer(f"transfer {self.name:#x} has ended")
        return self.buffer


async def unless_gone(inbound: Inbound, awaited: asyncio.Future[Any]) -> bool:
    """Once it is done; False if the request has ended before."""
    await asyncio.wait((awaited, inbound.gone), return_when=asyncio.FIRST_COMPLETED)
    return not inbound.gone.done()
