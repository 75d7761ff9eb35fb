"""The supervisor over real processes: order, restarts, signals, and nothing left behind."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from tests.processes import running
from tests.waiting import until

MESH = Path(__file__).parent / "fakes" / "mesh.py"
DEADLINE_S = 60


class Mesh:
    """A fakes/mesh.py process and the lines that it has said."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.lines: list[str] = []
        self.pids: dict[str, int] = {}

    async def until(self, start: str) -> str:
        """Reads on to the next line that starts so."""
        assert self.process.stdout
        async with asyncio.timeout(DEADLINE_S):
            while line := (await self.process.stdout.readline()).decode().strip():
                self.lines.append(line)
                if line.startswith("starting"):
                    _, name, pid = line.split()
                    self.pids[name] = int(pid)
                if line.startswith(start):
                    return line
        raise AssertionError(f"ended without {start!r}; said {self.lines}")

    async def end(self) -> int:
        async with asyncio.timeout(DEADLINE_S):
            assert self.process.stdout
            rest = (await self.process.stdout.read()).decode().splitlines()
            self.lines += rest
            return await self.process.wait()

    def journal(self) -> list[str]:
        return (self.folder / "journal").read_text().splitlines()


Start = Callable[..., Awaitable[Mesh]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    meshes: list[Mesh] = []

    async def run(*arguments: str) -> Mesh:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(MESH), str(tmp_path), *arguments, stdout=asyncio.subprocess.PIPE
        )
        meshes.append(Mesh(process, tmp_path))
        return meshes[-1]

    yield run
    for mesh in meshes:
        if mesh.process.returncode is None:
            mesh.process.kill()
            await mesh.process.wait()
        await gone(mesh.pids.values())


async def gone(pids: Iterable[int]) -> None:
    """Returns when none of the processes runs."""
    await until(lambda: not any(running(pid) for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_starts_in_order_and_stops_in_reverse(start: Start, number: signal.Signals) -> None:
    mesh = await start("one", "two", "three")
    await mesh.until("mesh ready")
    assert [line.split()[1] for line in mesh.lines if line.startswith("starting")] == ["one", "two", "three"]
    mesh.process.send_signal(number)
    assert await mesh.end() == 0
    assert [line for line in mesh.journal() if line.endswith("down")] == ["three down", "two down", "one down"]
    assert [line for line in mesh.lines if line.startswith("stopped")] == [
        "stopped three True",
        "stopped two True",
        "stopped one True",
    ]


async def test_restarts_what_dies(start: Start) -> None:
    mesh = await start("one", "two")
    await mesh.until("mesh ready")
    first = mesh.pids["two"]
    for _ in range(2):
        os.kill(mesh.pids["two"], signal.SIGKILL)
        assert await mesh.until("died") == "died two was killed by SIGKILL"
        await mesh.until("ready two")
        published = await mesh.until("published")
        assert published.split()[1:] == [str(mesh.pids["one"]), str(mesh.pids["two"])]
    assert mesh.pids["two"] != first
    mesh.process.terminate()
    assert await mesh.end() == 0


async def test_a_service_that_never_gets_ready_fails_the_start_and_stops_the_others(start: Start) -> None:
    mesh = await start("one", "two:stillborn")
    assert await mesh.until("failed") == "failed two ended with exit code 3 before it was ready"
    assert await mesh.end() == 1
    assert not running(mesh.pids["one"])
    assert "no such model" in (mesh.folder / "two.log").read_text()


async def test_a_deaf_service_is_killed_and_the_exit_code_says_so(start: Start) -> None:
    mesh = await start("one", "two:deaf")
    await mesh.until("mesh ready")
    mesh.process.terminate()
    assert await mesh.end() == 1
    assert "stopped two False" in mesh.lines
    assert "stopped one True" in mesh.lines


async def test_a_second_signal_kills_at_once(start: Start) -> None:
    mesh = await start("one:deaf", "two:deaf", "three:deaf")
    await mesh.until("mesh ready")
    mesh.process.terminate()
    await mesh.until("stopping three")
    mesh.process.terminate()
    assert await mesh.end() == 1
    await gone(mesh.pids.values())


async def test_no_process_outlives_a_killed_supervisor(start: Start) -> None:
    mesh = await start("one", "two")
    await mesh.until("mesh ready")
    mesh.process.kill()
    await mesh.end()
    await gone(mesh.pids.values())


async def test_nor_one_that_is_killed_while_it_starts(start: Start) -> None:
    mesh = await start("one", "two")
    await mesh.until("starting two")
    mesh.process.kill()
    await mesh.end()
    await gone(mesh.pids.values())


async def test_a_signal_while_starting_stops_what_has_started(start: Start) -> None:
    mesh = await start("one", "two")
    await mesh.until("starting two")
    mesh.process.send_signal(signal.SIGINT)
    assert await mesh.end() == 0
    assert not any(line.startswith("mesh ready") for line in mesh.lines)
    await gone(mesh.pids.values())


@pytest.mark.parametrize("code", [0, 7])
async def test_runs_a_command_and_ends_with_its_code(start: Start, code: int) -> None:
    script = f"import os, sys; print('ran', os.environ['HOSTLESS_URL'], flush=True); sys.exit({code})"
    mesh = await start("one", "--", sys.executable, "-c", script)
    assert await mesh.until("ran") == "ran http://127.0.0.1:1"
    assert await mesh.end() == code
    assert mesh.journal() == ["one up", "one down"]


async def test_a_signal_ends_the_command_too(start: Start) -> None:
    script = "import os, time; print('ran', os.getpid(), flush=True); time.sleep(600)"
    mesh = await start("one", "--", sys.executable, "-c", script)
    pid = int((await mesh.until("ran")).split()[1])
    mesh.process.terminate()
    assert await mesh.end() == 128 + signal.SIGTERM
    assert not running(pid)
