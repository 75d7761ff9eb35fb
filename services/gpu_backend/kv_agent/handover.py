"""One prompt that is prefilled here and decoded elsewhere, while it is on its way (D1-D3, D6)."""

import asyncio

import numpy as np

from services.common.keys import BLOCK_TOKENS
from services.gpu_backend.kv_agent.prompt_buffer import PromptBuffer
from services.gpu_backend.kv_agent.sources import Source
from services.gpu_backend.layers import Pass


class PassLost(Exception):
    """The step ended before it had computed all layers of this prompt."""


class TransferFailed(Exception):
    """The decode side can't be reached, or wants nothing of this request any more."""


class Handover:
    """What is known of it, and whoever waits for more. Used on the agent's event loop only.

    hit       blocks that the decode side has read from the store: all of the hit, or its end (D15)
    there     blocks that are whole in the decode side's buffer
    sources   of its hit, where steps bring it in themselves (windows); empty once that is done
    taken     layers of the current pass that the pages need not hold any more
    """

    def __init__(self, slot: int, generation: int, lane: int, transfer: int) -> None:
        self.request = slot, generation
        self.lane, self.transfer = lane, transfer
        self.jobs: asyncio.Queue[Pass | np.void] = asyncio.Queue()  # a load, passes, a send
        self.task: asyncio.Task[None] | None = None
        self.ended = False
        self.last_pass: Pass | None = None
        self.opening = asyncio.Lock()
        self.buffer: PromptBuffer | None = None
        self.hit = range(0)
        self.there: set[int] = set()
        self.sources: list[Source] = []
        self.hit_taken = asyncio.Event()
        self.taken = 0
        self.broken: Exception | None = None
        self._news = asyncio.Event()

    def changed(self) -> None:
        """Whoever waits looks again."""
        self._news.set()
        self._news = asyncio.Event()

    def take_out(self, layers: int) -> None:
        self.taken = layers
        self.changed()

    def break_off(self, why: Exception) -> None:
        """The pass's layers are not taken out of the pages any more."""
        self.broken = why
        self.changed()

    async def computed(self, one: Pass, layer: int) -> None:
        """Returns when the pass has computed the layer. Raises PassLost."""
        while True:
            over = one.over  # before the count: the engine's thread may compute the last layer and end between the two
            if one.computed > layer:
                return
            if over:
                raise PassLost(f"slot {one.slot}: a step ended at layer {one.computed}")
            await self._news.wait()

    async def room(self, layers: int) -> None:
        """Returns when so many layers are taken out. Raises TransferFailed when that is given up."""
        while self.taken < layers:
            if self.broken is not None:
                raise TransferFailed(f"layer {self.taken} can't leave the pages: {self.broken!r}") from self.broken
            await self._news.wait()

    def lacking(self, one: Pass, partly: bool) -> list[int]:
        """Blocks that the buffer lacks and the pass completes; `partly`: those, too, that it only begins."""
        whole = one.end // BLOCK_TOKENS
        end = -(-one.end // BLOCK_TOKENS) if one.last or partly else whole
        return [block for block in range(end) if block not in self.there]

    def completed(self, one: Pass) -> None:
        end = -(-one.end // BLOCK_TOKENS) if one.last else one.end // BLOCK_TOKENS
        self.there.update(range(end))
