"""A scheduler that is gone takes its process with it, and leaves nothing behind."""

import asyncio
import threading
from pathlib import Path

import pytest

from services.gpu_backend.assembly import assemble
from services.gpu_backend.backend import EngineFailed
from services.gpu_backend.loading import LoadingStopped
from services.gpu_backend.scheduler.interface import SchedulerLost
from services.gpu_backend.serving import Served, prepare
from services.gpu_backend.settings import BackendSettings

SETTINGS = BackendSettings(
    engine="synthetic", slots=64, prompt_words=4096, token_words=4096, scheduler="127.0.0.1:1", lanes=4, kv_pages=16
)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("HOSTLESS_SHM", str(tmp_path))
    return prepare(SETTINGS, "lost", threading.Event())


async def serving(serving: bool) -> None:
    pass


async def test_what_the_scheduler_says_ends_the_backend(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    region = served.ring.region.path
    backend = assemble(SETTINGS, served, 1)
    assert region.exists()

    def tend() -> None:
        raise SchedulerLost("ended by itself: deadline")

    monkeypatch.setattr(served.scheduler, "tend", tend)
    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.timeout(60):
            await backend.run(serving)
    assert failed.group_contains(EngineFailed, match="ended by itself: deadline")
    await backend.close()
    assert not region.exists()


async def test_a_scheduler_that_was_gone_already_is_closed_all_the_same(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, stop = assemble(SETTINGS, served, 1), served.scheduler.stop

    def stop_lost(timeout_s: float) -> None:
        stop(timeout_s)
        raise SchedulerLost("stranded, error 1")

    monkeypatch.setattr(served.scheduler, "stop", stop_lost)
    await backend.close()
    assert "gone before it was stopped" in caplog.text
    assert not served.ring.region.path.exists()


def test_a_stop_while_it_is_prepared_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTLESS_SHM", str(tmp_path))
    stop = threading.Event()
    monkeypatch.setattr(
        "services.gpu_backend.kits.HostKit.make_scheduler",
        lambda *_: (_ for _ in ()).throw(LoadingStopped("stopped while graphs were captured")),
    )
    with pytest.raises(LoadingStopped):
        prepare(SETTINGS, "lost", stop)
    assert not list(tmp_path.iterdir())
