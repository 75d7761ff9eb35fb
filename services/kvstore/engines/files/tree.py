"""The folder of an engine `files`: its names, its locks, and what others may have left.

<root>/lock              held while a store uses the folder: alone, or together with others that share it
<root>/writing/<name>/   one a store: its lock, and blocks on their way, of no use to anyone but their writer
<root>/blocks/a/abcd...  header page and payload, whole since the moment the name appeared
"""

import fcntl
import itertools
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from services.common.settings import SettingError

log = logging.getLogger(__name__)


class Tree:
    """Raises SettingError when the folder can't be used, or not in this way because another store holds it."""

    def __init__(self, root: Path, shared: bool) -> None:
        self.root = root
        self._blocks, self._writing = root / "blocks", root / "writing"
        self._own = self._writing / f"{os.uname().nodename}.{os.getpid()}.{secrets.token_hex(4)}"
        self._numbers = itertools.count()
        self._locks: list[int] = []
        try:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._writing.mkdir(exist_ok=True)
            self._lock_root(shared)
            self._own.mkdir()
            self._hold(self._own / "lock", fcntl.LOCK_EX)
            self._make_folders()
        except OSError as error:
            self.close()
            raise SettingError(f"path: {root} can't hold a store: {error.strerror}") from error
        except SettingError:
            self.close()
            raise

    def path(self, key: bytes) -> Path:
        name = key.hex()
        return self._blocks / name[0] / name

    def temporary(self) -> Path:
        return self._own / str(next(self._numbers))

    def files(self) -> Iterator[Path]:
        """All that lies where blocks lie."""
        return self._blocks.glob("?/*")

    def clean(self) -> None:
        """Throws away what stores that ended in the middle of a write have left."""
        for left in self._writing.iterdir():
            if left != self._own and _abandoned(left):
                for file in left.iterdir() if left.is_dir() else ():
                    throw_away(file)
                throw_away(left)
        for old in self._blocks.glob("??"):  # the layout before this one, of no use any more
            for path in sorted(old.rglob("*"), reverse=True):
                throw_away(path)
            throw_away(old)

    def close(self) -> None:
        """Idempotent."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()
        if self._own.is_dir():
            throw_away(self._own / "lock")
            throw_away(self._own)

    def _lock_root(self, shared: bool) -> None:
        try:
            self._hold(self.root / "lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except BlockingIOError:
            raise SettingError(
                f"path: {self.root} is in use by another store; stop that, or give another folder: --path, or "
                "HOSTLESS_STORE; or let all stores of the folder share it: --shared true; or start without a store "
                "(hostless up --no-kvstore)"
            ) from None

    def _hold(self, path: Path, kind: int) -> None:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._locks.append(lock)
        fcntl.flock(lock, kind | fcntl.LOCK_NB)

    def _make_folders(self) -> None:
        """All of them now: making one while a block is written would cost that block another sync."""
        for digit in "0123456789abcdef":
            (self._blocks / digit).mkdir(exist_ok=True)
        sync_folders([self._blocks, self.root])


def sync_folders(folders: Iterable[Path]) -> None:
    """Makes names that were made or changed in them last."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def throw_away(path: Path) -> None:
    """Or leaves it where it is: a folder that someone put there must not keep a store from starting."""
    try:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("not a block, and can't be removed", extra={"path": str(path), "reason": str(error)})


def _abandoned(folder: Path) -> bool:
    """Whether no living store writes there. What is no folder of a store has no lock, and nobody writes it."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
