"""A whole mesh of real processes for tests: started from the CLI's own plan, then hurt on purpose."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import aiohttp

from services.cli.mesh.plan import MeshOptions, ServicePlan, mesh_plan, ports_needed
from services.cli.mesh.ports import free_ports
from services.cli.mesh.process import Child
from services.cli.mesh.readiness import until_ready

STOP_S = 60.0
SHORT_LEASES = {
    "HOSTLESS_GPU_BACKEND_LEASE_TTL_MS": "1500",
    "HOSTLESS_GLOBAL_SCHEDULER_LEASE_MS": "1500",
    "HOSTLESS_GPU_BACKEND_IDLE_REPORT_MS": "250",
    "HOSTLESS_TOKENIZER_KV_LEASE_S": "15",
    "HOSTLESS_KVSTORE_TICKET_S": "10",
}
"""Who dies, or stands still, is given up soon, and what it held is free again."""
PATIENT = {
    "HOSTLESS_TOKENIZER_ENGINE_WAIT_S": "60",
    "HOSTLESS_TOKENIZER_SCHEDULE_S": "20",
    "HOSTLESS_TOKENIZER_KV_LOOKUP_S": "20",
    "HOSTLESS_GPU_BACKEND_LOAD_DEADLINE_S": "20",
}
"""Where hits and their bytes are counted: on a machine that is busy a store that answers late is still no miss."""
SPLIT = {"HOSTLESS_GLOBAL_SCHEDULER_SPLIT_READS": "1"}


@dataclass
class Mesh:
    """Services by name ("gateway", "gpu_backend-0", ...). Everything it started ends with `stop`."""

    start_s: ClassVar[float] = 120.0

    plans: dict[str, ServicePlan]
    folder: Path
    environ: Mapping[str, str]
    children: dict[str, Child] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.plans['gateway'].address}"

    def launch(self, name: str) -> None:
        self.children[name] = Child(self.plans[name].command, self.folder / f"{name}.log", self.environ)

    async def ready(self, name: str) -> None:
        plan, child = self.plans[name], self.children[name]
        probe, death = asyncio.ensure_future(until_ready(plan)), asyncio.ensure_future(child.wait())
        await asyncio.wait((probe, death), return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if not probe.done():
            probe.cancel()
            raise AssertionError(f"{name} died while starting:\n{self.log(name)[-4000:]}")
        await probe

    async def start(self) -> None:
        for name in self.plans:
            self.launch(name)
        async with asyncio.timeout(self.start_s), asyncio.TaskGroup() as group:
            for name in self.plans:
                group.create_task(self.ready(name))

    async def stop(self) -> None:
        """Stops all in reverse order; raises if one had to be killed."""
        stuck = []
        for name in reversed(list(self.children)):
            self.signal(name, signal.SIGCONT)
            if not await self.children[name].stop(STOP_S):
                stuck.append(name)
        assert not stuck, f"did not stop within {STOP_S} s of SIGTERM: {stuck}"

    def signal(self, name: str, number: signal.Signals) -> None:
        if not self.children[name].ended:
            os.kill(self.children[name].pid, number)

    async def kill(self, name: str) -> None:
        self.children[name].kill()
        await self.children[name].wait()

    async def restart(self, name: str) -> None:
        self.launch(name)
        await self.ready(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@asynccontextmanager
async def mesh(folder: Path, options: MeshOptions, **environ: str) -> AsyncIterator[Mesh]:
    """A running mesh with its own store and shared-memory folders under `folder`."""
    async with mesh_of(Mesh, folder, options, **environ) as running:
        yield running


@asynccontextmanager
async def mesh_of(kind: type[Mesh], folder: Path, options: MeshOptions, **environ: str) -> AsyncIterator[Mesh]:
    """As `mesh`, of another kind."""
    shm = Path("/dev/shm") / f"hostless-test-{os.getpid()}-{folder.name}"
    shm.mkdir(exist_ok=True)
    own = {"HOSTLESS_STORE": str(folder / "store"), "HOSTLESS_SHM": str(shm), "HOSTLESS_PARENT": str(os.getpid())}
    with free_ports(ports_needed(options) + 1, "127.0.0.1") as [port, *inner]:
        plans = mesh_plan(replace(options, port=port), inner)
        running = kind({plan.name: plan for plan in plans}, folder, {**os.environ, **own, **environ})
        try:
            await running.start()
            yield running
        finally:
            try:
                await running.stop()
            finally:
                for left in shm.iterdir():
                    left.unlink()
                shm.rmdir()


@dataclass
class Answer:
    """What a client saw of one streamed completion."""

    text: str = ""
    finish: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    status: int = 0

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.error is not None


class Client:
    """The mesh's HTTP side, in as few words as tests need."""

    def __init__(self, mesh: Mesh, session: aiohttp.ClientSession) -> None:
        self.mesh, self.session = mesh, session

    async def complete(
        self, prompt: str | list[int] = "Hello", *, on_text: Callable[[str], None] | None = None, **body: Any
    ) -> Answer:
        """POST /v1/completions, streamed; returns when the stream has ended in whatever way."""
        body = {
            "model": body.get("model") or await self.model(),
            "prompt": prompt,
            "stream": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        return await self._stream("/v1/completions", body, lambda choice: choice["text"], on_text)

    async def chat(self, messages: list[dict[str, str]], **body: Any) -> Answer:
        """POST /v1/chat/completions, streamed."""
        body = {
            "model": await self.model(),
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **body,
        }
        return await self._stream(
            "/v1/chat/completions", body, lambda choice: choice["delta"].get("content") or "", None
        )

    async def _stream(
        self, path: str, body: dict[str, Any], text_of: Callable[[Any], str], on_text: Callable[[str], None] | None
    ) -> Answer:
        answer = Answer()
        async with self.session.post(self.mesh.url + path, json=body) as response:
            answer.status = response.status
            if response.status != 200:
                answer.error = (await response.json())["error"]
                return answer
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                answer.error = event.get("error", answer.error)
                answer.usage = event.get("usage") or answer.usage
                for choice in event.get("choices", ()):
                    answer.text += (piece := text_of(choice))
                    answer.finish = choice["finish_reason"] or answer.finish
                    if on_text and piece:
                        on_text(piece)
        return answer

    async def model(self) -> str:
        async with self.session.get(self.mesh.url + "/v1/models") as response:
            return str((await response.json())["data"][0]["id"])

    async def metrics(self) -> dict[str, float]:
        """Samples of /metrics, keyed as printed, without the prefix `hostless:`."""
        async with self.session.get(self.mesh.url + "/metrics") as response:
            text = await response.text()
        return {m[1]: float(m[2]) for m in re.finditer(r"^hostless:(\S+) (\S+)$", text, re.M)}

    async def busy_slots(self) -> dict[str, float]:
        """Slots that are not empty, by state, over all live engines."""
        found = re.compile(r'slot_state\{.*state="(\w+)"')
        busy: dict[str, float] = {}
        for name, value in (await self.metrics()).items():
            if (match := found.match(name)) and match[1] != "empty" and value:
                busy[match[1]] = busy.get(match[1], 0) + value
        return busy

    async def until(self, what: str, condition: Callable[[], Awaitable[Any]], timeout_s: float = 60.0) -> None:
        """Waits until `condition` is true; it may fail meanwhile, as services come and go."""
        last: Any = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        if last := await condition():
                            return
                    except (aiohttp.ClientError, KeyError, IndexError, json.JSONDecodeError) as error:
                        last = error
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s: {what} (last: {last!r})") from None

    async def until_it_serves(self, timeout_s: float = 60.0) -> None:
        async def serves() -> bool:
            return (await self.complete("Hi", max_tokens=1)).finish == "length"

        await self.until("the mesh serves", serves, timeout_s)

    async def until_idle(self, timeout_s: float = 60.0) -> None:
        async def idle() -> bool:
            return not await self.busy_slots()

        await self.until("all slots empty", idle, timeout_s)


@asynccontextmanager
async def client(mesh: Mesh) -> AsyncIterator[Client]:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        yield Client(mesh, session)
