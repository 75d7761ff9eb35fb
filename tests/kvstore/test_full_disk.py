"""A disk that really is full: puts fail cleanly, gets go on, and puts work again when there is room."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.kvstore.engines.catalogue import open_engine
from services.kvstore.settings import StoreSettings

LENGTH = 200_000
BLOCKS = 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk can't be mounted here: not root, or no right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill_up(path: Path) -> None:
    """Takes all the room that is left."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


@pytest.mark.parametrize("name", ["files", "local"])
async def test_a_full_disk(start: Any, tools: Any, region: Any, disk: Path, name: str) -> None:
    old, new = tools.chain(BLOCKS, length=LENGTH), tools.chain(10, seed=1, length=LENGTH)
    keys = [block.key for block in old]
    path = disk / "store"
    options = StoreSettings(engine=name, path=str(path))
    async with start(open_engine(options), path=str(path)) as store:
        for at in range(0, BLOCKS, 4):
            assert await tools.put(store.client, old[at : at + 4]) == [""] * 4
        async with store.client.lease(keys, 60) as hit:
            fill_up(disk / "ballast")
            reasons = await tools.put(store.client, new)
            assert any(reasons), "the disk was not full"
            assert all("No space" in reason or reason in ("", "no parent") for reason in reasons), reasons
            for at in range(0, BLOCKS, 5):
                got = await store.client.read(hit.lease_id, at, 5, LENGTH, region.descriptor())
                assert (got.blocks, got.reason) == (5, ""), "gets go on"
                for number, block in enumerate(old[at : at + 5]):
                    begin = number * LENGTH
                    assert region.view[begin : begin + LENGTH].tobytes() == tools.payload(block)
            (disk / "ballast").unlink()
            assert set(await tools.put(store.client, new)) <= {"", "exists"}, "recovers when there is room"
        assert await tools.get(store.client, new[:5], region) == 5
        stats = await store.client.stats()
        assert stats.tickets == 0
        assert stats.blocks == BLOCKS + len(new)
    async with start(open_engine(options), path=str(path)) as store:
        assert (await store.client.stats()).blocks == BLOCKS + len(new)
        assert (await store.client.stats()).blocks_corrupt == 0
        assert await tools.get(store.client, new[:5], region) == 5
