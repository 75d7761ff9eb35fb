"""How a service process lives: uvloop, signals, one orderly end."""

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import uvloop

from services.common import logs, telemetry
from services.common.rpc import PortTaken
from services.common.settings import SettingError, load

log = logging.getLogger(__name__)


class ServiceSettings(Protocol):
    """What the settings of every service have."""

    @property
    def log_level(self) -> str: ...


S = TypeVar("S", bound=ServiceSettings)


class Lifecycle:
    """Handed to a service's main: when to stop. The first SIGTERM or SIGINT asks, the second one insists."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()

    async def until_stopping(self) -> None:
        await self.stopping.wait()


def main(service: str, description: str, settings: type[S], serve: Callable[[S, Lifecycle], Awaitable[None]]) -> int:
    """What `python -m services.NAME` does: settings from flags and environment, then `run`. Returns the exit code."""
    try:
        given = load(settings, service, sys.argv[1:], description=description)
    except SettingError as error:
        return _explain(service, error)
    return run(service, lambda life: serve(given, life), given.log_level)


def run(service: str, main: Callable[[Lifecycle], Awaitable[None]], log_level: str = "info") -> int:
    """Runs `main` to its end; returns the process's exit code.

    main returns after `life.stopping` is set and its work is drained. Exit codes: 0 asked to stop
    and did, 1 failed (logged), 2 a setting or port was wrong (one line says which).
    """
    try:
        logs.setup(service, log_level)
        telemetry.setup(service)
        _end_with_parent()
        uvloop.run(_supervise(main))
    except (Exception, asyncio.CancelledError) as error:
        return _explain(service, error)
    finally:
        telemetry.shutdown()
    return 0


def _explain(service: str, error: BaseException) -> int:
    leaves = _leaves(error)
    if all(isinstance(leaf, SettingError | PortTaken) for leaf in leaves):
        for leaf in leaves:
            print(f"hostless {service}: {leaf}", file=sys.stderr)
        return 2
    log.error("%s failed", service, exc_info=error)
    return 1


async def _supervise(main: Callable[[Lifecycle], Awaitable[None]]) -> None:
    life = Lifecycle()
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(main(life))

    def ask(name: str) -> None:
        if life.stopping.is_set():
            log.warning("second %s: stopping at once", name)
            task.cancel()
        life.stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, number.name)
    await task


def _end_with_parent() -> None:
    """A service started by `hostless up` must not outlive it, even if that was killed by SIGKILL."""
    parent = os.environ.get("HOSTLESS_PARENT")
    if not parent:
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    if os.getppid() != int(parent):
        raise SystemExit(1)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
