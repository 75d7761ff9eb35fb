"""A tokenizer among fakes, in one process: engines that answer by script, and a global scheduler that is told."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hostless.v1 import frontend_pb2 as pb
from hostless.v1 import scheduler_pb2, scheduler_pb2_grpc
from services.common import rpc
from services.fabric.region import MemoryRegion
from services.fabric.ring import EngineState, Finish, RingGeometry, RingOwner, SlotState
from services.tokenizer import hf_encoder
from services.tokenizer.assembly import Tokenizer, running
from services.tokenizer.settings import TokenizerSettings
from tests.tokenizer.conftest import CHATML, toy_metadata
from tests.tokenizer.ring.fake_engine import FakeEngine
from tests.tokenizer.ring.fake_scheduler import FakeScheduler
from tests.tokenizer.service.streams import StreamClient, stream_client
from tests.waiting import PATIENCE_S, until

CONTEXT, VOCAB = 4096, 300
MODEL = "toy"

Script = Callable[[list[int], int, int], tuple[list[int], Finish]]
"""From prompt, seed and max_tokens to all tokens and the end."""


def echo_script(prompt: list[int], seed: int, max_tokens: int) -> tuple[list[int], Finish]:
    """The prompt again and again, up to max_tokens."""
    return [prompt[i % len(prompt)] for i in range(max_tokens)], Finish.LENGTH


class ScriptedScheduler(FakeScheduler):
    """Claims as ever; answers by script, `pace` tokens a turn."""

    def __init__(self, owner: RingOwner, script: Script) -> None:
        super().__init__(owner)
        self.script = script
        self.pace = 2
        self.prompts: list[list[int]] = []
        self.records: list[dict[str, Any]] = []

    def _claim(self, place: int, lease: Any, span: range) -> None:
        before = len(self.claimed)
        super()._claim(place, lease, span)
        for slot in self.claimed[before:]:
            record = self._records[slot]
            begin, count = int(record["prompt_begin"]), int(record["prompt_count"])
            prompt = self._prompts[begin : begin + count].tolist()
            self.prompts.append(prompt)
            self.records.append({name: record[name].tolist() for name in record.dtype.names})
            self._answers[slot] = self.script(prompt, int(record["seed"]), int(record["max_tokens"]))

    def turn(self, rng: Any = None, most: int = 0) -> bool:
        return super().turn(rng, self.pace)


class Engine(FakeEngine):
    """A fake engine with an address of its own; kill() is what SIGKILL does."""

    def __init__(self, name: str, folder: Path, model_path: Path, script: Script, slots: int, ttl_ms: int) -> None:
        geometry = RingGeometry(slots, 1 << 17, 1 << 17)
        self.region = MemoryRegion.create(name, geometry.size_bytes, directory=folder)
        self.epoch = 1
        owner = RingOwner(
            self.region, geometry, epoch=self.epoch, max_context=CONTEXT, vocab_size=VOCAB, page_count=1000
        )
        owner.set_engine_state(EngineState.SERVING)
        super().__init__(owner, ScriptedScheduler(owner, script), ttl_ms)
        self.name = name
        self.model_path = model_path
        self.address = ""
        self._stack = AsyncExitStack()

    @property
    def script(self) -> ScriptedScheduler:
        assert isinstance(self.scheduler, ScriptedScheduler)
        return self.scheduler

    @property
    def info(self) -> scheduler_pb2.EngineInfo:
        return scheduler_pb2.EngineInfo(
            engine_id=self.name,
            address=self.address,
            model=MODEL,
            epoch=self.epoch,
            page_tokens=64,
            page_count=1000,
            max_context=CONTEXT,
            vocab_size=VOCAB,
            kv_layout="toy-layout",
            model_path=str(self.model_path),
        )

    @property
    def empty(self) -> bool:
        """Every slot is free again."""
        states = self.owner.slot_states()
        return sum(states) == states[SlotState.EMPTY]

    async def start(self) -> None:
        self.address = await self._stack.enter_async_context(self.serve())

    async def kill(self) -> None:
        self.turning = False
        await self._stack.aclose()

    async def stop(self) -> None:
        await self.kill()
        self.region.close()


class FakeMesh(scheduler_pb2_grpc.GlobalSchedulerServicer):  # type: ignore[misc]
    """A global scheduler: watchers see `engines`; requests go to the first that is not excluded."""

    def __init__(self) -> None:
        self.engines: list[scheduler_pb2.EngineInfo] = []
        self.bursts: list[list[scheduler_pb2.ScheduleItem]] = []
        self.version = 0
        self.address = "127.0.0.1:0"
        self._changed = asyncio.Event()
        self._stack = AsyncExitStack()

    def show(self, engines: Sequence[Engine]) -> None:
        self.engines = [engine.info for engine in engines]
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[scheduler_pb2.PlacementTable]:
        while True:
            changed = self._changed
            yield scheduler_pb2.PlacementTable(version=self.version, engines=self.engines)
            await changed.wait()

    async def Schedule(self, request: scheduler_pb2.ScheduleRequest, context: Any) -> scheduler_pb2.ScheduleReply:
        self.bursts.append(list(request.items))
        return scheduler_pb2.ScheduleReply(placements=[self._place(item) for item in request.items])

    def _place(self, item: scheduler_pb2.ScheduleItem) -> scheduler_pb2.Placement:
        for info in self.engines:
            if info.model == item.model and info.engine_id not in item.exclude_engines:
                return scheduler_pb2.Placement(engine=info)
        return scheduler_pb2.Placement(refusal="no_live_engine: nobody left; try again")

    async def start(self) -> None:
        server = await self._stack.enter_async_context(
            rpc.serve(
                self.address,
                lambda server: scheduler_pb2_grpc.add_GlobalSchedulerServicer_to_server(self, server),
                ["hostless.v1.GlobalScheduler"],
                grace_s=0,
            )
        )
        self.address = f"127.0.0.1:{server.port}"

    async def stop(self) -> None:
        await self._stack.aclose()


class Rig:
    """The tokenizer, its fakes, and a client that stands for the gateway."""

    def __init__(self, mesh: FakeMesh, engines: list[Engine], tokenizer: Tokenizer, client: StreamClient) -> None:
        self.mesh = mesh
        self.engines = engines
        self.tokenizer = tokenizer
        self.client = client

    @property
    def engine(self) -> Engine:
        return self.engines[0]

    async def collect(self, submit: pb.Submit) -> tuple[str, pb.Delta]:
        """All text of a request, and its last delta."""
        with self.client.stream(submit) as stream:
            deltas = [delta async for delta in stream]
        assert all(delta.finish == pb.FINISH_NONE for delta in deltas[:-1])
        assert sum(delta.tokens for delta in deltas) == deltas[-1].usage.completion_tokens
        return "".join(delta.text for delta in deltas), deltas[-1]

    async def at_rest(self) -> None:
        """Waits until nothing of any request is left, here or in a ring that turns."""
        links = self.tokenizer.pool.links
        await until(lambda: self.tokenizer.service.running == 0)
        await until(lambda: not any(link.flights or link.waiting for link in links.values()))
        await until(lambda: all(engine.empty for engine in self.engines if engine.turning))


@asynccontextmanager
async def make_rig(
    folder: Path,
    *,
    engines: int = 1,
    script: Script = echo_script,
    slots: int = 64,
    ttl_ms: int = 60_000,
    template: str = CHATML,
    **settings: Any,
) -> AsyncIterator[Rig]:
    model_path = folder / MODEL
    model_path.mkdir()
    write_model(model_path, template)
    async with AsyncExitStack() as stack:
        mesh = FakeMesh()
        await mesh.start()
        stack.push_async_callback(mesh.stop)
        made = [Engine(f"engine-{i}", folder, model_path, script, slots, ttl_ms) for i in range(engines)]
        for engine in made:
            await engine.start()
            stack.push_async_callback(engine.stop)
        mesh.show(made)
        defaults: dict[str, Any] = {
            "scheduler": mesh.address,
            "metrics_address": "",
            "address": "127.0.0.1:0",
            "schedule_s": PATIENCE_S,
        }
        tokenizer = await stack.enter_async_context(running(TokenizerSettings(**(defaults | settings))))
        client = await stack.enter_async_context(stream_client(f"127.0.0.1:{tokenizer.port}"))
        rig = Rig(mesh, made, tokenizer, client)
        async with asyncio.timeout(60):
            while not client.connected:  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.01)
            while engines and not (await client.describe()).ready:  # noqa: ASYNC110 - asked over the network
                await asyncio.sleep(0.01)
        await until(lambda: len(tokenizer.pool.links) == engines)
        yield rig


def write_model(folder: Path, template: str = CHATML) -> None:
    """The toy vocabulary and a chat template, as HuggingFace files."""
    hf_encoder.from_gguf(toy_metadata())._trusting.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}')
    (folder / "generation_config.json").write_text('{"temperature": 0.75, "top_k": 20}')
    (folder / "chat_template.jinja").write_text(template)


def submit(text: str = "hello", *, max_tokens: int | None = 8, **fields: Any) -> pb.Submit:
    sampling = fields.pop("sampling", {})
    return pb.Submit(
        request_id=fields.pop("request_id", "r"),
        model=fields.pop("model", MODEL),
        text=text,
        sampling=pb.Sampling(**({"temperature": 0.0, "max_tokens": max_tokens} | sampling)),
        **fields,
    )
