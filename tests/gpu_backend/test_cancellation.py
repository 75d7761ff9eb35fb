"""Work that can't be stopped half-way is waited for, however often its caller is cancelled."""

import asyncio
import threading

import pytest

from services.gpu_backend.cancellation import all_over, to_its_end


async def test_who_is_cancelled_twice_leaves_when_the_thread_has_ended() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(10)
        ended.set()
        raise ValueError("nobody asks for it any more")

    caller = asyncio.create_task(to_its_end(work))
    await asyncio.to_thread(begun.wait, 10)
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
    go_on = threading.Event()
    asyncio.get_running_loop().call_later(0.05, go_on.set)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await to_its_end(lambda: go_on.wait(10))
    assert go_on.is_set()


async def test_results_and_errors_are_the_works() -> None:
    assert await to_its_end(lambda: 7) == 7
    with pytest.raises(ValueError, match="bad"):
        await to_its_end(lambda: int("bad"))
    await all_over([])
