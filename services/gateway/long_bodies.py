"""Bodies into requests: a long one beside the event loop, so that nobody's tokens wait for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LONG_BYTES = 32 << 10
"""Of brackets only, as slow as JSON gets, some 10 ms; the longest body takes 50 times that."""


class LongBodies:
    """One thread for all: they queue behind each other. What waits is held by its connection, as it is while it comes.

    The thread holds the interpreter lock for 5 ms at a time, but for the JSON decoder's one call.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-body")

    async def read(self, body: bytes, work: Callable[[bytes], T]) -> T:
        """What `work` makes of the body, or raises."""
        if len(body) <= LONG_BYTES:
            return work(body)
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, body)
