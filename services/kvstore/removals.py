"""Blocks on their way off the disk."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

log = logging.getLogger(__name__)


class Removals:
    """`remove` is the engine's, and runs on `threads`. `key in removals`: it is not gone yet."""

    def __init__(self, threads: Executor, remove: Callable[[Sequence[bytes]], list[OSError | None]]) -> None:
        self._threads, self._remove = threads, remove
        self._under_way: dict[bytes, asyncio.Future[list[OSError | None]]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._under_way

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Takes blocks off the disk that the index has let go. What can't be removed comes back to the index at the
        next start; until then it is only lost room."""
        if not keys:
            return
        removal = asyncio.get_running_loop().run_in_executor(self._threads, self._remove, keys)
        self._under_way.update(dict.fromkeys(keys, removal))
        removal.add_done_callback(lambda removal: self._removed(keys, removal))
        await asyncio.shield(removal)  # it goes on when a caller of ours goes away

    async def gone(self, keys: Sequence[bytes]) -> None:
        """Returns when none of these is being removed."""
        for key in keys:
            while (removal := self._under_way.get(key)) is not None:
                await asyncio.wait((removal,))

    def _removed(self, keys: Sequence[bytes], removal: asyncio.Future[list[OSError | None]]) -> None:
        for key in keys:
            if self._under_way.get(key) is removal:
                del self._under_way[key]
        if removal.cancelled() or removal.exception():
            return
        for key, error in zip(keys, removal.result(), strict=True):
            if error is not None:
                log.error("a block could not be removed", extra={"key": key.hex(), "reason": str(error)})
