"""Calls to a store that end in time, and what becomes of answers that come too late."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc

from hostless.v1 import kvstore_pb2_grpc
from services.common import rpc
from services.kvstore.write_batch import StoreUnavailable

T = TypeVar("T")

FREE_S = 5.0
"""Deadline of a release or abort, and of an answer that comes too late for its caller but holds something to release or
abort. When it is missed, the store frees by itself after the lease or ticket time."""

_AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
    }
)


class Calls:
    """One channel, which reconnects by itself."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = rpc.channel(address)
        self.stub = kvstore_pb2_grpc.KvStoreStub(self.channel)
        self.freeing: set[asyncio.Task[None]] = set()

    async def call(self, method: Callable[..., Awaitable[T]], request: object, timeout_s: float) -> T:
        """`method` is one of the stub's. StoreUnavailable when the store is away, or answers too late."""
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in _AWAY:
                raise self.unavailable(f"{error.code().name}: {error.details()}") from error
            raise

    async def in_time(
        self, call: Coroutine[Any, Any, T], timeout_s: float, give_back: Callable[[T], Coroutine[Any, Any, None]]
    ) -> T:
        """What the call answers, which goes to `give_back` where it comes too late, or its caller went away."""
        asked = asyncio.create_task(call)

        async def late() -> None:
            await give_back(await asked)

        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(asked)
        except (TimeoutError, asyncio.CancelledError) as error:
            self.free(late())
            if isinstance(error, TimeoutError):
                raise self.unavailable("DEADLINE_EXCEEDED") from None
            raise

    def free(self, call: Coroutine[Any, Any, object]) -> None:
        """In the background, so that a cancelled or late caller does not wait for it."""

        async def attempt() -> None:
            try:
                await call
            except StoreUnavailable:
                return  # the store frees by itself

        task = asyncio.create_task(attempt())
        self.freeing.add(task)
        task.add_done_callback(self.freeing.discard)

    def unavailable(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(f"store {self.address}: {why}")

    async def close(self) -> None:
        """Waits for what is being freed, so long as it may take."""
        if self.freeing:
            await asyncio.wait(self.freeing, timeout=FREE_S)
        await self.channel.close()
