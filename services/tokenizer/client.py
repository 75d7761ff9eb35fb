"""Client of hostless.v1.Frontend: one session for any number of requests. What a gateway speaks to (B11)."""

import asyncio
import logging
import time
from typing import Any, Protocol

import grpc

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import frontend_pb2_grpc
from services.common import rpc
from services.common.backoff import Backoff

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 10.0
MESSAGE_BYTES = 8 << 20  # a message takes further submits up to this size


class FrontendUnavailable(Exception):
    """The tokenizer does not answer, or no session with it stands; the message says why."""


class Receiver(Protocol):
    """Who hears of one request. Called on the client's event loop for every delta, so it must be quick, and must
    not raise."""

    def deliver(self, delta: pb.Delta, now: float) -> None:
        """A delta, which came at `now` (time.monotonic). The one whose finish is not FINISH_NONE is the last call."""
        ...

    def lost(self) -> None:
        """The session ended before the request, which the tokenizer has cancelled. The last call."""
        ...


class _SessionLost(Exception):
    """The tokenizer ended the stream, or could not be talked to."""


class FrontendClient:
    """`run` it as a task: it opens the session, hands each delta to its receiver, and opens the session anew when it
    is lost. All methods are for one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.connected = False
        """Whether a session stands."""
        self._channel = rpc.channel(address)
        self._stub = frontend_pb2_grpc.FrontendStub(self._channel)
        self._next_id = 1
        self._receivers: dict[int, Receiver] = {}
        self._submits: dict[int, pb.Submit] = {}  # not yet written; bounded by what the caller admits
        self._cancels: list[int] = []  # not yet written; at most one a written submit
        self._outgoing = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Requests that have neither ended nor been cancelled."""
        return len(self._receivers)

    def submit(self, submit: pb.Submit, receiver: Receiver) -> int:
        """Sends a request with the next message and gives its id, which is chosen here and put into `submit`.

        Requests of one event-loop turn travel together. Raises FrontendUnavailable while no session stands.
        """
        if not self.connected:
            raise FrontendUnavailable(f"the tokenizer at {self.address} is not connected; try again shortly")
        submit.id = request = self._next_id
        self._next_id += 1
        self._receivers[request] = receiver
        self._submits[request] = submit
        self._outgoing.set()
        return request

    def cancel(self, request: int) -> None:
        """Cancels a request by its id, with the next message; its receiver hears nothing more. Does nothing for one
        that has ended."""
        if self._receivers.pop(request, None) is None:
            return
        if self._submits.pop(request, None) is None:
            self._cancels.append(request)
            self._outgoing.set()

    async def describe(self, timeout_s: float = rpc.DEADLINE_S) -> pb.DescribeReply:
        """Models and readiness. Raises FrontendUnavailable."""
        try:
            return await self._stub.Describe(pb.DescribeRequest(), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
            raise FrontendUnavailable(f"the tokenizer at {self.address} does not answer: {reason}") from error

    async def run(self) -> None:
        """Keeps the session up until cancelled."""
        backoff = Backoff()
        try:
            while True:
                reason = await self._converse()
                if self.connected:
                    backoff.reset()
                self._end()
                log.warning("no session with the tokenizer", extra={"address": self.address, "reason": reason})
                await backoff.pause()
        finally:
            self._end()
            await self._channel.close()

    async def _converse(self) -> str:
        """One session from connecting to its end; says why it ended."""
        try:
            await rpc.wait_ready(self._channel, CONNECT_TIMEOUT_S)
        except TimeoutError:
            return f"no connection within {CONNECT_TIMEOUT_S:g} s"
        call = self._stub.Session()
        reason = ""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await call.initial_metadata()  # sent by the tokenizer at once, when the session stands
            self.connected = True
            log.info("session with the tokenizer", extra={"address": self.address})
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read(call))
                tasks.create_task(self._write(call))
        except* (_SessionLost, TimeoutError, grpc.aio.AioRpcError) as ended:
            reason = "; ".join(map(_in_words, ended.exceptions))
        finally:
            call.cancel()
        return reason

    async def _read(self, call: Any) -> None:
        receivers, now = self._receivers, time.monotonic
        while True:
            down = await call.read()
            if down is grpc.aio.EOF:
                raise _SessionLost("the tokenizer ended the session")
            at = now()
            for delta in down.deltas:
                receiver = receivers.get(delta.id)
                if receiver is None:
                    continue  # it was cancelled here, and the tokenizer hears of it
                if delta.finish:
                    del receivers[delta.id]
                receiver.deliver(delta, at)

    async def _write(self, call: Any) -> None:
        while True:
            await self._outgoing.wait()
            up = self._gather()
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await call.write(up)
            except TimeoutError:
                raise _SessionLost(f"the tokenizer took no message for {WRITE_TIMEOUT_S:g} s") from None
            except asyncio.InvalidStateError as error:
                raise _SessionLost(f"the session has ended: {error}") from None

    def _gather(self) -> pb.SessionUp:
        """Everything that waits to be sent, up to the bound of a message."""
        up = pb.SessionUp(cancels=[pb.Cancel(id=request) for request in self._cancels])
        self._cancels.clear()
        size = 0
        for request in list(self._submits):
            size += self._submits[request].ByteSize()
            if size > MESSAGE_BYTES and up.submits:
                return up
            up.submits.append(self._submits.pop(request))
        self._outgoing.clear()
        return up

    def _end(self) -> None:
        """No session stands: nothing of it is left."""
        self.connected = False
        receivers = list(self._receivers.values())
        self._receivers.clear()
        self._submits.clear()
        self._cancels.clear()
        self._outgoing.clear()
        for receiver in receivers:
            receiver.lost()


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the tokenizer did not open the session within {CONNECT_TIMEOUT_S:g} s"
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
