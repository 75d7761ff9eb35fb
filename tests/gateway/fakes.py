"""A tokenizer and a global scheduler that do as a test says, behind real gRPC."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import frontend_pb2_grpc, scheduler_pb2_grpc
from hostless.v1 import scheduler_pb2 as scheduler_pb
from services.common import rpc

Script = Callable[[pb.Submit], AsyncIterator[pb.Delta]]

WAIT_S = 60.0
MODEL = "tiny"
WORDS = ("Hello", " wor", "ld")


def last(finish: int = pb.FINISH_STOP, prompt: int = 7, completion: int = 3, cached: int = 0, **more: Any) -> pb.Delta:
    usage = pb.Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
    return pb.Delta(finish=finish, usage=usage, **more)


def error(status: int, message: str, **more: str) -> pb.Delta:
    return pb.Delta(finish=pb.FINISH_ERROR, error=pb.Error(http_status=status, message=message, **more))


def words(*texts: str, finish: int = pb.FINISH_STOP) -> Script:
    """One token a text, then the end."""

    async def script(submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        for text in texts:
            yield pb.Delta(text=text, tokens=1)
        yield last(finish, completion=len(texts))

    return script


class FakeTokenizer(frontend_pb2_grpc.FrontendServicer):
    """Answers each Submit by `script`; a script that must wait can use `hold`, which the test sets."""

    def __init__(self) -> None:
        self.script: Script = words(*WORDS)
        self.hold = asyncio.Event()
        self.submits: list[pb.Submit] = []
        self.cancels: list[int] = []
        self.ups = 0
        self.sessions = 0
        self.ready, self.reason = True, ""
        self.address = ""
        self._changed = asyncio.Event()
        self._end = asyncio.Event()

    async def then_hold(self, submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        """A script: one token, then the rest once `hold` is set."""
        yield pb.Delta(text="Hello", tokens=1)
        await self.hold.wait()
        yield pb.Delta(text=" world", tokens=1)
        yield last(completion=2)

    async def silent(self, submit: pb.Submit) -> AsyncIterator[pb.Delta]:
        """A script: nothing until `hold` is set."""
        await self.hold.wait()
        yield last(completion=0)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits until `condition`, which is looked at whenever something arrives."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await self._changed.wait()

    def end_sessions(self) -> None:
        """As a tokenizer that shuts down does."""
        self._end.set()
        self._end = asyncio.Event()

    async def Session(self, ups: AsyncIterator[pb.SessionUp], context: Any) -> None:
        await context.send_initial_metadata(())
        self.sessions += 1
        self._tell()
        running: dict[int, asyncio.Task[None]] = {}
        down: asyncio.Queue[pb.Delta] = asyncio.Queue()
        reader = asyncio.create_task(self._read(ups, running, down))
        writer = asyncio.create_task(self._write(down, context))
        ended = asyncio.create_task(self._end.wait())
        try:
            await asyncio.wait((reader, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reader, writer, ended, *running.values()):
                task.cancel()

    async def _read(
        self,
        ups: AsyncIterator[pb.SessionUp],
        running: dict[int, asyncio.Task[None]],
        down: asyncio.Queue[pb.Delta],
    ) -> None:
        async for up in ups:
            self.ups += 1
            for submit in up.submits:
                self.submits.append(submit)
                running[submit.id] = asyncio.create_task(self._answer(submit, down))
            for cancel in up.cancels:
                self.cancels.append(cancel.id)
                running[cancel.id].cancel()
            self._tell()

    async def _answer(self, submit: pb.Submit, down: asyncio.Queue[pb.Delta]) -> None:
        async for delta in self.script(submit):
            delta.id = submit.id
            down.put_nowait(delta)

    async def _write(self, down: asyncio.Queue[pb.Delta], context: Any) -> None:
        while True:
            deltas = [await down.get()]
            while not down.empty():
                deltas.append(down.get_nowait())
            await context.write(pb.SessionDown(deltas=deltas))

    async def Describe(self, request: pb.DescribeRequest, context: Any) -> pb.DescribeReply:
        model = pb.Model(id=MODEL, created=1_700_000_000, context_length=2048, vocab_size=100)
        return pb.DescribeReply(ready=self.ready, reason=self.reason, models=[model])

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def serve(self, address: str = "127.0.0.1:0") -> AsyncIterator[None]:
        def register(server: grpc.aio.Server) -> None:
            frontend_pb2_grpc.add_FrontendServicer_to_server(self, server)

        async with rpc.serve(address, register, ["hostless.v1.Frontend"], grace_s=0) as server:
            self.address = f"127.0.0.1:{server.port}"
            yield


class FakeScheduler(scheduler_pb2_grpc.GlobalSchedulerServicer):
    def __init__(self, status: scheduler_pb.MeshStatus) -> None:
        self.status = status

    async def Status(self, request: scheduler_pb.StatusRequest, context: Any) -> scheduler_pb.MeshStatus:
        return self.status
