"""Registered memory (D5, D7), its owner's side; remote_region.py has the peers'."""

import fcntl
import mmap
import os
import re
import secrets
import time
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.common import paths
from services.fabric import region_file
from services.fabric.errors import NotARegion, RegionInUse
from services.fabric.rights import Rights

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LOCK_WAIT_S = 1.0
"""How long a name that is being cleaned by somebody else is waited for."""


class Publication(Protocol):
    """What makes a region reachable by another transport than `shm`."""

    @property
    def descriptor(self) -> RegionDescriptor: ...

    def end(self) -> None:
        """Ends every peer's rights, and returns when none of them can touch the region. Idempotent."""
        ...


class MemoryRegion:
    """Memory that this process owns, in a file that peers on the host map.

    Verbs: create, close. Closing, or the end of the process in any way, ends every peer's rights: after
    a kill that happens when the name, or any other in the folder, is next created.
    """

    def __init__(self, path: Path, fd: int, mapping: mmap.mmap, header: region_file.RegionHeader) -> None:
        self.path = path
        self._fd = fd
        self._mapping = mapping
        self._header = header
        self._publication: Publication | None = None

    @classmethod
    def create(
        cls,
        name: str,
        length: int,
        peers_may: Rights = Rights.ALL,
        *,
        directory: Path | None = None,
        mode: int = 0o600,
        sweeps: bool = True,
    ) -> Self:
        """Makes a zeroed region of `length` bytes, all of it backed by memory now.

        Peers may do what `peers_may` says. `directory` is paths.shm_dir() unless given; `mode` 0o660 lets
        peers of the same group in. Regions there whose owners are dead are removed, unless `sweeps` is False: for
        who makes many, as a look at each file takes 20 us. Raises RegionInUse if a live process owns the name, OSError
        if the memory is not there.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"region name {name!r}: use letters, digits, '.', '_' and '-'")
        if length <= 0:
            raise ValueError(f"region {name}: length must be positive, not {length}")
        folder = directory or paths.shm_dir()
        if sweeps:
            sweep(folder)
        header = region_file.RegionHeader(length, 1 + secrets.randbits(63), 1 + secrets.randbits(63), int(peers_may))
        path = folder / f"{region_file.PREFIX}{name}"
        # Without a name until it is locked and whole, so that nobody ever sees half a region.
        fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.fchmod(fd, mode)
            os.posix_fallocate(fd, 0, region_file.PAGE_BYTES + length)
            mapping = mmap.mmap(fd, region_file.PAGE_BYTES + length)
            mapping[: len(header.pack())] = header.pack()
            _link(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, mapping, header)

    @property
    def length(self) -> int:
        return self._header.length

    @property
    def view(self) -> NDArray[np.uint8]:
        """The region's bytes, page-aligned. Views outlive close(), but reach nobody then."""
        return np.frombuffer(self._mapping, np.uint8, self.length, region_file.PAGE_BYTES)

    @property
    def rkey(self) -> int:
        return self._header.rkey

    @property
    def peers_may(self) -> Rights:
        return Rights(self._header.peers_may)

    @property
    def generation(self) -> int:
        return self._header.generation

    def publish(self, publication: Publication) -> None:
        """From now on the descriptor is the publication's, which ends with the region."""
        self._publication = publication

    def descriptor(self) -> RegionDescriptor:
        """What a peer needs to open the region."""
        if self._publication is not None:
            return self._publication.descriptor
        return RegionDescriptor(
            transport="shm",
            address=str(self.path),
            length=self.length,
            rkey=self._header.rkey,
            generation=self._header.generation,
            rights=self._header.peers_may,
        )

    def close(self) -> None:
        """Ends all rights and removes the file. Idempotent."""
        if self._fd < 0:
            return
        region_file.revoke(self._mapping)
        if self._publication is not None:
            self._publication.end()
        if region_file.is_at(self._fd, self.path):
            self.path.unlink(missing_ok=True)
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # the mapping keeps a duplicate of the descriptor
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def sweep(directory: Path) -> None:
    """Removes the regions of dead owners. What is not ours to open, or no region, stays."""
    for path in directory.glob(f"{region_file.PREFIX}*"):
        try:
            region_file.remove_dead(path)
        except (NotARegion, PermissionError):
            continue


def _link(fd: int, path: Path) -> None:
    """Gives the nameless file its name. Raises RegionInUse if a live owner keeps the name."""
    give_up = time.monotonic() + _LOCK_WAIT_S
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:  # a directory descriptor makes Python call linkat(), which can follow /proc's link
                os.link(f"/proc/self/fd/{fd}", path.name, dst_dir_fd=folder, follow_symlinks=True)
                return
            except FileExistsError:
                if not region_file.remove_dead(path) and time.monotonic() > give_up:
                    raise RegionInUse(
                        f"region {path} belongs to a live process; end it or choose another name"
                    ) from None
            time.sleep(0.01)
    finally:
        os.close(folder)
