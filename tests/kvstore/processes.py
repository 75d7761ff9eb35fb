"""A store in a process of its own, and the fixtures of all tests that want one."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from tests.processes import ServiceProcess, start


async def start_store(**changed: object) -> ServiceProcess:
    """Ready to serve. AssertionError with its log when it ends instead."""
    settings = {"metrics_address": "", **changed}
    store = await start("kvstore", *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items()))
    try:
        await store.serving()
    except BaseException:
        await store.kill()
        raise
    return store


@pytest.fixture(autouse=True)
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the test's processes have their shared memory."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setenv("HOSTLESS_SHM", str(folder))
    return folder


@pytest.fixture
async def spawn(tmp_path: Path, shared_memory: Path) -> AsyncIterator[Callable[..., Awaitable[ServiceProcess]]]:
    """await spawn(**settings): a store in its own process, killed at the end if it still runs."""
    running: list[ServiceProcess] = []

    async def spawn(**changed: object) -> ServiceProcess:
        running.append(await start_store(**{"path": tmp_path / "store", **changed}))
        return running[-1]

    yield spawn
    for store in running:
        await store.kill()
