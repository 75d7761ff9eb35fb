"""Engines on folders of a test, and ends of an engine as a crash would make them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.kvstore.engines.local import LocalEngine, LocalOptions
from services.kvstore.engines.local import segment as files

SMALL = LocalOptions(queue_depth=4, segment_bytes=(32 << 20) + 8192)


def crash(engine: LocalEngine) -> None:
    """Lets go of the files as the end of a process does: no footers, nothing tidied."""
    engine._closing.set()
    for segment in engine._places.all_segments():
        files.close(segment, engine.channels)
    for folder in engine._folders:
        folder.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def make(root: Path) -> Iterator[Callable[..., LocalEngine]]:
    """make(options, folders): the store on `root`, scanned, in place of the one made before, which is closed."""
    made: list[LocalEngine] = []

    def make(options: LocalOptions = SMALL, folders: int = 1) -> LocalEngine:
        for engine in made:
            engine.close()
        made[:] = [LocalEngine([root / str(number) for number in range(folders)], options)]
        made[0].scan()
        return made[0]

    yield make
    for engine in made:
        engine.close()


def segments(root: Path) -> list[Path]:
    return sorted(root.rglob("*.seg"))


def taken(root: Path) -> int:
    """Bytes that the segments take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in segments(root) if path.is_file())
