"""One block a file under a two-level tree, on any POSIX file system.

    <root>/lock                    held while a store uses the folder
    <root>/writing/<n>             blocks on their way; of no use to anyone but their writer
    <root>/blocks/ab/cd/abcd...    header and payload, whole since the moment the name appeared

Publishing is a rename after fsync, then an fsync of the folder; only then does `put` return.
"""

import errno
import fcntl
import itertools
import logging
import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from crc32c import crc32c

from services.common.settings import SettingError
from services.kvstore.block import HEADER_BYTES, BadBlock, Block, decode_header, encode_header
from services.kvstore.engines import PIECE_BYTES, Sink

log = logging.getLogger(__name__)


class FileEngine:
    """Raises SettingError when the folder can't be used or another store holds it."""

    def __init__(self, root: Path) -> None:
        self._blocks, self._writing = root / "blocks", root / "writing"
        self._names = itertools.count()
        try:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._writing.mkdir(exist_ok=True)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingError(f"path: {root} can't hold a store: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise SettingError(
                f"path: {root} is in use by another store; stop that, or give another folder: --path, or "
                "HOSTLESS_STORE; or start without a store (hostless up --no-kvstore)"
            ) from None

    def close(self) -> None:
        os.close(self._lock)

    def scan(self) -> tuple[list[Block], int]:
        for left_over in self._writing.iterdir():
            _throw_away(left_over)
        found: list[tuple[int, Block]] = []
        broken = 0
        for path in self._blocks.glob("*/*/*"):
            try:
                found.append(self._inspect(path))
            except (BadBlock, OSError):
                _throw_away(path)
                broken += 1
        found.sort(key=lambda pair: pair[0])
        return [block for _, block in found], broken

    def put(self, block: Block, payload: Iterable[memoryview], crc: int) -> None:
        temporary, path = self._writing / str(next(self._names)), self._path(block.key)
        try:
            with open(temporary, "xb", buffering=0) as file:
                _write_all(file.fileno(), encode_header(block, crc))
                _check(block, crc, *_copy(file.fileno(), payload))
                os.fsync(file.fileno())
            self._make_folder(path.parent)
            temporary.rename(path)
            _sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            raise

    def load(self, block: Block, sink: Sink) -> None:
        try:
            with open(self._path(block.key), "rb", buffering=0) as file:
                _load(file, block, sink)
        except FileNotFoundError:
            raise BadBlock("its file is gone") from None

    def remove(self, key: bytes) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._blocks / name[:2] / name[2:4] / name

    def _inspect(self, path: Path) -> tuple[int, Block]:
        with open(path, "rb", buffering=0) as file:
            block, _ = decode_header(file.read(HEADER_BYTES))
            status = os.fstat(file.fileno())
        if block.key.hex() != path.name or status.st_size != block.file_bytes:
            raise BadBlock("cut short, or under another block's name")
        return status.st_mtime_ns, block

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        _sync_folder(folder.parent)
        _sync_folder(folder.parent.parent)


def _throw_away(path: Path) -> None:
    """Or leaves it where it is: a folder that someone put there must not keep a store from starting."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("not a block, and can't be removed", extra={"path": str(path), "reason": str(error)})


def _load(file: FileIO, block: Block, sink: Sink) -> None:
    stored, crc = decode_header(_read(file, memoryview(bytearray(HEADER_BYTES))))
    if stored != block:
        raise BadBlock("the file holds another block")
    buffer, at, actual = memoryview(bytearray(PIECE_BYTES)), 0, 0
    while at < block.length:
        piece = _read(file, buffer[: block.length - at])
        if not piece:
            break
        actual = crc32c(piece, actual)
        sink(at, piece)
        at += len(piece)
    _check(block, crc, at, actual)


def _copy(descriptor: int, payload: Iterable[memoryview]) -> tuple[int, int]:
    """Writes the pieces; returns length and crc32c of what was written, not of what is in a buffer afterwards."""
    length = crc = 0
    for piece in payload:
        crc = crc32c(piece, crc)
        _write_all(descriptor, piece)
        length += len(piece)
    return length, crc


def _check(block: Block, crc: int, length: int, actual: int) -> None:
    if length != block.length:
        raise BadBlock(f"payload of {length} bytes, not {block.length}")
    if actual != crc:
        raise BadBlock("payload checksum differs")


def _read(file: FileIO, into: memoryview) -> memoryview:
    """Up to `into`'s length of bytes; none at the end of the file."""
    try:
        return into[: file.readinto(into)]
    except OSError as error:
        if error.errno == errno.EIO:
            raise BadBlock("the disk can't read it") from error
        raise


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
