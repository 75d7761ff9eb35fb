"""A folder of segments: one a disk. Held by one store at a time."""

import fcntl
import logging
import os
from pathlib import Path

from services.common.settings import SettingError
from services.kvstore.engines.local import segment as files

log = logging.getLogger(__name__)


class Folder:
    """Raises SettingError when the folder can't hold a store, or another store holds it.

    direct: files are read and written past the page cache.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.segments = root, root / "segments"
        try:
            self.segments.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingError(f"path: {root} can't hold a store: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.direct = files.opens_directly(self.segments)
        except BlockingIOError:
            os.close(self._lock)
            raise SettingError(
                f"path: {root} is in use by another store; stop that, or give another folder: --path, or "
                "HOSTLESS_STORE; or start without a store (hostless up --no-kvstore)"
            ) from None
        except OSError as error:
            os.close(self._lock)
            raise SettingError(
                f"path: {root} is on a file system that can't give back parts of a file, or has no room left: "
                f"{error.strerror}; use another, or --engine files"
            ) from error
        if not self.direct:
            log.warning("no O_DIRECT here: reads and writes go through the page cache", extra={"path": str(root)})

    def remove_older(self) -> None:
        """Segments of an older layout hold blocks that no start finds, and room."""
        older = [path for path in self.segments.iterdir() if files.is_of_an_older_layout(path)]
        if not older:
            return
        size = sum(path.stat().st_blocks * 512 for path in older)
        for path in older:
            path.unlink()
        log.warning(
            "removed segments of an older layout",
            extra={"path": str(self.segments), "segments": len(older), "bytes": size},
        )

    def files(self) -> list[tuple[int, int, Path]]:
        """Number, nonce and path of the segment files, oldest first; what else lies there (a pipe, say, whose opening
        waits) is left alone."""
        named = ((files.number_and_nonce(path), path) for path in self.segments.iterdir() if path.is_file())
        return sorted((*name, path) for name, path in named if name)

    def close(self) -> None:
        os.close(self._lock)
