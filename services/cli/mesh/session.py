"""A mesh in the foreground: up, until a signal or a command's end, then down in any case."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from services.cli.errors import CliError
from services.cli.mesh.supervisor import Supervisor

COMMAND_STOP_S = 5.0


async def run(supervisor: Supervisor, ready: Callable[[], None], command: Sequence[str], url: str) -> int:
    """Runs the mesh; calls ready() once it is. Returns the exit code: 0 when asked to stop and every service
    did, 1 when one had to be killed, or the code of `command`, which runs with HOSTLESS_URL=url and whose end
    ends the mesh. A first signal stops, a second one kills. Raises StartFailed; nothing is left running then either.
    """
    async with _stop_signals(supervisor.kill) as stop:
        try:
            started = await _unless(stop, supervisor.start())
            if started:
                ready()
                code = await _serve(supervisor, stop, command, url)
        finally:
            clean = await supervisor.stop()
    if not clean:
        return 1
    return code if started else 0


async def _serve(supervisor: Supervisor, stop: asyncio.Event, command: Sequence[str], url: str) -> int:
    keep = asyncio.create_task(supervisor.keep())
    work = asyncio.create_task(_command(command, url, stop) if command else _forever(stop))
    try:
        await asyncio.wait((keep, work), return_when=asyncio.FIRST_COMPLETED)
        if keep.done():
            keep.result()  # it never returns, so this raises what broke it
        return await work
    finally:
        await _cancelled(keep, work)


async def _forever(stop: asyncio.Event) -> int:
    await stop.wait()
    return 0


async def _command(command: Sequence[str], url: str, stop: asyncio.Event) -> int:
    environ = {**os.environ, "HOSTLESS_URL": url}
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environ)
    except OSError as error:
        raise CliError(f"{command[0]} can't be run: {error.strerror}") from error
    try:
        await _unless(stop, process.wait())
    finally:
        if process.returncode is None:
            await _end(process)
    code = process.returncode or 0
    return code if code >= 0 else 128 - code


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), COMMAND_STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


async def _unless(stop: asyncio.Event, work: Awaitable[object]) -> bool:
    """Whether `work` was done before `stop` was set; else it is cancelled. Raises what it raises."""
    task, stopped = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        await task
        return True
    finally:
        await _cancelled(task, stopped)


async def _cancelled(*tasks: "asyncio.Task[object] | asyncio.Future[object]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@contextlib.asynccontextmanager
async def _stop_signals(insist: Callable[[], None]) -> AsyncIterator[asyncio.Event]:
    """An event that SIGINT, SIGTERM or SIGHUP sets; one more of them calls insist()."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def received() -> None:
        if stop.is_set():
            insist()
        stop.set()

    # Under nohup SIGHUP is ignored, and stays so.
    wanted = [s for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) != signal.SIG_IGN]
    for number in wanted:
        loop.add_signal_handler(number, received)
    try:
        yield stop
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)
