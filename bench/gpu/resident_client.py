"""An engine's process (resident_engine.py), and this process as its front end, by the ring they share."""

import json
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.common.readings import cpu_s
from bench.gpu.energy import Energy
from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.ring import EngineState, Finish, RingClient, SlotState
from services.fabric.ring.burst import Burst
from services.fabric.ring.layout import Share
from services.fabric.transports import open_region

ROOT = Path(__file__).parents[2]
_START_S, _RUN_S, _END_S = 120.0, 60.0, 40.0
_LOOK_S = 200e-6


@dataclass
class Ran:
    """A burst of requests. Times in seconds; those of reports are the scheduler's own."""

    tokens: list[list[int]]
    client_s: float
    scheduler_s: float
    first: NDArray[Any]
    steps: tuple[int, int]
    """Numbers of the last step before the run, and of its last one."""
    cpu_s: float
    joules: float | None


class Engine:
    """An engine's process and this process's share of its ring."""

    def __init__(self, form: str, folder: Path, *, layers: int, deadline_s: float, **others: Any) -> None:
        self.form, self._stamps = form, folder / f"{form}.npy"
        wanted = {
            "form": form, "layers": layers, "small": False, "stamps": str(self._stamps),
            "name": "gpu-resident", "deadline_s": deadline_s, **others,
        }  # fmt: skip
        command = [sys.executable, "-m", "bench.gpu.resident_engine", json.dumps(wanted)]
        self._energy = Energy()
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        try:
            self.started = self._answer(_START_S)
            descriptor = RegionDescriptor.FromString(bytes.fromhex(self.started["descriptor"]))
            self._client = RingClient(open_region(descriptor), Share(**self.started["share"]))
            give_up = time.monotonic() + 10
            while self._client.read_status().state is not EngineState.SERVING:
                if time.monotonic() > give_up:
                    raise TimeoutError(f"the {form} scheduler does not serve: {self._client.read_status()}")
                time.sleep(1e-3)
        except BaseException:
            self._kill()
            raise
        self.stamps: NDArray[np.int64] = np.empty(0, np.int64)
        self.last: dict[str, int] = {}

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                raise TimeoutError(f"the {self.form} engine has not answered within {timeout_s:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {self.form} engine ended with {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def traffic(self, command: str) -> dict[str, Any]:
        """Of kv_traffic_mover.py, to the engine's process."""
        self._tell(command)
        return self._answer(30)

    def counters(self) -> dict[str, int]:
        time.sleep(0.02)  # a report of the scheduler on the GPU may be some ms old
        self._tell("steps")
        return self._answer(20)

    def steps(self) -> int:
        return self.counters()["stamped"]

    def cpu_s(self) -> float:
        return cpu_s(self.started["pid"])

    def run(self, prompts: Sequence[NDArray[np.uint32]], most: int) -> Ran:
        """All prompts at once, greedily, `most` tokens each."""
        return self.open_loop([0.0] * len(prompts), prompts, [most] * len(prompts))

    def open_loop(self, arrivals: Sequence[float], prompts: Sequence[NDArray[np.uint32]], most: Sequence[int]) -> Ran:
        """Each prompt at its time, in seconds from the begin, greedily; waits for all."""
        n, first_step = len(prompts), self.steps()
        burst, sent = Burst(self._client, prompts, most), 0
        first = np.zeros(n)
        cpu, joules, begin = self.cpu_s(), self._energy.joules(), time.perf_counter()
        while True:
            due = int(np.searchsorted(arrivals, time.perf_counter() - begin, side="right"))
            if due > sent:
                burst.submit(slice(sent, due))
                sent = due
            found = burst.look()
            now = time.perf_counter() - begin
            first[(first == 0) & (found.tokens > 0)] = now
            if sent == n and (found.states == SlotState.DECODE_COMPLETED).all():
                break
            if now > _RUN_S:
                raise TimeoutError(f"{self.form}: not finished in {_RUN_S:g} s: {found}, {self.counters()}")
            time.sleep(_LOOK_S)
        cpu, later = self.cpu_s() - cpu, self._energy.joules()
        if (found.finishes != Finish.LENGTH).any():
            raise RuntimeError(f"{self.form}: finished with {found.finishes.tolist()}, {self.counters()}")
        tokens, reports = burst.answers(), self._client.read_reports(burst.slots)
        burst.release()
        span = int(reports["finished_ns"].max()) - int(reports["claimed_ns"].min())
        return Ran(
            tokens, now, span / 1e9, first - np.asarray(arrivals), (first_step, self.steps()), cpu,
            None if joules is None or later is None else later - joules,
        )  # fmt: skip

    def end(self) -> None:
        self._tell("end")
        self.last = self._answer(_END_S)
        if code := self._process.wait(_END_S):
            raise RuntimeError(f"the {self.form} engine ended with {code}")
        self.stamps = np.load(self._stamps)

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                self.end()
        finally:
            self._kill()
