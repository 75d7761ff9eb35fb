"""What becomes of one process's work on a GPU when another's is killed (SIGKILL) with a kernel that lives.

    python -m bench.gpu_neighbours OUT.json [--seconds 60]

Every kind of neighbour beside every kind of victim. `ok`: the neighbour's results were right and came all the time;
else the driver's error. A neighbour that fails is started anew for the next victim. Needs one GPU of compute capability
9.0 or more.

victims     kernel: spins over memory of the GPU. host: over a file in shared memory, registered, as a ring is. graph:
            launches graphs from the GPU and replaces itself. peer: spins over the neighbour's memory, by CUDA IPC.
            lent: the neighbour has opened its memory. scheduler: the scheduler itself, with toy steps
neighbours  kernels: small kernels and copies. host: the same over registered host memory. scheduler: the scheduler
"""

import argparse
import contextlib
import json
import mmap
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT, SOURCE = Path(__file__).resolve().parents[1], Path(__file__).parent / "gpu/neighbours.cu"
VICTIMS = ("kernel", "host", "graph", "peer", "lent", "scheduler")
NEIGHBOURS = ("kernels", "host", "scheduler")
START_S, SETTLE_S, AFTER_S = 20.0, 0.3, 0.7
SPIN_NS, COUNT = 15_000_000_000, 1 << 20


# --- on the GPU, in processes of their own ---


def shared_words() -> NDArray[np.uint64]:
    """A page of shared memory, as a ring's region is."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        file.truncate(1 << 20)
        return np.frombuffer(mmap.mmap(file.fileno(), 1 << 20), np.uint64)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def victim(kind: str, handle: str) -> None:
    """Says `running` when its kernel lives, and waits to be killed."""
    from services.gpu_backend.device import build, driver
    from services.gpu_backend.device.driver import (
        Arguments,
        Device,
        Graph,
        MappedMemory,
        Module,
        RegisteredMemory,
        Stream,
    )

    if kind == "scheduler":
        serve_a_toy(lambda running: say(running=True))
    device = Device()
    module, stream, page = Module(build.cubin(SOURCE, device.capability)), Stream(), MappedMemory(4096)
    words: NDArray[np.uint64] = page.view.view(np.uint64)
    mine, address = "", driver.allocate(1 << 20)
    if kind == "host":
        words = shared_words()
        address = RegisteredMemory(words.view(np.uint8)).address
    elif kind == "peer":
        address = driver.open_handle(bytes.fromhex(handle))
    elif kind == "lent":
        mine = driver.handle_of(address).hex()
    if kind == "graph":
        links = np.zeros(1, [("others", "<u8", 2), ("end", "<u8"), ("steps", "<u8"), ("done", "<u8"), ("words", "<u8")])
        argument = Arguments([np.array([address], np.uint64)])
        other, own = Graph(), Graph()
        other.add(module.function("empty"), 1, 1, argument)
        own.add(module.function("chain"), 1, 1, argument)
        links["others"] = [int(driver.instantiate(other.handle, stream)) for _ in range(2)]
        links["words"] = page.address
        driver.copy_in(address, links)
        stream.launch_graph(driver.instantiate(own.handle, stream))
    else:
        arguments = Arguments([np.array([address], np.uint64), np.array([SPIN_NS], np.uint64)])
        stream.launch(module.function("spin"), 1, 32, arguments)
    give_up = time.monotonic() + START_S
    while kind in ("host", "graph") and not words[0]:
        if time.monotonic() > give_up:
            raise TimeoutError("the kernel has not begun")
    time.sleep(SETTLE_S)
    say(running=not stream.done(), handle=mine)
    time.sleep(60)


def serve_a_toy(ready: Callable[[Any], None]) -> None:
    """The scheduler, with requests all the time. Doesn't return."""
    from services.gpu_backend.device.driver import Device
    from services.gpu_backend.device.settings import DeviceSettings
    from services.gpu_backend.scheduler.settings import SchedulerSettings
    from tests.gpu.scheduler.rig import Rig

    settings = SchedulerSettings(lanes=32, step_tokens=512, pages=256)
    rig = Rig(Device(), settings, own=DeviceSettings(deadline_s=90.0), name="neighbours")
    rig.front_end(0, requests=10_000_000)
    rig.until(lambda: rig.scheduler.counters()["finished"] > 20)
    ready(rig)
    time.sleep(90)


def neighbour(kind: str) -> None:
    """Works; a line of input is answered with how that went since the last. A handle in it: memory to be opened."""
    if kind == "scheduler":
        serve_a_toy(_answer_for_a_scheduler)
    from services.gpu_backend.device import build, driver
    from services.gpu_backend.device.driver import Arguments, Device, Module, RegisteredMemory, Stream

    device = Device()
    module, stream = Module(build.cubin(SOURCE, device.capability)), Stream()
    address, lent = driver.allocate(4 * COUNT), driver.allocate(1 << 20)
    host = np.zeros(COUNT, np.uint32)
    if kind == "host":
        host = np.frombuffer(mmap.mmap(-1, 4 * COUNT), np.uint32)
        address = RegisteredMemory(host.view(np.uint8)).address
    say(handle=driver.handle_of(lent).hex())
    rounds, worst, error = 0, 0.0, ""
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            begin = time.perf_counter()
            try:
                values = [
                    np.array([value], of)
                    for value, of in ((address, np.uint64), (COUNT, np.uint32), (rounds, np.uint32))
                ]
                stream.launch(module.function("fill"), 64, 256, Arguments(values))
                stream.wait()
                found = host if kind == "host" else driver.copy_out(address, 4 * COUNT).view(np.uint32)
                if found[0] != rounds or found[-1] != rounds + COUNT - 1:
                    error = error or f"wrong data in round {rounds}"
            except Exception as failed:
                error = error or str(failed)
            rounds, worst = rounds + 1, max(worst, time.perf_counter() - begin)
            if not selector.select(0 if not error else 1):
                continue
            if not (line := sys.stdin.readline()):
                return
            if line.strip() and not error:
                try:
                    driver.open_handle(bytes.fromhex(line.strip()))
                except Exception as failed:
                    error = str(failed)
            say(error=error, rounds=rounds, worst_ms=round(1e3 * worst, 1))
            worst = 0.0


def _answer_for_a_scheduler(rig: Any) -> None:
    from services.gpu_backend._device import Ending

    say(handle="")
    before = 0
    for _ in sys.stdin:
        error = ""
        try:
            ending = rig.scheduler.ending
            error = "" if ending == Ending.RUNS else f"ended: {ending.name}"
        except Exception as failed:
            error = str(failed)
        finished = rig.scheduler.counters()["finished"]
        if not error and finished == before:
            error = "nothing has finished"
        say(error=error, rounds=finished - before, worst_ms=0)
        before = finished


# --- who starts and kills them ---


class Child:
    def __init__(self, *given: str) -> None:
        command = [sys.executable, "-m", "bench.gpu_neighbours", *given]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def answer(self, line: str | None = None) -> dict[str, Any]:
        """Raises RuntimeError with what it said if there is none."""
        assert self._process.stdin
        assert self._process.stdout
        if line is not None and self._process.poll() is None:
            self._process.stdin.write(line + "\n")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            said = self._process.stdout.readline() if selector.select(START_S) else ""
        if not said:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            _, errors = self._process.communicate(timeout=20)
            raise RuntimeError(errors.strip().splitlines()[-1] if errors.strip() else "it said nothing")
        found: dict[str, Any] = json.loads(said)
        return found

    def kill(self) -> float:
        """Seconds until it was gone."""
        begin = time.monotonic()
        self._process.kill()
        self._process.wait(30)
        took = time.monotonic() - begin
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its own children
        self._process.communicate(timeout=10)
        return took


def beside(neighbour: Child, handle: str, kind: str) -> dict[str, Any]:
    """The neighbour's answer after a victim's death. Raises RuntimeError where one of them did not start, or ended."""
    other = Child("victim", kind, handle)
    try:
        said = other.answer()
        if not said["running"]:
            return {"error": "the victim's kernel was over before"}
        before = neighbour.answer(said.get("handle", ""))
        if before["error"]:
            return {"error": f"before the kill: {before['error']}"}
    finally:
        took = other.kill()
    time.sleep(AFTER_S)
    return {**neighbour.answer(""), "died_in_s": round(took, 2)}


def main() -> None:
    if sys.argv[1:2] == ["victim"]:
        victim(sys.argv[2], sys.argv[3])
        return
    if sys.argv[1:2] == ["neighbour"]:
        neighbour(sys.argv[2])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=60, help="no further victim after that")
    given = parser.parse_args()
    until, found = time.monotonic() + given.seconds, {}
    for kind in NEIGHBOURS:
        child, handle = None, ""
        for how in VICTIMS:
            if time.monotonic() > until or (kind == "scheduler" and how in ("peer", "lent")):
                continue
            try:
                if child is None:
                    child = Child("neighbour", kind)
                    handle = child.answer()["handle"]
                one = beside(child, handle, how)
            except (RuntimeError, OSError) as error:
                one = {"error": str(error)[:300]}
            found[f"{how} killed beside {kind}"] = one
            print(f"{how:<10} killed beside {kind:<10}", one["error"] or "ok", one, flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
            if one["error"] and child is not None:
                child.kill()
                child = None
        if child is not None:
            child.kill()
    failed = [name for name, one in found.items() if one["error"]]
    print("failed:", ", ".join(failed) or "none", "of", len(found))


if __name__ == "__main__":
    main()
