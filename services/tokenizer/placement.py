"""Placing requests: bursts go to the global scheduler; while it is away, round robin over its last table."""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable
from services.tokenizer.errors import invalid, unavailable
from services.tokenizer.live_engines import LiveEngines, Tried

log = logging.getLogger(__name__)

BURST = 256
SCHEDULE_TIMEOUT_S = 1.0
AWAY_S = 1.0  # after a call that failed, the next is not tried before so long

Refusal = str


@dataclass(frozen=True, slots=True)
class _Asked:
    item: pb.ScheduleItem
    tried: Tried
    context: contextvars.Context
    """Of the request's task: carries its trace."""
    answer: asyncio.Future[pb.EngineInfo | Refusal]


class Placer:
    """Two tasks, run() and watch(); place() for any number of requests at once."""

    def __init__(
        self,
        scheduler: SchedulerClient,
        live: LiveEngines,
        usable: Callable[[pb.EngineInfo], bool],
        wait_s: float,
    ) -> None:
        """`usable`: whether this front end is attached to an engine, which is all that says if it lives
        while the scheduler is away."""
        self._scheduler = scheduler
        self._live = live
        self._usable = usable
        self._wait_s = wait_s
        self._waiting: asyncio.Queue[_Asked] = asyncio.Queue()  # bounded by the requests that the service admits
        self._away_until = 0.0
        self.fallbacks = 0
        """Requests placed without the scheduler."""

    async def place(self, item: pb.ScheduleItem, tried: Tried) -> pb.EngineInfo:
        """The engine for a request. Waits for one to live, within bounds; then raises RequestError."""
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            changed = self._live.changed
            answer = await self._ask(item, tried)
            if isinstance(answer, pb.EngineInfo):
                return answer
            reason, _, words = answer.partition(": ")
            if reason == "too_large":
                raise invalid(words, "max_tokens", "context_length_exceeded")
            if (error := self._live.unserved(item.model)).http_status == 404:
                raise error
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                raise unavailable(words) from None

    async def run(self) -> None:
        """Answers place(), a burst at a time, for ever."""
        while True:
            burst = [await self._waiting.get()]
            while len(burst) < BURST and not self._waiting.empty():
                burst.append(self._waiting.get_nowait())
            burst = [asked for asked in burst if not asked.answer.done()]  # the others were cancelled
            for asked, answer in zip(burst, await self._answers(burst), strict=True):
                if not asked.answer.done():
                    asked.answer.set_result(answer)

    async def watch(self) -> None:
        """Keeps the table of live engines, for ever."""
        async with aclosing(self._scheduler.watch()) as tables:
            async for table in tables:
                log.info("placement table", extra={"version": table.version, "engines": len(table.engines)})
                self._live.update(table)

    async def _ask(self, item: pb.ScheduleItem, tried: Tried) -> pb.EngineInfo | Refusal:
        answer: asyncio.Future[pb.EngineInfo | Refusal] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(_Asked(item, tried, contextvars.copy_context(), answer))
        return await answer

    async def _answers(self, burst: list[_Asked]) -> list[pb.EngineInfo | Refusal]:
        loop = asyncio.get_running_loop()
        if burst and loop.time() >= self._away_until:
            for asked in burst:
                del asked.item.exclude_engines[:]
                asked.item.exclude_engines.extend(self._live.excluded(asked.tried))
            call = self._scheduler.schedule([asked.item for asked in burst], SCHEDULE_TIMEOUT_S)
            try:
                # One call for many traces: it is shown in the first one's.
                placements = await asyncio.create_task(call, context=burst[0].context)
                return [p.engine if p.HasField("engine") else p.refusal for p in placements]
            except SchedulerUnavailable as error:
                log.warning("the global scheduler is away", extra={"reason": str(error)})
                self._away_until = loop.time() + AWAY_S
        return [self._without_scheduler(asked.item, asked.tried) for asked in burst]

    def _without_scheduler(self, item: pb.ScheduleItem, tried: Tried) -> pb.EngineInfo | Refusal:
        info = self._live.in_turn(item.model, item.prompt_tokens + item.max_tokens, tried, self._usable)
        if info is None:
            return f"no_live_engine: the last known table has no engine for the model {item.model!r}; try again"
        self.fallbacks += 1
        return info
