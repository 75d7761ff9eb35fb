"""The live scheduler as a process on one core, under 1,152 engines: 144 leaders' streams, and Schedule calls."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

from bench.common.readings import cpu_s
from bench.placing.load import RATE, REPORT_S, Ledger, engines, requests, take
from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.client import SchedulerClient
from services.global_scheduler.policy.state import Engine, Placement, ReadPath, Role

BURST = 64
CALLERS = 8
ROLES = {Role.PREFILL: pb.ROLE_PREFILL, Role.DECODE: pb.ROLE_DECODE}


def measure_service(seconds: float, policy: str = "dualpath", count: int = 1152) -> dict[str, float | str]:
    """Asks for 10,000 n / 1,152 placements a second; says how many came, and the service's CPU time."""
    return asyncio.run(_measure(seconds, policy, count))


async def _measure(seconds: float, policy: str, count: int) -> dict[str, float | str]:
    cores = sorted(os.sched_getaffinity(0))
    async with _service(policy, cores[-1]) as (pid, address):
        os.sched_setaffinity(0, cores[:-1] or cores)
        load = _Load(address, count)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(load.lead(group)) for group in load.groups.values()]
            await load.introduced()
            running += [tasks.create_task(load.call(RATE * count / CALLERS)) for _ in range(CALLERS)]
            await asyncio.sleep(4)  # until the engines are full
            placed, refused, cpu, begun = load.placed, load.refused, cpu_s(pid), time.perf_counter()
            load.latencies.clear()
            await asyncio.sleep(seconds)
            wall, cpu = time.perf_counter() - begun, cpu_s(pid) - cpu
            placed, refused = load.placed - placed, load.refused - refused
            memory = _resident_bytes(pid)
            for task in running:
                task.cancel()
        os.sched_setaffinity(0, cores)
    latencies = sorted(load.latencies)
    found: dict[str, float | str] = {
        "policy": policy,
        "engines": count,
        "placements_per_s": placed / wall,
        "asked_per_s": RATE * count,
        "refused": refused,
        "reports_per_s": count / REPORT_S,
        "cores_used": cpu / wall,
        "placements_per_core_s": placed / cpu,
        "call_p50_ms": 1e3 * latencies[len(latencies) // 2],
        "call_p99_ms": 1e3 * latencies[len(latencies) * 99 // 100],
        "resident_mib": memory / 2**20,
    }
    print(json.dumps(found, indent=1))
    return found


class _Load:
    def __init__(self, address: str, count: int) -> None:
        self.groups: dict[str, list[Engine]] = {}
        for engine in engines(count):
            self.groups.setdefault(engine.group_id, []).append(engine)
        self.placed = self.refused = 0
        self.latencies: list[float] = []
        self._clients = [SchedulerClient(address) for _ in range(4)]
        self._ledgers = {engine.engine_id: Ledger() for group in self.groups.values() for engine in group}
        self._requests = requests()
        self._unknown = len(self.groups)
        self._all_known = asyncio.Event()

    async def introduced(self) -> None:
        await asyncio.wait_for(self._all_known.wait(), 60)

    async def lead(self, group: list[Engine]) -> None:
        number = int(group[0].group_id.removeprefix("node"))
        call = self._clients[number % len(self._clients)].lead()
        await call.write(
            pb.LeaderUp(group_id=group[0].group_id, engines=map(_info, group), reports=self._reports(group))
        )
        await call.read()
        self._unknown -= 1
        if not self._unknown:
            self._all_known.set()
        await asyncio.sleep(REPORT_S * number / len(self.groups))
        due = time.perf_counter()
        while True:
            await call.write(pb.LeaderUp(group_id=group[0].group_id, reports=self._reports(group)))
            await call.read()
            due += REPORT_S
            await asyncio.sleep(due - time.perf_counter())

    def _reports(self, group: list[Engine]) -> list[pb.EngineReport]:
        now = time.perf_counter()
        made = []
        for engine in group:
            load = self._ledgers[engine.engine_id].report(now)
            made.append(
                pb.EngineReport(
                    engine_id=engine.engine_id,
                    requests=load.requests,
                    tokens=load.tokens,
                    read_queue_tokens=load.read_queue_tokens,
                    free_pages=max(load.free_pages, 0),
                    accepting=True,
                )
            )
        return made

    async def call(self, rate: float) -> None:
        client, due = self._clients[0], time.perf_counter()
        while True:
            asked = list(islice(self._requests, BURST))
            items = [
                pb.ScheduleItem(
                    request_id=request.request_id,
                    model=request.model,
                    prompt_tokens=request.prompt_tokens,
                    cached_tokens=request.cached_tokens,
                    max_tokens=request.max_tokens,
                )
                for request in asked
            ]
            begun = time.perf_counter()
            placements = await client.schedule(items, timeout_s=5)
            now = time.perf_counter()
            self.latencies.append(now - begun)
            for request, placement in zip(asked, placements, strict=True):
                if placement.refusal:
                    self.refused += 1
                    continue
                self.placed += 1
                names = placement.engine.engine_id, placement.decode.engine_id
                reads = placement.prefill_read_tokens, placement.decode_read_tokens
                chosen = Placement(request.request_id, *names, ReadPath.PREFILL, *reads)
                take(self._ledgers, chosen, request.prompt_tokens, now)
            due = max(due + BURST / rate, now - 1)
            await asyncio.sleep(due - time.perf_counter())


def _info(engine: Engine) -> pb.EngineInfo:
    return pb.EngineInfo(
        engine_id=engine.engine_id,
        address="127.0.0.1:1",
        role=ROLES[engine.role],
        model=engine.model,
        epoch=1,
        page_tokens=engine.page_tokens,
        page_count=engine.page_count,
        max_context=engine.max_context,
        node_id=engine.node_id,
    )


@asynccontextmanager
async def _service(policy: str, core: int) -> AsyncIterator[tuple[int, str]]:
    """The process, held to one core."""
    argv = ("-m", "services.global_scheduler", "--address", "127.0.0.1:0", "--metrics-address", "", "--policy", policy)
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(sys.executable, *argv, "--lease-ms", "60000", stderr=pipe)
    try:
        os.sched_setaffinity(running.pid, {core})
        assert running.stderr
        async with asyncio.timeout(30):
            async for line in running.stderr:
                told = json.loads(line)
                if told["message"] == "serving":
                    break
        yield running.pid, f"127.0.0.1:{told['port']}"
    finally:
        running.kill()
        await running.communicate()


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
