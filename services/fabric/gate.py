"""A gate in front of memory that can't be taken back from peers (a GPU's, shared by CUDA's handles, say).

Such memory has no keys: whoever has opened it may touch it until his process ends. So peers of the machine hold its
gate while they touch it, and the owner, who has shut the gate, waits until nobody does before it uses the memory again.
A peer's death is no hindrance: the kernel lets go of its lock.
"""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import _ring
from services.fabric.errors import NotARegion, StaleRegion
from services.fabric.region import MemoryRegion
from services.fabric.region_file import open_file
from services.fabric.rights import Rights, permit
from services.fabric.shm import SharedMemoryRegion

GRACE_S = 5.0
"""A peer that died while it touched the memory counts as gone so much later: longer than a copy that was under way."""
_BYTES = 8
_LOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
_MINUS_ONE = 2**64 - 1
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def this_machine() -> str:
    """The same for all processes of a machine until it boots again."""
    return _BOOT_ID.read_text().strip()


class Gate:
    """The owner's side. Verbs: descriptor, shut, vacant, close.

    One word: how many peers hold it. A peer adds itself after it has taken a shared lock of the file, and
    leaves in the other order; so a count without a lock is a peer that died.
    """

    def __init__(self, name: str) -> None:
        """As MemoryRegion.create; gates are many, and sweep nothing."""
        self._region = MemoryRegion.create(name, _BYTES, Rights.ATOMIC, sweeps=False)
        try:
            self._fd = open_file(self._region.path)
        except BaseException:
            self._region.close()
            raise
        self._died: float | None = None

    def descriptor(self) -> RegionDescriptor:
        return self._region.descriptor()

    def shut(self) -> None:
        """Nobody gets in any more. Idempotent."""
        self._region.close()

    def vacant(self, now: float) -> bool:
        """Of a gate that is shut: nobody touches the memory any more. `now`: of a monotonic clock, in s. A death is
        seen at the first call after it, when no one else is inside."""
        if self._fd < 0:
            return True  # it was closed for that
        if self._held():
            self._died = None
            return False
        if not int(self._region.view.view(np.uint64)[0]):
            return True
        if self._died is None:
            self._died = now
        return now - self._died >= GRACE_S

    def close(self) -> None:
        """Shuts it, and looks no more: once it is vacant, or where nobody uses the memory again. Idempotent."""
        self.shut()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _held(self) -> bool:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, *_ = _LOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))
        return bool(kind != fcntl.F_UNLCK)


class GateKey:
    """A peer's side. For one thread."""

    def __init__(self, descriptor: RegionDescriptor) -> None:
        """Raises NotARegion, StaleRegion, WrongKey or NoRight."""
        permit(descriptor.address, int(descriptor.rights), Rights.ATOMIC)
        if descriptor.length < _BYTES:
            raise NotARegion(f"region {descriptor.address} of {descriptor.length} bytes is no gate")
        self._fd = open_file(Path(descriptor.address))
        try:
            self._region = SharedMemoryRegion.open(descriptor)
        except BaseException:
            os.close(self._fd)
            raise
        self._holds, self._open = 0, True

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Inside, the memory may be touched; what was begun inside must have ended before it is left.
        Raises StaleRegion if the gate is shut, or this key is closed."""
        if not self._open:
            raise StaleRegion(f"the key to gate {self._region.descriptor.address} is closed")
        self._enter()
        try:
            self._region.verify()
            yield
        finally:
            self._leave()

    def close(self) -> None:
        """No more holds; those under way go on to their end. Idempotent."""
        self._open = False
        if not self._holds and self._fd >= 0:
            self._region.close()
            os.close(self._fd)
            self._fd = -1

    def _enter(self) -> None:
        if not self._holds:
            self._lock(fcntl.F_RDLCK)
            self._add(1)
        self._holds += 1

    def _leave(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._add(_MINUS_ONE)
            self._lock(fcntl.F_UNLCK)
            if not self._open:
                self.close()

    def _lock(self, kind: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, 0, 1, 0))

    def _add(self, number: int) -> None:
        word = self._region.mapped()
        assert word is not None
        _ring.fetch_add_u64(word, 0, number)
