"""Work that can't be stopped half-way: whoever waits for it and is cancelled leaves when it is over."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def all_over(work: Sequence[asyncio.Future[Any]], cancelled: Callable[[], object] = lambda: None) -> None:
    """Returns when all of `work` is over, however it ended. If the caller is cancelled, once or more often, `cancelled`
    is called at once, and CancelledError is raised when all is over."""
    left = None
    while not all(each.done() for each in work):
        try:
            await asyncio.wait(work)
        except asyncio.CancelledError as error:
            left = error
            cancelled()
    if left is not None:
        for each in work:
            if not each.cancelled():
                each.exception()  # nobody asks for it any more
        raise left


async def to_its_end(work: Callable[[], T]) -> T:
    """On a thread; a caller that is cancelled leaves when the thread has done with the memory."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    await all_over([task])
    return task.result()
