import asyncio
import os
import time

from services.tokenizer.fine_timer import FineTimer


async def test_sleeps_at_least_so_long_one_after_the_other() -> None:
    timer = FineTimer()
    for seconds in (0.0, 0.0003, 0.002, 0.0003):
        before = time.monotonic()
        await timer.sleep(seconds)
        assert time.monotonic() - before >= seconds
    timer.close()


async def test_a_cancelled_sleep_does_not_end_the_next_one() -> None:
    timer = FineTimer()
    sleeping = asyncio.create_task(timer.sleep(0.001))
    await asyncio.sleep(0)
    sleeping.cancel()
    await asyncio.wait([sleeping])
    before = time.monotonic()
    await timer.sleep(0.05)
    assert time.monotonic() - before >= 0.05
    timer.close()


async def test_closing_leaves_no_file_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    FineTimer().close()
    assert len(os.listdir("/proc/self/fd")) == before
