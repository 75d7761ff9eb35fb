"""The prefill engine of bench.overlap: prompts whose hit lies in a buffer elsewhere, one after the other.

python -m bench.overlap_prefill '{"engine": NAME, "synthetic_model": FILE, "descriptor": HEX, "hit": BLOCKS,
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
from services.fabric import _ring
from services.fabric.ring import Finish, RingClient, RingOwner, SlotState
from services.fabric.ring.layout import RECORD, unpack
from services.fabric.transports import open_region
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.kv_agent import AgentSettings, KvAgent, Peers, RingPrompts
from services.gpu_backend.kv_link import HAND_OVER_POLL_S
from services.gpu_backend.serving import Served, prepare
from services.gpu_backend.settings import BackendSettings
from services.kvstore.client import StoreClient

NO_STORE = "127.0.0.1:1"
"""Nothing of the hit is read here."""
LOOK_S, PATIENCE_S = 1e-3, 60.0
FLAGS = int(_ring.RecordFlags.IGNORE_EOS | _ring.RecordFlags.HAND_OVER | _ring.RecordFlags.NO_PERSIST)


class Buffer:
    """A DecodeSide that has the hit already, and takes what it is given."""

    def __init__(self, descriptor: str, hit: int) -> None:
        self._descriptor, self._hit = RegionDescriptor.FromString(bytes.fromhex(descriptor)), hit

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def open(self, transfer: int, block_bytes: int) -> tuple[RegionDescriptor, range]:
        return self._descriptor, range(self._hit)

    async def finish(self, transfer: int, first_token: int) -> None:
        return


class FrontEnd:
    def __init__(self, ring: RingOwner, vocab: int) -> None:
        ring.grant(share := ring.share(0))
        self._client = RingClient(open_region(ring.region.descriptor()), share)
        self._random, self._vocab, self._transfers = np.random.default_rng(0), vocab, 0

    async def prefill(self, hit: int, tokens: int) -> Any:
        """The slot's report of a prompt of `hit` blocks and so many tokens behind them."""
        client, share = self._client, self._client.share
        self._transfers += 1
        slots, word = np.array([share.slot_begin], np.uint64), client.read_words()[:1]
        generation = _ring.next_generation(int(unpack(word).generations[0]))
        record = np.zeros(1, RECORD)
        record["generation"], record["sequence"], record["flags"] = generation, client.submitted + 1, FLAGS
        record["prompt_begin"], record["prompt_count"] = share.prompt_begin, hit * PAGE_TOKENS + tokens
        record["token_begin"], record["max_tokens"], record["top_p"] = share.token_begin, 1, 1
        record["cached_tokens"], record["transfer"] = hit * PAGE_TOKENS, self._transfers
        prompt = self._random.integers(0, self._vocab, int(record["prompt_count"][0]), np.uint32)
        client.write_prompts(slots * 0 + share.prompt_begin, np.array([len(prompt)], np.uint64), prompt)
        client.write_records(slots, record)
        pending = np.array([_ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, generation, 0)], np.uint64)
        assert client.publish(slots, word, pending).all()
        give_up = time.monotonic() + PATIENCE_S
        while unpack(word := client.read_words()[:1]).states[0] != SlotState.DECODE_COMPLETED:
            if time.monotonic() > give_up:
                raise TimeoutError(f"a prompt was not prefilled in {PATIENCE_S:g} s")
            await asyncio.sleep(LOOK_S)
        finish, report = Finish(int(unpack(word).finishes[0])), client.read_reports(slots)[0]
        empty = np.array([_ring.slot_word(SlotState.EMPTY, Finish.NONE, generation, 0)], np.uint64)
        client.release(slots, word, empty)
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
