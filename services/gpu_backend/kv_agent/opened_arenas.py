"""Decode engines' arenas as a prefill engine has them open, and what stays of those whose engine has ended.

Beside a scheduler that lives on the GPU nothing can be taken from its driver: memory that was pinned for it stays so,
and a GPU's memory that was opened stays open, until this process ends. Their number is bounded; then what comes goes by
ways that leave nothing behind.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import region_file
from services.fabric.errors import FabricError, NotARegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent.arenas import PeerPages
from services.gpu_backend.kv_agent.pages import Pages

log = logging.getLogger(__name__)

MOST_LEFT = 4
"""Arenas of engines that have ended, in pinned host memory, and as many in GPUs' memory."""

Lives = Callable[[int], bool]
"""Whether the decode engine of this number does."""


@dataclass(frozen=True, slots=True)
class _OnDevice:
    engine: int
    size: int


class OpenedArenas:
    """Verbs: host, device, let_go, close. Used by one thread at a time; `left_bytes` by any."""

    def __init__(self, kv_pages: Pages, lives: Lives) -> None:
        self._kv_pages, self._lives = kv_pages, lives
        self._hosts: dict[tuple[str, int], RemoteRegion] = {}
        self._pinned_left: list[int] = []  # sizes
        self._on_device: dict[bytes, _OnDevice] = {}

    @property
    def left_bytes(self) -> int:
        """Of engines that have ended, which their end did not give back."""
        return sum(self._pinned_left) + sum(one.size for one in self._left_on_device())

    def host(self, place: RegionDescriptor) -> RemoteRegion:
        """Pinned where that can be undone, or few have stayed so. Raises FabricError."""
        self.let_go()
        key = place.address, place.generation
        if (arena := self._hosts.get(key)) is None:
            arena = self._hosts[key] = open_region(place)
            if (mapped := arena.mapped()) is not None and len(self._pinned_left) < MOST_LEFT:
                self._kv_pages.pin(np.frombuffer(mapped, np.uint8))
        return arena

    def device(self, place: RegionDescriptor, engine: int) -> int:
        """The address here of memory of a GPU. Raises OSError where it can't be reached, or too many have stayed."""
        pages = self._kv_pages
        if not isinstance(pages, PeerPages):
            raise OSError("these pages are not in a GPU's memory")
        try:
            handle = bytes.fromhex(place.address)
        except ValueError as error:
            raise OSError(f"{place.address!r} is no handle") from error
        if handle not in self._on_device and (left := len(self._left_on_device())) >= MOST_LEFT:
            raise OSError(f"memory of {left} decode engines that have ended is open until this engine ends")
        address = pages.reach(handle)
        self._on_device[handle] = _OnDevice(engine, place.length)
        return address

    def let_go(self) -> None:
        """Of those whose engine has ended; buffers that still use one keep it mapped until they are closed."""
        for key, arena in list(self._hosts.items()):
            if not _ended(arena):
                continue
            del self._hosts[key]
            self._unmap(arena)

    def close(self) -> None:
        """Nothing is being moved any more. Idempotent."""
        for arena in self._hosts.values():
            self._unmap(arena, quietly=True)
        self._hosts.clear()

    def _unmap(self, arena: RemoteRegion, quietly: bool = False) -> None:
        mapped = arena.mapped()
        if mapped is not None and not self._kv_pages.unpin(np.frombuffer(mapped, np.uint8)) and not quietly:
            self._pinned_left.append(len(mapped))
            log.warning(
                "memory of a decode engine that has ended stays pinned until this engine ends",
                extra={"bytes": len(mapped), "of_them": len(self._pinned_left), "most": MOST_LEFT},
            )
        arena.close()

    def _left_on_device(self) -> list[_OnDevice]:
        return [one for one in list(self._on_device.values()) if not self._lives(one.engine)]


def _ended(arena: RemoteRegion) -> bool:
    """Its owner has closed it, or has died: then nobody may have said so yet."""
    try:
        arena.verify()
    except FabricError:
        return True
    path = Path(arena.descriptor.address)
    try:
        return arena.mapped() is not None and path.exists() and region_file.remove_dead(path)
    except (
        NotARegion
    ):  # what lies there can't be looked at now (too many open files, say), and says nothing of the owner
        return False
