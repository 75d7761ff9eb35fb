"""Model files on disk: checked by sha256, visible under their name only when whole."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from services.cli.errors import CliError

PIECE = 4 << 20


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def install(
    source: BinaryIO, target: Path, expected_sha256: str, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Copies `source` to `target`: written beside it, flushed, checked, then renamed.

    Calls progress(bytes) a piece. Raises CliError, and leaves no file, when the digest differs.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    digest = hashlib.sha256()
    try:
        with partial.open("wb") as out:
            while piece := source.read(PIECE):
                digest.update(piece)
                out.write(piece)
                progress(len(piece))
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != expected_sha256:
            raise CliError(
                f"{target.name} has sha256 {digest.hexdigest()}, but {expected_sha256} was expected",
                "The download is damaged or is another file; nothing was installed. Run it again.",
            )
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)
