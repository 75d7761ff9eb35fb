"""Runs a workload: closed loop (so many at a time) or open loop (arrivals by a clock that waits for nobody)."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator

from services.cli.load.client import Timeline, send
from services.cli.load.connection import Connections, Target
from services.cli.load.workload import Request, Workload, requests

Done = Callable[[Timeline], None]
One = Callable[[Request], Coroutine[None, None, None]]


async def run(load: Workload, target: Target, done: Done) -> None:
    """Calls done() with each timeline, in the order of ending."""
    connections = Connections(target)

    async def one(request: Request) -> None:
        done(await send(connections, request.body))

    try:
        await (_open if load.rate else _closed)(load, one)
    finally:
        connections.close()


async def _closed(load: Workload, one: One) -> None:
    end = time.perf_counter() + load.duration_s if load.duration_s else float("inf")

    async def worker(todo: Iterator[Request]) -> None:
        for request in todo:
            if time.perf_counter() >= end:
                return
            await one(request)

    todo = requests(load)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(load.concurrency, load.requests)):
            tasks.create_task(worker(todo))


async def _open(load: Workload, one: One) -> None:
    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for request in requests(load):
            await asyncio.sleep(max(0.0, start + request.at_s - time.perf_counter()))
            tasks.create_task(one(request))
