"""Client of hostless.v1.Frontend: one session, many requests on it. What a gateway speaks to."""

import asyncio
import logging
import random
from types import TracebackType
from typing import Any, Self

import grpc

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import frontend_pb2_grpc
from services.common import rpc

log = logging.getLogger(__name__)

BACKOFF_S = (0.05, 2.0)  # first and longest pause between attempts to open the session


class FrontendUnavailable(Exception):
    """No session with the tokenizer, or it broke while the request ran; the message says why."""


class DeltaStream:
    """News of one request: `async for delta in stream`, ended by the delta whose finish is not FINISH_NONE.

    What comes while nobody waits is merged into one delta, so a slow reader costs no more memory than
    its own text. Close it (or use it as a context): a request not at its end is then cancelled.
    """

    __slots__ = ("_client", "_ended", "_error", "_pending", "_waiter", "id")

    def __init__(self, client: "FrontendClient", id: int) -> None:
        self.id = id
        self._client = client
        self._pending: pb.Delta | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: FrontendUnavailable | None = None
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> pb.Delta:
        """Raises FrontendUnavailable, after what came before was taken."""
        while self._pending is None:
            if self._error:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        delta, self._pending = self._pending, None
        return delta

    def close(self) -> None:
        """Cancels the request unless it has ended; at once, without waiting. Idempotent."""
        self._client._forget(self.id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _put(self, delta: pb.Delta) -> None:
        self._ended = delta.finish != pb.FINISH_NONE
        if self._pending is None:
            self._pending = delta
        else:
            _merge(self._pending, delta)
        self._wake()

    def _fail(self, error: FrontendUnavailable) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


class FrontendClient:
    """Keeps one session with the tokenizer at `address` open, and opens it anew when it breaks.

    An async context; all methods are for its event loop. Requests under way when the session breaks
    end with FrontendUnavailable: the tokenizer has cancelled them.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.connected = asyncio.Event()
        """Set while a session is open."""
        self._channel = rpc.channel(address)
        self._stub = frontend_pb2_grpc.FrontendStub(self._channel)
        self._streams: dict[int, DeltaStream] = {}
        self._next_id = 1
        self._up = pb.SessionUp()
        self._up_ready = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._keeper = asyncio.create_task(self._keep_session())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._keeper
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        await self._channel.close()

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def submit(self, submit: pb.Submit) -> DeltaStream:
        """Sends a request; its `id` is chosen here. Requests of one event-loop turn travel in one message.

        Raises FrontendUnavailable when no session is open.
        """
        if not self.connected.is_set():
            raise FrontendUnavailable(f"no session with the tokenizer at {self.address}")
        submit.id = self._next_id
        self._next_id += 1
        stream = self._streams[submit.id] = DeltaStream(self, submit.id)
        self._up.submits.append(submit)
        self._up_ready.set()
        return stream

    async def describe(self, timeout_s: float = rpc.DEADLINE_S) -> pb.DescribeReply:
        """Raises FrontendUnavailable."""
        try:
            reply: pb.DescribeReply = await self._stub.Describe(pb.DescribeRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            raise FrontendUnavailable(f"tokenizer {self.address}: {reason}") from error
        return reply

    def _forget(self, id: int) -> None:
        if self._streams.pop(id, None) and self.connected.is_set():
            self._up.cancels.add(id=id)
            self._up_ready.set()

    async def _keep_session(self) -> None:
        pause = BACKOFF_S[0]
        while True:
            call = self._stub.Session()
            try:
                await call.initial_metadata()  # the tokenizer sends it when the session stands
                self.connected.set()
                pause = BACKOFF_S[0]
                await self._exchange(call)
                reason = "the tokenizer ended it"
            except grpc.aio.AioRpcError as error:
                reason = f"{error.code().name}: {error.details()}"
            finally:
                call.cancel()
                self._end_all("the session ended")
            log.info("no session with the tokenizer", extra={"address": self.address, "reason": reason})
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, BACKOFF_S[1])

    async def _exchange(self, call: Any) -> None:
        writer = asyncio.create_task(self._write(call))
        try:
            while (down := await call.read()) is not grpc.aio.EOF:
                for delta in down.deltas:
                    self._route(delta)
        finally:
            writer.cancel()
            await asyncio.wait([writer])

    async def _write(self, call: Any) -> None:
        while True:
            await self._up_ready.wait()
            self._up_ready.clear()
            up, self._up = self._up, pb.SessionUp()
            try:
                await call.write(up)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                return  # the reading side learns the same, and says it

    def _route(self, delta: pb.Delta) -> None:
        stream = self._streams.get(delta.id)
        if stream is None:
            return  # it was closed here, and the cancel is on its way
        stream._put(delta)
        if delta.finish != pb.FINISH_NONE:
            del self._streams[delta.id]

    def _end_all(self, reason: str) -> None:
        self.connected.clear()
        self._up, self._up_ready = pb.SessionUp(), asyncio.Event()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream._fail(FrontendUnavailable(f"tokenizer {self.address}: {reason} before the request did"))


def _merge(into: pb.Delta, delta: pb.Delta) -> None:
    into.text += delta.text
    into.tokens += delta.tokens
    into.finish = delta.finish
    if delta.HasField("usage"):
        into.usage.CopyFrom(delta.usage)
    if delta.HasField("error"):
        into.error.CopyFrom(delta.error)
