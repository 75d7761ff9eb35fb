"""The one `Frontend.Session` between this gateway and its tokenizer: submits and cancels down, deltas up."""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Any

import grpc

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import frontend_pb2_grpc
from services.common import rpc
from services.gateway.errors import unavailable
from services.gateway.reply import Choice, Reply

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
WRITE_TIMEOUT_S = 10.0
DESCRIBE_TIMEOUT_S = 1.0
BACKOFF_S = (0.1, 2.0)  # first and longest pause between attempts
MESSAGE_BYTES = 8 << 20  # a message takes further submits up to this size


class SessionLost(Exception):
    """The tokenizer ended the stream, or could not be talked to."""


class FrontendSession:
    """Owns the stream, connects again by itself, and hands each delta to its choice.

    When the stream is lost every request on it has failed: the tokenizer cancels them on its side.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.connected = False
        self._channel = rpc.channel(address)
        self._stub = frontend_pb2_grpc.FrontendStub(self._channel)
        self._next_id = 1
        self._choices: dict[int, Choice] = {}
        self._submits: dict[int, pb.Submit] = {}  # not yet written; bounded by admission
        self._cancels: list[int] = []  # not yet written; at most one a written submit
        self._outgoing = asyncio.Event()

    def submit(self, reply: Reply, submits: Sequence[pb.Submit]) -> None:
        """Sends one Submit a choice of `reply`, with the next message. Raises ApiError(503) while not connected."""
        if not self.connected:
            raise unavailable(f"the tokenizer at {self.address} is not connected; try again shortly")
        for choice, submit in zip(reply.choices, submits, strict=True):
            choice.id = submit.id = self._next_id
            self._next_id += 1
            self._choices[choice.id] = choice
            self._submits[choice.id] = submit
        self._outgoing.set()

    def forget(self, reply: Reply) -> None:
        """Cancels what of `reply` is unfinished, with the next message, and delivers nothing more. Idempotent."""
        for choice in reply.choices:
            if self._choices.pop(choice.id, None) is None:
                continue
            if self._submits.pop(choice.id, None) is None:
                self._cancels.append(choice.id)
                self._outgoing.set()

    async def describe(self) -> pb.DescribeReply:
        """Models and readiness. Raises ApiError(503) if the tokenizer doesn't answer within a second."""
        try:
            return await self._stub.Describe(pb.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise unavailable(f"the tokenizer at {self.address} does not answer: {error.details()}") from None

    async def run(self) -> None:
        """Keeps the session up until cancelled."""
        pause = BACKOFF_S[0]
        try:
            while True:
                reason = await self._converse()
                if self.connected:
                    pause = BACKOFF_S[0]
                self._lost()
                log.warning("no session with the tokenizer", extra={"address": self.address, "reason": reason})
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, BACKOFF_S[1])
        finally:
            self._lost()
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
        except* (SessionLost, TimeoutError, grpc.aio.AioRpcError) as ended:
            reason = "; ".join(map(_in_words, ended.exceptions))
        finally:
            call.cancel()
        return reason

    async def _read(self, call: Any) -> None:
        choices, now = self._choices, time.monotonic
        while True:
            down = await call.read()
            if down is grpc.aio.EOF:
                raise SessionLost("the tokenizer ended the session")
            at = now()
            for delta in down.deltas:
                choice = choices.get(delta.id)
                if choice is not None and choice.deliver(delta, at):
                    del choices[delta.id]

    async def _write(self, call: Any) -> None:
        while True:
            await self._outgoing.wait()
            up = self._gather()
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await call.write(up)
            except TimeoutError:
                raise SessionLost(f"the tokenizer took no message for {WRITE_TIMEOUT_S:g} s") from None
            except asyncio.InvalidStateError as error:
                raise SessionLost(f"the session has ended: {error}") from None

    def _gather(self) -> pb.SessionUp:
        """Everything that waits to be sent, up to the bound of a message."""
        up = pb.SessionUp(cancels=[pb.Cancel(id=id) for id in self._cancels])
        self._cancels.clear()
        size = 0
        for id in list(self._submits):
            size += self._submits[id].ByteSize()
            if size > MESSAGE_BYTES and up.submits:
                return up
            up.submits.append(self._submits.pop(id))
        self._outgoing.clear()
        return up

    def _lost(self) -> None:
        self.connected = False
        choices = list(self._choices.values())
        self._choices.clear()
        self._submits.clear()
        self._cancels.clear()
        self._outgoing.clear()
        for choice in choices:
            choice.fail(unavailable("the tokenizer was lost while the request ran; try again", "tokenizer_lost"))


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the tokenizer did not open the session within {CONNECT_TIMEOUT_S:g} s"
    return str(error.details()) if isinstance(error, grpc.aio.AioRpcError) else str(error)
