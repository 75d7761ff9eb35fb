"""The prefill engine of bench.overlap: prompts whose hit lies in a buffer elsewhere, one after the other.

python -m bench.engine.prefill '{"engine": NAME, "synthetic_model": FILE, "descriptor": HEX, "hit": BLOCKS,
    "tokens": N, "layers": BOOL, "repeats": N, "threads": N}' prints a row a prompt, in JSON.
"""

import asyncio
import json
import os
import sys
import threading
import time
from typing import Any, cast

import numpy as np

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.ring import Finish, RecordFlags, RingClient, RingOwner, SlotState
from services.fabric.ring.burst import Burst
from services.fabric.transports import open_region
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.kv_agent import AgentSettings, KvAgent, Peers, RingPrompts
from services.gpu_backend.kv_agent.buffer_place import BufferPlace
from services.gpu_backend.kv_link import HAND_OVER_POLL_S
from services.gpu_backend.serving import Served, prepare
from services.gpu_backend.settings import BackendSettings
from services.kvstore.client import StoreClient

NO_STORE = "127.0.0.1:1"
"""Nothing of the hit is read here."""
LOOK_S, PATIENCE_S = 1e-3, 60.0
FLAGS = int(RecordFlags.IGNORE_EOS | RecordFlags.HAND_OVER | RecordFlags.NO_PERSIST)


class Buffer:
    """A DecodeSide that has the hit already, and takes what it is given."""

    def __init__(self, descriptor: str, hit: int) -> None:
        self._descriptor, self._hit = RegionDescriptor.FromString(bytes.fromhex(descriptor)), hit
        self.changed = asyncio.Event()

    async def run(self) -> None:
        await asyncio.Event().wait()

    def lives(self, engine: int) -> bool:
        return True

    async def open(self, transfer: int, block_bytes: int, machine: str) -> tuple[BufferPlace, range]:
        return BufferPlace(self._descriptor, self._descriptor.length // block_bytes), range(self._hit)

    async def finish(self, transfer: int, first_token: int) -> None:
        return


class FrontEnd:
    def __init__(self, ring: RingOwner, vocab: int) -> None:
        ring.grant(share := ring.share(0))
        self._client = RingClient(open_region(ring.region.descriptor()), share)
        self._random, self._vocab, self._transfers = np.random.default_rng(0), vocab, 0

    async def prefill(self, hit: int, tokens: int) -> Any:
        """The slot's report of a prompt of `hit` blocks and so many tokens behind them."""
        self._transfers += 1
        prompt = self._random.integers(0, self._vocab, hit * PAGE_TOKENS + tokens, np.uint32)
        burst = Burst(self._client, [prompt], [1])
        burst.records["flags"], burst.records["transfer"] = FLAGS, self._transfers
        burst.records["cached_tokens"] = hit * PAGE_TOKENS
        burst.submit()
        give_up = time.monotonic() + PATIENCE_S
        while burst.look().states[0] != SlotState.DECODE_COMPLETED:
            if time.monotonic() > give_up:
                raise TimeoutError(f"a prompt was not prefilled in {PATIENCE_S:g} s")
            await asyncio.sleep(LOOK_S)
        finish, report = Finish(int(burst.look().finishes[0])), self._client.read_reports(burst.slots)[0]
        burst.release()
        if (finish, int(report["cached_tokens"])) != (Finish.HANDED_OVER, hit * PAGE_TOKENS):
            raise RuntimeError(f"finish {finish}, {report['cached_tokens']} cached tokens")
        return report


async def run(served: Served, wanted: dict[str, Any]) -> None:
    assert served.kv_pages
    async with StoreClient(NO_STORE) as store:
        agent = KvAgent(
            served.scheduler.orders, RingPrompts(served.ring), served.kv_pages, store,
            AgentSettings(idle_poll_s=HAND_OVER_POLL_S, layers_s=PATIENCE_S), served.region_name,
            served.regions, served.geometry.layers, cast(Peers, Buffer(wanted["descriptor"], wanted["hit"])),
            served.scheduler.layers if wanted["layers"] else None,
        )  # fmt: skip
        moving = asyncio.create_task(agent.run())
        await asyncio.sleep(0)
        served.scheduler.start()
        front_end = FrontEnd(served.ring, served.geometry.vocab)
        for _ in range(wanted["repeats"]):
            report = await front_end.prefill(wanted["hit"], wanted["tokens"])
            claimed, begun, done = (int(report[f"{name}_ns"]) for name in ("claimed", "prefill", "first_token"))
            row = {"before_step_s": (begun - claimed) / 1e9, "step_s": (done - begun) / 1e9}
            print(json.dumps(row | {"total_s": (done - claimed) / 1e9}), flush=True)
        moving.cancel()
        await asyncio.wait((moving,))
    served.scheduler.stop(PATIENCE_S)


def main(wanted: dict[str, Any]) -> None:
    context = wanted["hit"] * PAGE_TOKENS + wanted["tokens"] + PAGE_TOKENS
    settings = BackendSettings(
        engine=wanted["engine"], synthetic_model=wanted["synthetic_model"], role="prefill", kvstore=NO_STORE,
        threads=wanted["threads"], lanes=1, slots=64, max_context=context, step_tokens=wanted["tokens"],
        kv_pages=-(-context // PAGE_TOKENS), metrics_address="",
    )  # fmt: skip
    served = prepare(settings, f"overlap-{os.getpid()}", threading.Event())
    try:
        asyncio.run(run(served, wanted))
    finally:
        served.closing.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
