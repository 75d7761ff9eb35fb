"""hostless.v1.Frontend: sessions of gateways, and what can be asked for."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import frontend_pb2_grpc
from services.tokenizer.conductor import Conductor
from services.tokenizer.engine_pool import EnginePool
from services.tokenizer.errors import RequestError, unavailable
from services.tokenizer.live_engines import LiveEngines
from services.tokenizer.model_shelf import ModelShelf
from services.tokenizer.request import Request
from services.tokenizer.session import DuplicateId, GatewaySession, SessionOverflow

log = logging.getLogger(__name__)

NAME = "hostless.v1.Frontend"

Context = grpc.aio.ServicerContext[Any, Any]


class FrontendService(frontend_pb2_grpc.FrontendServicer):  # type: ignore[misc]
    """All requests of all sessions, on one event loop."""

    def __init__(
        self,
        conductor: Conductor,
        live: LiveEngines,
        shelf: ModelShelf,
        pool: EnginePool,
        max_requests: int,
        max_unsent_deltas: int,
    ) -> None:
        self._conductor = conductor
        self._live = live
        self._shelf = shelf
        self._pool = pool
        self._max_requests = max_requests
        self._max_unsent = max_unsent_deltas
        self.sessions: set[GatewaySession] = set()
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self.draining = False
        self._running = 0
        self._ended_messages = 0

    def register(self, server: grpc.aio.Server) -> None:
        frontend_pb2_grpc.add_FrontendServicer_to_server(self, server)

    @property
    def running(self) -> int:
        """Requests under way."""
        return self._running

    @property
    def messages(self) -> int:
        """Sent to gateways so far; each carries all the news of a poll."""
        return self._ended_messages + sum(session.messages for session in self.sessions)

    async def Session(self, ups: AsyncIterator[pb.SessionUp], context: Context) -> None:
        """Ends, and cancels its requests, when the gateway ends its side, vanishes, or falls too far behind."""
        session = GatewaySession(self._max_unsent)
        self.sessions.add(session)
        await context.send_initial_metadata(())  # tells the gateway that the session stands
        log.info("session begins", extra={"peer": context.peer()})
        fault: tuple[grpc.StatusCode, str] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(session.send(context.write))
                bound = tasks.create_task(session.watch_bound())
                async for up in ups:
                    self._hear(session, up, tasks)
                for task in (sending, bound, *(task for _, task in session.requests.values())):
                    task.cancel()
        except* SessionOverflow as group:
            fault = grpc.StatusCode.RESOURCE_EXHAUSTED, str(group.exceptions[0])
        except* DuplicateId as group:
            fault = grpc.StatusCode.INVALID_ARGUMENT, str(group.exceptions[0])
        finally:
            self.sessions.discard(session)
            self._ended_messages += session.messages
            log.info("session ends", extra={"peer": context.peer(), "reason": fault[1] if fault else "by the gateway"})
        if fault:
            await context.abort(*fault)

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeReply:
        reason = self._unready()
        models = []
        for name in self._live.models():
            loaded, limits = self._shelf.loaded(name), self._live.limits(name)
            created = loaded.created if loaded else 0
            models.append(
                pb.Model(id=name, created=created, context_length=limits.context, vocab_size=limits.vocab_size)
            )
        return pb.DescribeReply(ready=not reason, reason=reason, models=models)

    async def preload(self) -> None:
        """Loads each model when an engine first offers it, so that no request waits for it. Runs for ever."""
        while True:
            changed = self._live.changed
            for name in self._live.models():
                try:
                    await self._shelf.get(self._live.serving(name)[0])
                except RequestError:
                    continue  # logged by the shelf; requests for the model are told
            await changed.wait()

    def _unready(self) -> str:
        if self.draining:
            return "the tokenizer is draining"
        if not self._live.engines:
            return "no engine lives"
        if not any(self._live.complete(info.model) for info in self._live.engines.values()):
            return "of prefill and decode engines only one kind lives"
        if not any(self._pool.usable(info) for info in self._live.engines.values()):
            return "no live engine's ring is attached yet"
        if not any(self._shelf.loaded(name) for name in self._live.models()):
            return next(iter(self._shelf.reasons.values()), "the model's tokenizer is being loaded")
        return ""

    def _hear(self, session: GatewaySession, up: pb.SessionUp, tasks: asyncio.TaskGroup) -> None:
        for submit in up.submits:
            if submit.id in session.requests:
                raise DuplicateId(f"id {submit.id} is already used by a request of this session")
            request = Request(submit, session)
            if refusal := self._refusal():
                request.fail(refusal)
                continue
            self._running += 1
            self.idle.clear()
            task = tasks.create_task(self._conductor.serve(request))
            task.add_done_callback(self._ended)
            session.admit(request, task)
        for cancel in up.cancels:
            session.cancel(cancel.id)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running -= 1
        if not self._running:
            self.idle.set()

    def _refusal(self) -> RequestError | None:
        if self.draining:
            return unavailable("the tokenizer is shutting down; try again", "draining")
        if self._running >= self._max_requests:
            message = f"the tokenizer serves {self._max_requests} requests already; try again"
            return RequestError(429, message, code="overloaded", type="rate_limit_error")
        return None
