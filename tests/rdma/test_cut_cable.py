"""Two engines, one of them behind a cable that is cut: the streams of the other go on while the front end finds out."""

import asyncio
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from tests.mesh.harness import Client, mesh_of
from tests.rdma.cable import cut
from tests.rdma.mesh_by_rdma import PATIENCE, MeshByRdma, needs_cable, patient_client

pytestmark = [needs_cable, pytest.mark.model]

STREAMS, TOKENS = 4, 60
BESIDE = "gpu_backend-1"
SERVES_S = 120.0


class MeshWithOneBeside(MeshByRdma):
    """The second engine is reached by shared memory, the first by RDMA."""

    def environ_of(self, name: str) -> dict[str, str]:
        return {"HOSTLESS_GPU_BACKEND_TRANSPORT": "shm" if name == BESIDE else "verbs", **super().environ_of(name)}


async def test_streams_of_another_engine_go_on(tmp_path: Path) -> None:
    options = MeshOptions(engine="synthetic", engines=2, rate=10, kvstore=False)
    seen, since_the_cut = [0] * STREAMS, [0] * STREAMS

    def heard(number: int) -> None:
        seen[number] += 1
        since_the_cut[number] += 1

    async with mesh_of(MeshWithOneBeside, tmp_path, options, **PATIENCE) as running, patient_client(running) as c:
        await c.until("the mesh serves", lambda: serves(c), SERVES_S)
        streams = [
            asyncio.create_task(
                c.complete(f"{number}", max_tokens=TOKENS, ignore_eos=True, on_text=lambda _, n=number: heard(n))  # type: ignore[misc]
            )
            for number in range(STREAMS)
        ]

        async def all_flow() -> bool:
            return min(seen) > 3

        async def others_go_on() -> bool:
            return sorted(since_the_cut)[STREAMS // 2] > 3

        await c.until("every stream has begun", all_flow, SERVES_S)
        with cut():
            since_the_cut[:] = [0] * STREAMS
            await c.until("half of the streams go on", others_go_on, SERVES_S)
            assert '"moved"' not in running.log("tokenizer")  # the front end still waits for the network
            await c.until("the engine is given up", lambda: moved(c), SERVES_S)
        assert [answer.finish for answer in await asyncio.gather(*streams)] == ["length"] * STREAMS


async def serves(c: Client) -> bool:
    return (await c.complete("Hi", max_tokens=1)).finish == "length"


async def moved(c: Client) -> bool:
    return '"moved"' in c.mesh.log("tokenizer")
