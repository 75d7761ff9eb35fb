"""The memory that the store writes blocks to (the prefill engine's buffer, D1)."""

import secrets

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.hosting import RegionHost
from services.fabric.region import MemoryRegion
from services.fabric.rights import Rights
from services.gpu_backend.cancellation import to_its_end


class LoadBuffer:
    """A region of `blocks` blocks. One that the store might still be writing to is never used again: after
    `discard` the next use makes another, and the old one is revoked."""

    def __init__(self, regions: RegionHost, name: str, blocks: int, block_bytes: int) -> None:
        self.blocks = blocks
        self._regions, self._name, self._block_bytes = regions, name, block_bytes
        self._region: MemoryRegion | None = None

    async def descriptor(self) -> RegionDescriptor:
        """Raises OSError when there is no memory for the region."""
        if self._region is None:
            await to_its_end(self._make)
        assert self._region is not None
        return self._region.descriptor()

    def block(self, at: int) -> NDArray[np.uint8]:
        assert self._region is not None
        return self._region.view[at * self._block_bytes : (at + 1) * self._block_bytes]

    def first(self, blocks: int) -> NDArray[np.uint8]:
        """u8[blocks, block_bytes]."""
        assert self._region is not None
        return self._region.view[: blocks * self._block_bytes].reshape(blocks, self._block_bytes)

    def by_layers(self, blocks: int, layers: int) -> NDArray[np.uint8]:
        """u8[blocks, layers, layer_bytes] of the first ones."""
        assert self._region is not None
        return self._region.view[: blocks * self._block_bytes].reshape(blocks, layers, self._block_bytes // layers)

    def discard(self) -> None:
        """Idempotent."""
        if self._region is not None:
            self._region.close()
            self._region = None

    def _make(self) -> None:
        """Also for a caller that has gone meanwhile."""
        name = f"{self._name}.{secrets.token_hex(4)}"
        self._region = self._regions.create(name, self.blocks * self._block_bytes, Rights.WRITE)
