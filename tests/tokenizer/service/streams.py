"""The tokenizer's client as tests use it: each request a stream of deltas."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.client import FrontendClient


class SessionEnded(Exception):
    """The session ended before the request did."""


class Stream:
    """News of one request: `async for delta in stream`."""

    def __init__(self, client: FrontendClient, submit: pb.Submit) -> None:
        self._client = client
        self._news: asyncio.Queue[pb.Delta | None] = asyncio.Queue()
        self._ended = False
        self.id = client.submit(submit, self)

    def deliver(self, delta: pb.Delta, now: float) -> None:
        self._news.put_nowait(delta)

    def lost(self) -> None:
        self._news.put_nowait(None)

    def close(self) -> None:
        self._client.cancel(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.Delta:
        if self._ended:
            raise StopAsyncIteration
        delta = await self._news.get()
        if delta is None:
            raise SessionEnded
        self._ended = delta.finish != pb.FINISH_NONE
        return delta


class StreamClient(FrontendClient):
    def stream(self, submit: pb.Submit) -> Stream:
        return Stream(self, submit)


@asynccontextmanager
async def stream_client(address: str) -> AsyncIterator[StreamClient]:
    """A client whose session is kept up until the block ends; it need not stand yet."""
    client = StreamClient(address)
    keeping = asyncio.create_task(client.run())
    try:
        yield client
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
