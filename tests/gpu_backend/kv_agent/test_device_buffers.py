"""Hand-overs through a buffer in a GPU's memory, without a GPU: what is copied where, who is waited for, and the way
back to host memory."""

import asyncio
import contextlib
import threading
from typing import Any

import numpy as np
import pytest

from services.fabric.gate import this_machine
from services.fabric.transports import open_region
from services.gpu_backend.kv_agent.inbound import UnknownTransfer
from services.gpu_backend.kv_agent.pages import Pages
from services.gpu_backend.scheduler.orders import KvOrderKind
from services.kvstore.client import Readout
from tests.gpu_backend.kv_agent import test_transfers as transfers
from tests.gpu_backend.kv_agent.fake_device import FakeDevicePages
from tests.gpu_backend.kv_agent.test_transfers import BLOCK_BYTES, LAYERS, FakeStore, Pair, pair


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def pages_of(end: transfers.End) -> Pages:
        return FakeDevicePages(end.pages, LAYERS)

    monkeypatch.setattr(transfers.End, "pages_of", pages_of)


def device_of(end: transfers.End) -> FakeDevicePages:
    assert isinstance(end.kv_pages, FakeDevicePages)
    return end.kv_pages


async def handed_over(p: Pair, transfer: int = 7, generation: int = 1) -> None:
    p.expect(transfer, generation=generation)
    p.send(transfer, generation=generation)
    assert await p.answer(p.prefill, 1, generation) == 4
    assert await p.answer(p.decode, 2, generation) == 41 + 1
    p.decode.pages[:] = 0
    assert p.receiver.fill(p.decode.order(KvOrderKind.LOAD, 2, generation, [9, 3, 5, 1]))
    assert await p.answer(p.decode, 2, generation) == 4
    assert np.array_equal(p.decode.pages[[9, 3, 5, 1]], p.prefill.pages[:4])
    p.sender.forget(1, generation)
    p.receiver.forget(2, generation)


@pytest.mark.parametrize(("rate", "fills"), [(0, 1), (10_000_000, LAYERS)])
async def test_from_pages_to_pages_past_the_host(rate: int, fills: int) -> None:
    async with pair(receive_on_device=True, fill_bytes_s=rate) as p:
        await handed_over(p)
        assert device_of(p.prefill).copies > 0
        assert device_of(p.decode).copies == fills
        shared = device_of(p.decode).shared
        assert shared is not None
        assert np.array_equal(shared.memory[:4], p.prefill.pages[:4])


async def test_a_gpu_that_is_not_reached_is_asked_once_and_host_memory_serves(caplog: pytest.LogCaptureFixture) -> None:
    async with pair(receive_on_device=True) as p:
        device_of(p.prefill).refuses = True
        for generation in (1, 2, 3):
            await handed_over(p, 6 + generation, generation)
        assert device_of(p.prefill).copies == device_of(p.decode).copies == 0
        assert sum("can't be reached" in record.getMessage() for record in caplog.records) == 1


async def test_a_prompt_that_ends_before_its_buffer_is_opened_says_nothing_of_the_gpu(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with pair(receive_on_device=True) as p:
        p.go_on.clear()
        p.expect()
        p.send()
        await p.opened.wait()
        p.receiver.forget(2, 1)
        p.go_on.set()
        assert await p.answer(p.prefill, 1) == 0
        p.sender.forget(1, 1)
        await handed_over(p, 8, 2)
        assert device_of(p.prefill).copies > 0
        assert "can't be reached" not in caplog.text


async def test_who_leaves_while_a_gpu_is_being_reached_leaves_when_that_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pages may be closed then."""
    begun, go_on, reached = threading.Event(), threading.Event(), list[bytes]()

    def slowly(kv_pages: FakeDevicePages, handle: bytes) -> int:
        begun.set()
        assert go_on.wait(60)
        reached.append(handle)
        return 0

    monkeypatch.setattr(FakeDevicePages, "reach", slowly)
    async with pair(receive_on_device=True) as p:
        p.expect()
        opening = asyncio.create_task(p.sender._opener.open(7, p.open))
        assert await asyncio.to_thread(begun.wait, 60)
        opening.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert reached
        p.receiver.forget(2, 1)


async def test_another_machine_is_given_host_memory_with_the_hit_in_it() -> None:
    class Store(FakeStore):
        async def read(self, lease_id: int, first: int, count: int, *rest: Any) -> Readout:
            _, target, offset, _ = rest
            with contextlib.closing(open_region(target)) as region:
                region.write(offset, b"".join(bytes([first + at]) * BLOCK_BYTES for at in range(count)))
            return Readout(count)

    async with pair(store=Store(), receive_on_device=True) as p:
        p.expect(keys=[b"a", b"b"])
        place, hit = await p.receiver.open(7, BLOCK_BYTES, this_machine())
        assert place.on_device
        assert hit == range(2)
        with pytest.raises(UnknownTransfer):
            await p.receiver.open(7, BLOCK_BYTES, this_machine())
        place, hit = await p.receiver.open(7, BLOCK_BYTES, "")
        assert not place.on_device
        assert hit == range(2)
        with contextlib.closing(open_region(place.region)) as region:
            assert region.read(0, 2 * BLOCK_BYTES) == bytes(BLOCK_BYTES) + b"\1" * BLOCK_BYTES
        p.receiver.forget(2, 1)
        assert p.receiver.memory.free == p.receiver.memory.size


async def test_memory_is_not_used_again_before_a_late_copy_has_ended() -> None:
    async with pair(receive_on_device=True, receive_buffer_bytes=4 * BLOCK_BYTES) as p:
        device_of(p.prefill).go_on.clear()
        p.expect()
        p.send()
        while not device_of(p.prefill).copies:  # noqa: ASYNC110
            await asyncio.sleep(0)
        p.receiver.forget(2, 1)
        p.expect(transfer=8, generation=2)
        opening = asyncio.create_task(p.receiver.open(8, BLOCK_BYTES, this_machine()))
        done, _ = await asyncio.wait([opening], timeout=0.1)
        assert not done, "the next prompt was given memory that is still written to"
        device_of(p.prefill).go_on.set()
        async with asyncio.timeout(60):
            assert (await opening)[0].on_device
        assert await p.answer(p.prefill, 1) == 0
