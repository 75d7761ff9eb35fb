"""How soon the scheduler on the GPU sees a doorbell, for bench.gpu_scheduler."""

import random
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.gpu.scheduler_rig import Client, serving, spread, word_at
from services.fabric._ring import SlotState
from services.gpu_backend.device.device_scheduler import DeviceScheduler
from services.gpu_backend.device.driver import Arguments, Device, MappedMemory, Module, Stream
from services.gpu_backend.device.ring_memory import HostRing

COMPARED = 50
"""Submits between two comparisons of clocks."""


class Clocks:
    """Unix minus GPU time, as two who write to each other tell it: from the quickest of many exchanges, in whose
    middle the GPU looked at its clock. It is off by less than half that exchange. Made before a scheduler runs."""

    def __init__(self, module: Module, stream: Stream) -> None:
        self._function, self._stream, self._page = module.function("echo"), stream, MappedMemory(4096)
        self._words = [word_at(self._page.view[64 * i :]) for i in range(3)]
        self.readings: list[tuple[int, int]] = []
        """When, in unix time, and the difference then; both in ns."""
        self.longest_exchange_ns = 0
        self.read()

    def read(self, times: int = 500) -> None:
        address, count = np.array([self._page.address], np.uint64), np.array([times], np.uint32)
        for word in self._words:
            word.value = 0
        self._stream.launch(self._function, 1, 1, Arguments([address, count]))
        best = (1 << 62, 0, 0)
        for i in range(1, times + 1):
            before = time.time_ns()
            self._words[0].value = i
            while self._words[2].value != i:
                pass
            after = time.time_ns()
            middle = (before + after) // 2
            best = min(best, (after - before, middle, middle - self._words[1].value))
        self._stream.wait()
        self.readings.append(best[1:])
        self.longest_exchange_ns = max(self.longest_exchange_ns, best[0])

    def difference(self, at: NDArray[np.int64]) -> NDArray[np.float64]:
        times, differences = np.array(self.readings, np.int64).T
        first = differences[0]  # float64 has not room for unix time in ns
        found: NDArray[np.float64] = np.interp(at - times[0], times - times[0], differences - first)
        return found

    def close(self) -> None:
        self._page.close()


def doorbells(
    device: Device, module: Module, stream: Stream, step_us: int, times: int,
    scheduler: type[DeviceScheduler] = DeviceScheduler,
) -> dict[str, Any]:  # fmt: skip
    """Submits, at any moment of a decode of `step_us` a step. `seen`: the turn that claims the request began.

    The clocks of host and GPU drift apart by some microseconds a second, and not evenly: they are compared over and
    over.
    """
    clocks = Clocks(module, stream)
    with serving(device, 1000 * step_us, HostRing, scheduler=scheduler) as rig:
        client, dice = Client(rig, 2500), random.Random(1)
        client.write(0, 4, 8000)  # as long as four slots have room
        client.ring()
        rig.until(lambda: rig.scheduler.counters()["decode_launches"] > 5)
        shift = int(rig.scheduler._mission["clock_offset_ns"][0])
        rungs, claims, answered = [], [], []
        for i in range(times):
            if i % COMPARED == 0:
                clocks.read()
            slot = 4 + i % 400
            until = time.perf_counter_ns() + dice.randrange(2000 * step_us)
            generation = client.write(slot, 1, 1)
            word, bell = word_at(client.words[slot : slot + 1]), word_at(client.bells)
            before, count = word.value, client.bell
            while time.perf_counter_ns() < until:
                pass
            rung = time.time_ns()
            bell.value = count
            while word.value == before:
                pass
            answered.append(time.time_ns() - rung)
            while client.state(slot) != SlotState.DECODE_COMPLETED:
                pass
            rungs.append(rung)
            claims.append((int(client.reports[slot]["claimed_ns"]) - shift) % (1 << 64))
            client.clear(slot, generation)
        clocks.read()
        done = rig.scheduler.counters()
    clocks.close()
    bells, first = np.array(rungs, np.int64), clocks.readings[0][1]
    seen = (np.array(claims, np.int64) + first - bells) + clocks.difference(bells)
    return {
        "step_us": step_us, "seen_us": spread(seen),
        "clocks_agree_within_us": round(clocks.longest_exchange_ns / 2000, 2),
        "claim_visible_to_front_end_us": spread(np.array(answered)),
        "decode_steps_meanwhile": done["decode_launches"], "still_decoding": done["running"],
    }  # fmt: skip
