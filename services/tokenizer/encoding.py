"""Tokenizing: short prompts on the event loop, usual ones by a few threads, the long ones by one."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

SHORT_BYTES = 8 << 10
"""Some 2,000 tokens: a tenth of a millisecond with the native encoder, less than handing over to a thread and back."""
LONG_BYTES = 64 << 10


class EncodingPool:
    """Long prompts queue behind each other on a thread of their own, so that no short one waits for them.

    The threads hold the interpreter lock only between the encoder's native calls. What waits is bounded
    by the requests that the service admits.
    """

    def __init__(self, threads: int) -> None:
        self._usual = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="encode-long")

    async def run(self, work: Callable[[], T], size_bytes: int) -> T:
        """What `work` answers or raises, run where its size says."""
        if size_bytes <= SHORT_BYTES:
            return work()
        pool = self._long if size_bytes > LONG_BYTES else self._usual
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    def close(self) -> None:
        """Drops what has not begun; waits for what has."""
        self._usual.shutdown(cancel_futures=True)
        self._long.shutdown(cancel_futures=True)
