"""Pages that can't be reached (a loopback connection that breaks, say) cost the block or the prompt, not the agent."""

from typing import Any

import numpy as np
import pytest

from services.gpu_backend.kv_agent.pages import Blocks, HostPages, PageNumbers
from services.gpu_backend.scheduler.orders import KvOrderKind
from tests.gpu_backend.kv_agent.conftest import PATIENT
from tests.gpu_backend.kv_agent.test_transfers import pair


async def test_a_prompt_whose_pages_can_not_be_filled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(kv_pages: HostPages, pages: PageNumbers, blocks: Blocks) -> None:
        raise OSError("the connection has broken")

    async with pair() as p:
        for generation in (1, 2):
            p.expect(generation, generation=generation)
            p.send(generation, generation=generation)
            assert await p.answer(p.decode, 2, generation) == 41 + 1
            with monkeypatch.context() as m:
                if generation == 1:
                    m.setattr(HostPages, "write_from", broken)
                assert p.receiver.fill(p.decode.order(KvOrderKind.LOAD, 2, generation, [9, 3, 5, 1]))
                assert await p.answer(p.decode, 2, generation) == (0 if generation == 1 else 4)
            p.receiver.forget(2, generation)
            p.sender.forget(1, generation)
        assert np.array_equal(p.decode.pages[[9, 3, 5, 1]], p.prefill.pages[:4])
        assert caplog.text.count("did not get into its pages") == 1


async def test_a_page_that_can_not_be_read_is_not_stored(
    spawn: Any, rig: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, read, left = await spawn(), HostPages.read, 2

    async def breaks(kv_pages: HostPages, page: int) -> Blocks:
        nonlocal left
        if not left:
            raise OSError("the connection has broken")
        left -= 1
        return await read(kv_pages, page)

    async with rig(store.address, **PATIENT) as r:
        with monkeypatch.context() as m:
            m.setattr(HostPages, "read", breaks)
            r.store(1, 1, r.prompt(6))
            await r.settled()
        assert (r.agent.counters.blocks_stored, r.agent.counters.blocks_dropped) == (0, 6)
        assert "are not stored" in caplog.text
        r.store(2, 1, r.prompt(6, seed=1))
        await r.settled()
        assert r.agent.counters.blocks_stored == 6
