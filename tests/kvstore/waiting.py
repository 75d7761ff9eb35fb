"""Waits for conditions in the test's own process."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
