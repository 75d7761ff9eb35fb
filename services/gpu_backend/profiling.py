"""python -m services.gpu_backend.profiling: how long a prefill step of one prompt takes, by context and tokens (D13).

Prints a line of JSON a step, {"cached", "bsz", "seconds"}, after one with their number, {"steps"}. Takes the settings
of the engine's service, and --contexts, --chunks and --repeats. It is the engine as it serves: its scheduler, its
graphs, its pages. Only what the store would load is never loaded, as a step takes as long whatever its pages hold.
"""

import argparse
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from services.common import settings as settings_files
from services.common.settings import SettingError, require
from services.fabric.ring import EngineState, Finish, RingClient, SlotState
from services.fabric.ring.burst import Burst
from services.fabric.ring.layout import kv_reads
from services.fabric.transports import open_region
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.scheduler.orders import KvOrderKind
from services.gpu_backend.serving import Served, prepare
from services.gpu_backend.settings import BackendSettings

STEP_S = 120.0
LOOK_S = 100e-6
TEND_S = 0.5
NO_STORE = "127.0.0.1:1"
"""There must be one for prompts to have cached tokens; its orders are answered here."""


@dataclass(frozen=True, slots=True)
class Step:
    cached: int
    """Tokens whose KV is there; a multiple of 64."""
    bsz: int
    """Tokens computed."""


class Profiler:
    """The one front end of an engine that serves nobody else."""

    def __init__(self, served: Served) -> None:
        ring = served.ring
        ring.grant(ring.share(0))
        self._scheduler, self._vocab = served.scheduler, served.geometry.vocab
        self._client = RingClient(open_region(ring.region.descriptor()), ring.share(0))
        self._random = np.random.default_rng(0)
        self._scheduler.start()
        self._until(lambda: self._client.read_status().state is EngineState.SERVING)

    def seconds(self, step: Step) -> float:
        """From the launch of the step to its token. Raises RuntimeError if the engine did anything else."""
        prompt = self._random.integers(0, self._vocab, step.cached + step.bsz, np.uint32)
        burst = Burst(self._client, [prompt], [1])
        burst.records["cached_tokens"] = step.cached
        burst.records["kv_reads"] = kv_reads(0, step.cached // PAGE_TOKENS)
        burst.submit()
        self._until(lambda: burst.look().states[0] == SlotState.DECODE_COMPLETED)
        finish, report = Finish(int(burst.look().finishes[0])), self._client.read_reports(burst.slots)[0]
        burst.release()
        found = finish, int(report["prefill_chunks"]), int(report["cached_tokens"])
        if found != (Finish.LENGTH, 1, step.cached):
            raise RuntimeError(f"{step}: finish, chunks and cached tokens are {found}")
        return (int(report["first_token_ns"]) - int(report["prefill_ns"])) / 1e9

    def close(self) -> None:
        self._client.close()
        self._scheduler.stop(STEP_S)

    def _until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + STEP_S
        tend_at = 0.0
        while not condition():
            now = time.monotonic()
            if now > give_up:
                raise TimeoutError(f"the engine did not get there in {STEP_S:g} s")
            if now > tend_at:
                self._scheduler.tend()
                tend_at = now + TEND_S
            self._answer_orders()
            time.sleep(LOOK_S)

    def _answer_orders(self) -> None:
        orders = self._scheduler.orders
        fresh = orders.take()
        for order in fresh:
            if order["kind"] == KvOrderKind.LOAD:
                orders.answer_load(order, int(order["block_count"]))
        orders.release(len(fresh))


def grid(contexts: Sequence[int], chunks: Sequence[int], most: int) -> list[Step]:
    """Every pair that fits into a context of `most` tokens, the token that is sampled included."""
    return [Step(cached, bsz) for cached, bsz in itertools.product(contexts, chunks) if cached + bsz < most]


def profile(settings: BackendSettings, contexts: Sequence[int], chunks: Sequence[int], repeats: int) -> Iterator[str]:
    """The lines that this module prints. Raises SettingError."""
    require(all(cached % PAGE_TOKENS == 0 for cached in contexts), f"contexts: not all are multiples of {PAGE_TOKENS}")
    require(max(chunks) <= settings.most_step_tokens,
            f"chunks: {max(chunks)} tokens are more than a step's {settings.most_step_tokens}")  # fmt: skip
    alone = replace(settings, kvstore=NO_STORE, role="unified", lanes=1, slots=64, metrics_address="")
    served = prepare(alone, f"profile-{os.getpid()}", threading.Event())
    try:
        steps = grid(contexts, chunks, served.max_context) * repeats
        random.Random(0).shuffle(steps)  # what changes with time must not look like what changes with size
        profiler = Profiler(served)
        try:
            yield json.dumps({"steps": len(steps)})
            for step in {step.bsz: step for step in steps}.values():  # warm
                profiler.seconds(step)
            for step in steps:
                yield json.dumps({"cached": step.cached, "bsz": step.bsz, "seconds": profiler.seconds(step)})
        finally:
            profiler.close()
    finally:
        served.closing.close()


def main() -> int:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--contexts", type=int, nargs="+", required=True)
    parser.add_argument("--chunks", type=int, nargs="+", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    own, rest = parser.parse_known_args()
    try:
        settings = settings_files.load(BackendSettings, "gpu_backend", rest)
        for line in profile(settings, own.contexts, own.chunks, own.repeats):
            print(line, flush=True)
    except SettingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
