"""The file behind a region: one page that says what it is, then the region's bytes.

The owner holds an exclusive `flock` on the file while it lives, so a file without a lock belongs to
the dead. Whoever ends a region zeroes its keys first: processes that still map the file then see,
at their next operation, that it is no longer the region they opened.
"""

import fcntl
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

from services.fabric.errors import NotARegion

PAGE_BYTES = 4096
"""Of the header, so that the region's own bytes start on a page: GPUs and NICs register whole pages."""

PREFIX = "hostless."
KEYS_AT = 24
KEYS_BYTES = 16
NO_KEYS = bytes(KEYS_BYTES)

_MAGIC = int.from_bytes(b"HLSREGN1", "little")
_VERSION = 2
_HEADER = struct.Struct("<QIIQQQ")  # magic, version, peers' rights, length, rkey, generation
_KEYS = struct.Struct("<QQ")
assert _HEADER.size == KEYS_AT + KEYS_BYTES


@dataclass(frozen=True, slots=True)
class RegionHeader:
    """What the first page says. rkey 0 and generation 0: the region has ended."""

    length: int
    rkey: int
    generation: int
    peers_may: int  # Rights, which never change

    def pack(self) -> bytes:
        return _HEADER.pack(_MAGIC, _VERSION, self.peers_may, self.length, self.rkey, self.generation)


def keys(rkey: int, generation: int) -> bytes:
    """The 16 bytes at KEYS_AT, which every operation compares."""
    return _KEYS.pack(rkey, generation)


def parse(data: bytes, path: Path) -> RegionHeader:
    """Reads a first page. Raises NotARegion."""
    if len(data) < _HEADER.size:
        raise NotARegion(f"{path} is too short to be a region")
    magic, version, peers_may, length, rkey, generation = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise NotARegion(f"{path} is not a region of Hostless")
    if version != _VERSION:
        raise NotARegion(f"{path} is a region of version {version}; this program reads version {_VERSION}")
    return RegionHeader(length, rkey, generation, peers_may)


def open_file(path: Path, writable: bool = True) -> int:
    """Opens a region's file. Raises NotARegion."""
    try:
        fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise NotARegion(f"can't open region {path}: {error.strerror}") from error
    except ValueError as error:  # no name that a file can have
        raise NotARegion(f"can't open region {str(path)!r}: {error}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotARegion(f"{path} is not a regular file")
    return fd


def try_lock(fd: int) -> bool:
    """Takes the owner's lock unless a live owner has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def revoke(mapping: mmap.mmap) -> None:
    """Ends every right to the region for all who map it."""
    mapping[KEYS_AT : KEYS_AT + KEYS_BYTES] = NO_KEYS


def remove_dead(path: Path) -> bool:
    """Revokes and unlinks the region at `path` if its owner is dead; says whether it is gone.

    Raises NotARegion if something else lies there, which is never touched.
    """
    try:
        fd = open_file(path)
    except NotARegion:
        if path.exists():
            raise
        return True
    try:
        parse(os.pread(fd, PAGE_BYTES, 0), path)
        if not try_lock(fd):
            return False
        with mmap.mmap(fd, PAGE_BYTES) as head:
            revoke(head)
        if is_at(fd, path):
            path.unlink()
        return True
    finally:
        os.close(fd)


def is_at(fd: int, path: Path) -> bool:
    """Whether `path` still names the open file: another process may have replaced it."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
