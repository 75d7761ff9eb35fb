"""The engine's voice to the global scheduler: one stream, a report now and then, for ever (D9).

Each engine is its own leader: a group of several has as many streams, all under its name.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from hostless.v1 import scheduler_pb2 as pb
from services.common.backoff import Backoff
from services.global_scheduler.client import SchedulerClient

log = logging.getLogger(__name__)

ANSWER_S = 5.0
LONGEST_PAUSE_S = 5.0  # between attempts
REPORTS_A_LEASE = 3


class Leader:
    """Introduces the engine and reports on it: every `busy_s` while it has requests, else every `idle_s`,
    and always several times within the lease that the scheduler gives."""

    def __init__(
        self,
        address: str,
        group_id: str,
        info: pb.EngineInfo,
        report: Callable[[bool], pb.EngineReport],
        busy_s: float,
        idle_s: float,
    ) -> None:
        """`report`: is told whether it is a stream's first, so to somebody who knows nothing yet."""
        self._address = address
        self._group_id = group_id
        self._info = info
        self._report = report
        self._busy_s, self._idle_s = busy_s, idle_s
        self._led = False  # a stream is open
        self._news = asyncio.Event()
        self._asked = self._told = 0  # calls of tell_now; how many of them the scheduler has answered
        self._answered = asyncio.Condition()

    async def tell_now(self, timeout_s: float) -> bool:
        """Reports at once; True when the scheduler has taken note, False if it is away or didn't in time."""
        if not self._led:
            return False
        self._asked += 1
        mine = self._asked
        self._news.set()
        try:
            async with asyncio.timeout(timeout_s), self._answered:
                await self._answered.wait_for(lambda: self._told >= mine)
        except TimeoutError:
            return False
        return True

    def introduce(self, info: pb.EngineInfo) -> None:
        """The engine is another one now; the next report says so."""
        self._info = info

    def tell_soon(self) -> None:
        """Reports at once; doesn't wait."""
        self._news.set()

    async def run(self) -> None:
        """Leads until cancelled; a scheduler that is away is waited for."""
        backoff, said = Backoff(longest_s=LONGEST_PAUSE_S), False
        async with SchedulerClient(self._address) as client:
            while True:
                call = client.lead()
                try:
                    async for _ in self._lead(call):
                        backoff.reset()
                        said = False
                    reason = "it ended the stream"
                except asyncio.InvalidStateError:  # grpc's word for writing to a stream that has ended
                    reason = "the stream ended"
                except TimeoutError:
                    reason = f"no answer in {ANSWER_S:g} s"
                except grpc.aio.AioRpcError as error:
                    reason = error.details() or error.code().name
                    if error.code() is grpc.StatusCode.ABORTED:  # two engines of one name must not take turns quickly
                        backoff.lengthen()
                finally:
                    self._led = False
                    call.cancel()
                if not said:
                    log.warning("no global scheduler", extra={"address": self._address, "reason": reason})
                    said = True
                await backoff.pause()

    async def _lead(self, call: Any) -> AsyncIterator[None]:
        """Yields after each answer; ends when the scheduler ends the stream."""
        introduced: pb.EngineInfo | None = None
        while True:
            self._news.clear()
            engines = [] if introduced is self._info else [self._info]
            asked, report = self._asked, self._report(introduced is None)
            async with asyncio.timeout(ANSWER_S):
                await call.write(pb.LeaderUp(group_id=self._group_id, engines=engines, reports=[report]))
                self._led = True
                answer = await call.read()
            if answer is grpc.aio.EOF:
                return
            if engines:
                log.info("the global scheduler knows this engine", extra={"address": self._address})
                introduced = engines[0]
            async with self._answered:
                self._told = asked
                self._answered.notify_all()
            yield
            period_s = self._busy_s if report.requests else self._idle_s
            await self._pause(min(period_s, answer.lease_ms / 1000 / REPORTS_A_LEASE))

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
