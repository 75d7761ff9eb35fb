"""What an engine is refused before it joins the mesh."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from services.common.settings import SettingError
from services.gpu_backend import assembly
from services.gpu_backend.assembly import assemble
from services.gpu_backend.serving import Served, prepare
from tests.gpu_backend.service.test_lost_scheduler import SETTINGS

APART = replace(SETTINGS, kvstore="127.0.0.1:1", held_bytes=1 << 40)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setenv("HOSTLESS_SHM", str(tmp_path))
    return prepare(APART, "assembly", threading.Event())


async def test_more_held_blocks_than_there_is_memory(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "available_bytes", lambda: 1 << 20)
    with pytest.raises(SettingError, match=r"held-bytes: blocks of \d+ bytes, but 1048576 are available"):
        assemble(APART, served, 1)
    backend = assemble(replace(APART, held_bytes=1 << 20), served, 1)
    await backend.close()


async def test_a_receive_buffer_that_no_long_prompt_fits_in(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    assert served.kv_pages
    two_blocks = 3 * served.kv_pages.block_bytes - 1
    small = replace(APART, held_bytes=0, role="decode", receive_buffer_bytes=two_blocks)
    backend = assemble(small, served, 1)
    await backend.close()
    assert "longer than the receive buffer" in caplog.text
    assert backend.info.receive_tokens == 128


async def test_a_receive_buffer_that_no_prompt_fits_in(served: Served) -> None:
    with pytest.raises(SettingError, match="receive-buffer-bytes: 1 hold no block of 64 tokens"):
        assemble(replace(APART, held_bytes=0, receive_buffer_bytes=1), served, 1)
    served.closing.close()


async def test_a_receive_buffer_with_room_for_any_prompt(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    backend = assemble(replace(APART, held_bytes=0, role="decode", receive_buffer_bytes=1 << 30), served, 1)
    await backend.close()
    assert "longer than the receive buffer" not in caplog.text
