"""Work that can't be stopped half-way is waited for, however often its caller is cancelled."""

import asyncio
import threading

import pytest

from services.gpu_backend.cancellation import all_over, to_its_end
from tests.waiting import until


async def test_who_is_cancelled_twice_leaves_when_the_thread_has_ended() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(60)
        ended.set()
        raise ValueError("nobody asks for it any more")

    caller = asyncio.create_task(to_its_end(work))
    assert await asyncio.to_thread(begun.wait, 60)
    for _ in range(2):
        caller.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not caller.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_a_deadline_is_told_as_one() -> None:
    go_on, deadline = threading.Event(), asyncio.timeout(0.01)

    async def go_on_later() -> None:
        await until(deadline.expired)
        go_on.set()

    late = asyncio.create_task(go_on_later())
    with pytest.raises(TimeoutError):
        async with deadline:
            assert await to_its_end(lambda: go_on.wait(60))
    assert go_on.is_set()
    await late


async def test_results_and_errors_are_the_works() -> None:
    assert await to_its_end(lambda: 7) == 7
    with pytest.raises(ValueError, match="bad"):
        await to_its_end(lambda: int("bad"))
    await all_over([])
