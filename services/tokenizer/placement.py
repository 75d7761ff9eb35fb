"""Placing requests: bursts go to the global scheduler; while it is away, round robin over its last table."""

import asyncio
import contextvars
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.client import SchedulerClient, SchedulerUnavailable
from services.tokenizer.errors import invalid, overloaded, unavailable
from services.tokenizer.live_engines import LiveEngines, Tried

log = logging.getLogger(__name__)

BURST = 256
HELD_UP_S = 0.02  # the next burst goes, though an earlier one still waits for engines
RETRY_S = 0.1  # between two attempts of a request while engines are overloaded
QUEUE_FULL = "queue_full"
BUSY = ("overloaded", QUEUE_FULL)
"""Reasons of refusals that the next moment may end."""
AWAY_S = 1.0  # after a call that failed, the next is not tried before so long

Refusal = str
"""`reason: words`, as the scheduler says it."""


@dataclass(frozen=True, slots=True)
class _Asked:
    item: pb.ScheduleItem
    tried: Tried
    context: contextvars.Context
    """Of the request's task: carries its trace."""
    answer: asyncio.Future[pb.Placement | Refusal]


class Placer:
    """Two tasks, run() and watch(); place() for any number of requests at once."""

    def __init__(
        self,
        scheduler: SchedulerClient,
        live: LiveEngines,
        usable: Callable[[pb.EngineInfo], bool],
        wait_s: float,
        schedule_s: float = 1.0,
    ) -> None:
        """`usable`: whether this front end is attached to an engine, which is all that says if it lives
        while the scheduler is away. `wait_s`: longest wait of a request; `schedule_s`: of a call for the scheduler,
        which may keep it while engines are overloaded."""
        self._scheduler = scheduler
        self._live = live
        self._usable = usable
        self._wait_s, self._schedule_s = wait_s, schedule_s
        self._waiting: asyncio.Queue[_Asked] = asyncio.Queue()  # bounded by the requests that the service admits
        self._away_until = 0.0
        self.fallbacks = 0
        """Requests placed without the scheduler."""

    async def place(self, item: pb.ScheduleItem, tried: Tried) -> pb.Placement:
        """The engines of a request. Waits for them to live and to have room, within bounds; then raises
        RequestError."""
        deadline = asyncio.get_running_loop().time() + self._wait_s
        while True:
            changed = self._live.changed
            answer = await self._ask(item, tried)
            if isinstance(answer, pb.Placement):
                return answer
            reason, _, words = answer.partition(": ")
            if reason == "too_large":
                raise invalid(words, "max_tokens", "context_length_exceeded")
            if (error := self._live.unserved(item.model)).http_status == 404:
                raise error
            busy = reason in BUSY
            await self._until(changed, min(deadline, asyncio.get_running_loop().time() + RETRY_S) if busy else deadline)
            if asyncio.get_running_loop().time() >= deadline:
                raise overloaded(words) if reason == QUEUE_FULL else unavailable(words)

    async def _until(self, changed: asyncio.Event, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await changed.wait()
        except TimeoutError:
            return

    async def run(self) -> None:
        """Answers place(), a burst at a time, for ever. A burst whose engines are overloaded holds up no other, nor
        requests for another model."""
        async with asyncio.TaskGroup() as calls:
            while True:
                burst = [await self._waiting.get()]
                while len(burst) < BURST and not self._waiting.empty():
                    burst.append(self._waiting.get_nowait())
                models: dict[str, list[_Asked]] = {}
                for asked in burst:
                    if not asked.answer.done():  # the others were cancelled
                        models.setdefault(asked.item.model, []).append(asked)
                if models:
                    under_way = [calls.create_task(self._place_all(same)) for same in models.values()]
                    await asyncio.wait(under_way, timeout=HELD_UP_S)

    async def _place_all(self, burst: list[_Asked]) -> None:
        for asked, answer in zip(burst, await self._answers(burst), strict=True):
            if not asked.answer.done():
                asked.answer.set_result(answer)

    async def watch(self) -> None:
        """Keeps the table of live engines, for ever."""
        async with aclosing(self._scheduler.watch()) as tables:
            async for table in tables:
                log.info("placement table", extra={"version": table.version, "engines": len(table.engines)})
                self._live.update(table)

    async def _ask(self, item: pb.ScheduleItem, tried: Tried) -> pb.Placement | Refusal:
        answer: asyncio.Future[pb.Placement | Refusal] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(_Asked(item, tried, contextvars.copy_context(), answer))
        return await answer

    async def _answers(self, burst: list[_Asked]) -> list[pb.Placement | Refusal]:
        loop = asyncio.get_running_loop()
        if burst and loop.time() >= self._away_until:
            for asked in burst:
                del asked.item.exclude_engines[:]
                asked.item.exclude_engines.extend(self._live.excluded(asked.tried))
            call = self._scheduler.schedule([asked.item for asked in burst], self._schedule_s)
            try:
                # One call for many traces: it is shown in the first one's.
                placements = await asyncio.create_task(call, context=burst[0].context)
                return [p if p.HasField("engine") else p.refusal for p in placements]
            except SchedulerUnavailable as error:
                log.warning("the global scheduler is away", extra={"reason": str(error)})
                self._away_until = loop.time() + AWAY_S
        return [self._without_scheduler(asked.item, asked.tried) for asked in burst]

    def _without_scheduler(self, item: pb.ScheduleItem, tried: Tried) -> pb.Placement | Refusal:
        def usable(info: pb.EngineInfo) -> bool:
            too_long = info.role == pb.ROLE_DECODE and 0 < info.receive_tokens < item.prompt_tokens
            return self._usable(info) and not too_long

        def in_turn(role: pb.Role, tokens: int) -> pb.EngineInfo | None:
            return self._live.in_turn(item.model, role, tokens, tried, usable)

        whole = item.prompt_tokens + item.max_tokens
        if unified := in_turn(pb.ROLE_UNIFIED, whole):
            self.fallbacks += 1
            return pb.Placement(engine=unified)
        prefill, decode = in_turn(pb.ROLE_PREFILL, item.prompt_tokens + 1), in_turn(pb.ROLE_DECODE, whole)
        if prefill and decode:
            self.fallbacks += 1
            return pb.Placement(engine=prefill, decode=decode, path=pb.READ_PATH_PREFILL)
        return f"no_live_engine: the last known table has no engine for the model {item.model!r}; try again"
