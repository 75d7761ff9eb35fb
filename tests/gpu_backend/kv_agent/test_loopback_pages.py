"""Pages behind a loopback connection hold what pages hold, over each transport that has one (D7)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from services.common.settings import SettingError
from services.fabric.hosting import RegionHost
from services.fabric.verbs.arbitrated import LANES_VARIABLE
from services.gpu_backend.kv_agent import HostPages, LoopbackPages
from services.gpu_backend.settings import BackendSettings
from tests.fabric.conformance.benches import BENCHES, Bench

BLOCK = 100_000
PAGES = 8


@pytest.fixture(params=[bench for bench in BENCHES if bench.name != "shm"], ids=lambda bench: bench.label)
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegionHost]:
    bench: Bench = request.param
    if why := bench.missing():
        pytest.skip(why)
    monkeypatch.setenv("HOSTLESS_SHM", str(tmp_path))
    monkeypatch.setenv(LANES_VARIABLE, bench.lanes)
    with bench.host() as host:
        yield host


def number(page: int) -> NDArray[np.uint32]:
    return np.array([page], np.uint32)


async def test_blocks_written_and_read_by_many_at_once(host: RegionHost) -> None:
    memory = np.zeros((PAGES, BLOCK), np.uint8)
    blocks = np.random.default_rng(1).integers(0, 256, (PAGES, BLOCK), np.uint8)
    pages = LoopbackPages(HostPages(memory), host, "test")
    assert pages.block_bytes == BLOCK
    await asyncio.gather(*(pages.write_from(number(at), blocks[at : at + 1]) for at in range(PAGES)))
    assert np.array_equal(memory, blocks)
    for at in range(PAGES):
        assert np.array_equal(await pages.read(at), blocks[at])
    pages.close()
    pages.close()


async def test_a_cancelled_write_touches_nothing_afterwards(host: RegionHost) -> None:
    memory = np.zeros((PAGES, BLOCK), np.uint8)
    pages = LoopbackPages(HostPages(memory), host, "test")
    block = np.ones((1, BLOCK), np.uint8)
    writing = asyncio.create_task(pages.write_from(number(0), block))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert not memory.any()
    await pages.write_from(number(1), block)
    assert memory[1].all()
    assert not memory[0].any()
    pages.close()


async def test_a_connection_that_ends_is_an_error_of_the_system(host: RegionHost) -> None:
    pages = LoopbackPages(HostPages(np.zeros((PAGES, BLOCK), np.uint8)), host, "test")
    host.close()
    with pytest.raises(OSError, match="loopback connection"):
        await pages.write_from(number(0), np.ones((1, BLOCK), np.uint8))
    pages.close()


@pytest.mark.parametrize("wrong", [{"kv_copies": "pigeon"}, {"kv_copies": "loopback", "transport": "shm"}])
def test_settings_that_make_no_sense(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingError, match="kv-copies"):
        BackendSettings(**wrong)  # type: ignore[arg-type]
