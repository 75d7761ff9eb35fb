"""One segment file: blocks appended one behind the other, then, once it is full, a footer.

Its name says its number and its nonce, which all its pages carry; so no page of it is needed to read the others.

A place in a segment is written once. A removed block leaves a hole, a segment without blocks goes; so a read that comes
too late finds zeros or the block's own bytes, never another's.
"""

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.kvstore import _segments
from services.kvstore.engines.local import record as on_disk
from services.kvstore.engines.local.record import PAGE, Record

log = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{8,})-([0-9a-f]{16})\.seg")
_OLDER_NAME, _OLDER_MAGIC = re.compile(r"\d{8,}\.seg"), b"HLSSEGM1"


@dataclass(slots=True, eq=False)
class Segment:
    """An open segment. `end` belongs to the lane that appends, the fields behind it to Places."""

    path: Path
    nonce: int
    fd: int
    slot: int
    """In the table of registered files; -1: not registered."""
    end: int = 0
    """Where the next block goes. All below is durable."""
    id: int = -1
    """In places; -1: not there, or gone again."""
    live: int = 0
    appended: dict[int, Record] = field(default_factory=dict)
    """Blocks by offset, while any may be added."""
    closed: bool = False
    users: int = 0

    @property
    def file(self) -> tuple[int, int]:
        return self.fd, self.slot


def number_and_nonce(path: Path) -> tuple[int, int] | None:
    """What a segment's name says; None: it is the name of none."""
    match = _NAME.fullmatch(path.name)
    return (int(match[1]), int(match[2], 16)) if match else None


def is_of_an_older_layout(path: Path) -> bool:
    """Whether a store of before wrote it, when a segment's nonce stood in its first page. Nothing reads it any more."""
    if _OLDER_NAME.fullmatch(path.name) is None or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_OLDER_MAGIC)) == _OLDER_MAGIC


def create(folder: Path, number: int, channels: _segments.Channels, direct: bool) -> Segment:
    """A new, empty, durable segment. Raises OSError, and then there is none."""
    nonce = secrets.randbits(64)
    path = folder / f"{number:08}-{nonce:016x}.seg"
    fd = _open(path, direct, os.O_CREAT | os.O_EXCL)
    try:
        _sync_folder(folder)
    except BaseException:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return Segment(path, nonce, fd, channels.add_file(fd))


def reopen(path: Path, nonce: int, channels: _segments.Channels, direct: bool) -> Segment:
    """A segment of an earlier run; nothing is appended to it."""
    fd = _open(path, direct)
    return Segment(path, nonce, fd, channels.add_file(fd), closed=True)


def allocate(segment: Segment, size: int) -> None:
    """Room for `size` bytes behind the end. Raises OSError, and then the file is as it was."""
    try:
        _segments.allocate(segment.fd, segment.end, size)
    except OSError:
        cut(segment, segment.end)
        raise


def cut(segment: Segment, end: int) -> None:
    """Gives back what was allocated beyond `end`."""
    with contextlib.suppress(OSError):  # at the next start it is found to be no block
        os.ftruncate(segment.fd, end)


def seal(segment: Segment, records: Sequence[Record]) -> None:
    """Ends the segment by a footer, so that no start must look for its blocks again. Where there's no room for one,
    every start does."""
    entries = on_disk.footer(records)
    place = segment.end - len(entries) // -PAGE * PAGE
    try:
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, segment.end)
            _write_all(fd, entries, segment.end)
            _write_all(fd, on_disk.trailer(segment.nonce, segment.end, entries), place)
            os.fdatasync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        log.warning("a segment has no footer", extra={"path": str(segment.path), "reason": str(error)})
        cut(segment, segment.end)


def close(segment: Segment, channels: _segments.Channels) -> None:
    channels.drop_file(segment.slot)
    os.close(segment.fd)


def opens_directly(folder: Path) -> bool:
    """Whether files there can be read and written past the page cache; also tries that room can be given back.
    Raises OSError."""
    probe = folder / "probe"
    fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _segments.allocate(fd, 0, 2 * PAGE)
        _segments.punch(fd, 0, PAGE)
        os.lseek(fd, 0, os.SEEK_HOLE)
        try:
            os.close(os.open(probe, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC))
        except OSError:
            return False
        return True
    finally:
        os.close(fd)
        probe.unlink()


def _open(path: Path, direct: bool, more: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if direct else 0) | more, 0o600)


def _write_all(fd: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(fd, view, at)
        view, at = view[count:], at + count


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
