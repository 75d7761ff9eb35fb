"""Runs a workload: closed loop (so many at a time) or open loop (arrivals by a clock that waits for nobody)."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator

import aiohttp

from services.cli.load.client import Timeline, send
from services.cli.load.workload import Request, Workload, requests

Done = Callable[[Timeline], None]
One = Callable[[Request], Coroutine[None, None, None]]


async def run(load: Workload, url: str, api_key: str, timeout_s: float, done: Done) -> list[Timeline]:
    """All timelines of the load on `url` (the server's root), in the order of ending; done() is called with each.

    A stream that is silent for `timeout_s` counts as failed.
    """
    timelines: list[Timeline] = []

    def ended(timeline: Timeline) -> None:
        timelines.append(timeline)
        done(timeline)

    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=timeout_s)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        headers=headers, timeout=timeout, connector=connector, read_bufsize=1 << 20
    ) as session:

        async def one(request: Request) -> None:
            ended(await send(session, url + load.path, request.body))

        await (_open if load.rate else _closed)(load, one)
    return timelines


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
