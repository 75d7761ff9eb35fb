"""The scheduler that lives on the GPU (B1-B6): set up here, started here, and from then on left alone.

Between `start` and `stop` no host code takes part in a step. The host sees counters in a page that the GPU
writes, and gives commands in a word that the GPU reads. The process's end, however it comes, ends the kernel.
"""

import time

import numpy as np

from services.gpu_backend import _device
from services.gpu_backend._device import Ending
from services.gpu_backend._scheduler import Command
from services.gpu_backend.device import build, driver
from services.gpu_backend.device.agent_memory import AgentMemory
from services.gpu_backend.device.driver import Arguments, CudaError, Device, Graph, MappedMemory
from services.gpu_backend.device.installation import Installation
from services.gpu_backend.device.ring_memory import RingMemory
from services.gpu_backend.device.settings import DeviceSettings
from services.gpu_backend.engines.cuda.contract import CaptureProgress, GraphEngine, StepGate, no_progress
from services.gpu_backend.layers import LayerCounters
from services.gpu_backend.scheduler.interface import SchedulerLost
from services.gpu_backend.scheduler.orders import OrderQueue
from services.gpu_backend.scheduler.settings import SchedulerSettings

CONTROL: np.dtype[np.void] = np.dtype(_device.CONTROL)
COUNTERS: np.dtype[np.void] = np.dtype(_device.COUNTERS)
MISSION: np.dtype[np.void] = np.dtype(_device.MISSION)
_TEAM_AND_WATCHER = 256 + 32
_POLL_S = 1e-3


class DeviceScheduler:
    """Serves a ring with a graph engine from `start` to `stop`. The engine and the ring stay the caller's.

    Everything is allocated when this is made; while it runs, nothing in the process may wait for the whole
    device (cudaDeviceSynchronize, cudaFree, the legacy default stream): that would wait for ever.
    """

    source = build.SCHEDULER_SOURCE
    """Of the kernel; benches have others."""

    def __init__(
        self,
        ring: RingMemory,
        engine: GraphEngine,
        settings: SchedulerSettings,
        *,
        max_context: int,
        device: Device,
        device_settings: DeviceSettings | None = None,
        progress: CaptureProgress = no_progress,
        gate: StepGate | None = None,
    ) -> None:
        """`engine` is allocated; its prefill graphs have the `gate`, if any. Captures every shape that `settings`
        name, or else the engine proposes.

        Raises ValueError where ring, engine and settings don't fit together, EngineError from a capture,
        ToolchainMissing or BuildFailed where the scheduler can't be compiled, CudaError.
        """
        self.settings = settings
        self.device_settings = device_settings or DeviceSettings()
        self._device, self._ring = device, ring
        self._started = self._stopping = self._closed = False
        device.use()
        self._installed = Installation(
            ring, engine, settings, max_context=max_context, device=device, source=self.source, progress=progress
        )
        self._module, self._stream = self._installed.module, self._installed.stream
        control = self._installed.control.view
        self._words = control[: CONTROL.itemsize].view(CONTROL)[0]
        self._counters = control[_device.COUNTERS_OFFSET :][: COUNTERS.itemsize].view(COUNTERS)[0]
        self.orders = OrderQueue(agent := AgentMemory(self._installed.agent.view, self._installed.layout), agent)
        self.layers = self._connect(gate) if gate else None
        self._mission = np.zeros(1, MISSION)

    def _connect(self, gate: StepGate) -> LayerCounters:
        installed = self._installed
        at = installed.layout["layers_ready_offset"]
        return gate.connect(installed.agent.address + at, installed.agent.view, at)

    def start(self) -> None:
        """Once. Returns as soon as the kernel is on its way."""
        if self._started:
            raise RuntimeError("the scheduler was started already")
        self._device.use()
        self._started = True
        offset, device_now = self._read_clock()
        own, m, installed = self.device_settings, self._mission, self._installed
        m["core"], m["ring"], m["engine"] = installed.core, self._ring.address, installed.memory
        m["agent"], m["control"], m["executables"] = installed.agent.address, installed.control.address, installed.table
        m["clock_offset_ns"], m["report_ns"] = np.uint64(offset % 2**64), round(own.report_s * 1e9)
        m["deadline_ns"] = device_now + round(own.deadline_s * 1e9) if own.deadline_s else 0
        m["host_patience_ns"] = round(own.host_patience_s * 1e9)
        m["launch_window"], m["ring_on_host"] = own.launch_window, self._ring.on_host
        m["hot_bytes"] = installed.hot_bytes
        kernel = self._module.function("hostless_scheduler")
        # All shared memory, not only hot_bytes: no graph's block lands beside it, and GEMMs can count on the rest.
        alone = self._device.spare_shared_bytes(kernel)
        graph = Graph()
        graph.add(kernel, 1, _TEAM_AND_WATCHER, Arguments([m]), alone)
        executable = installed.instantiate(graph.handle, "graph of the scheduler itself")
        graph.close()
        self._stream.wait()
        self._stream.launch_graph(executable)

    def _read_clock(self) -> tuple[int, int]:
        """What is to be added to the GPU's clock to give unix time; and the GPU's clock. In ns."""
        page = MappedMemory(64)
        function = self._module.function("hostless_clock")
        best = (1 << 62, 0, 0)
        for _ in range(8):
            before = time.time_ns()
            self._stream.launch(function, 1, 1, Arguments([np.array([page.address], np.uint64)]))
            self._stream.wait()
            after, now = time.time_ns(), int(page.view.view(np.uint64)[0])
            best = min(best, (after - before, (before + after) // 2 - now, now))
        page.close()
        return best[1], best[2]

    # --- while it runs ---

    def drain(self) -> None:
        """New requests are refused with Finish.DRAINING; those that were claimed go on."""
        self._words["command"] = max(int(self._words["command"]), int(Command.DRAIN))

    def beat(self) -> None:
        """The host lives. Needed only with DeviceSettings.host_patience_s, and then more often than that."""
        self._words["host_beat"] += 1

    def tend(self) -> None:
        """Beats. Raises SchedulerLost, also where the GPU stopped with an error."""
        self.beat()
        try:
            ending = self.ending
        except CudaError as error:
            raise SchedulerLost(str(error)) from error
        if ending != Ending.RUNS and not self._stopping:
            raise SchedulerLost(self._reason(ending))

    def _reason(self, ending: Ending) -> str:
        detail = f", error {int(self._words['relaunch_error'])}" if ending == Ending.STRANDED else ""
        return f"the scheduler on the GPU has ended by itself: {ending.name.lower()}{detail}"

    def counters(self) -> dict[str, int]:
        """By the names of state.hpp's Counters, as of the last report."""
        return {name: int(self._counters[name]) for name in COUNTERS.names or ()}

    @property
    def unfinished(self) -> int:
        """Requests claimed and not yet ended."""
        n = self.counters()
        return n["waiting"] + n["expecting"] + n["loading"] + n["prefilling"] + n["running"] + n["starved"]

    @property
    def launch_errors(self) -> int:
        """Launches that the device runtime refused. Each was repeated."""
        return int(self._words["launch_errors"])

    @property
    def ending(self) -> Ending:
        """RUNS until the scheduler has ended. Raises CudaError if the GPU stopped with an error, SchedulerLost if it
        ended without a word.
        """
        self._device.use()
        ending = Ending(int(self._words["ended"]))
        if ending == Ending.RUNS and self._started and self._stream.done():
            ending = Ending(int(self._words["ended"]))  # written between the two looks, or never
            if ending == Ending.RUNS:
                raise SchedulerLost("the scheduler left the GPU and said nothing")
        return ending

    @property
    def stopped(self) -> bool:
        """Nothing of it is on the GPU: never started, or ended in whatever way."""
        if not self._started:
            return True
        self._device.use()
        try:
            return self._stream.done()
        except CudaError:
            return True

    # --- the end ---

    def stop(self, timeout_s: float) -> None:
        """Ends every request, and the kernel; idempotent. Blocks.

        Raises TimeoutError if the step in flight doesn't end in time (the kernel lives on), SchedulerLost if
        the scheduler had ended by itself, CudaError if the GPU had failed.
        """
        if not self._started or self._closed:
            return
        self._stopping = True
        self._words["command"] = int(Command.STOP)
        give_up = time.monotonic() + timeout_s
        while (ending := self.ending) == Ending.RUNS or not self._stream.done():
            if time.monotonic() > give_up:
                raise TimeoutError(f"the scheduler on the GPU has not stopped within {timeout_s:g} s")
            time.sleep(_POLL_S)
        if ending != Ending.STOPPED:
            raise SchedulerLost(self._reason(ending))

    def check(self) -> None:
        """Raises AssertionError with the first thing in the core's books that doesn't add up. After `stop`."""
        if self._started and self.ending == Ending.RUNS:
            raise RuntimeError("the books of a scheduler on a GPU can be checked only when it has stopped")
        self._device.use()
        installed = self._installed
        core = driver.copy_out(installed.core, installed.core_bytes)
        memory = driver.copy_out(installed.memory, installed.layout["size_bytes"])
        if wrong := _device.check(core=core, ring=self._ring.copy(), engine=memory, agent=installed.agent.view):
            raise AssertionError(wrong)

    def close(self) -> None:
        """Gives memory and executables back, after `stop`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._device.use()
        self._installed.close()
