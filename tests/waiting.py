"""Waiting for what another task, thread or process does soon and tells nobody of. Never how long something takes:
the patience is for a machine with ten times more work than cores."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

PATIENCE_S = 60.0


async def until(holds: Callable[[], bool | Awaitable[bool]], saw: Callable[[], object] | None = None) -> None:
    """Returns once it holds. AssertionError after PATIENCE_S, with the condition, and what `saw` returns then."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        found = holds()
        if await found if inspect.isawaitable(found) else found:
            return
        assert time.monotonic() < give_up, _told(holds, saw)
        await asyncio.sleep(0.002)


def wait_until(holds: Callable[[], bool], saw: Callable[[], object] | None = None) -> None:
    """The same where there is no event loop."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, _told(holds, saw)
        time.sleep(0.001)


def _told(holds: Callable[[], object], saw: Callable[[], object] | None) -> str:
    try:
        condition = " ".join(inspect.getsource(holds).split())
    except (OSError, TypeError):  # a lock's `locked`, say, has no source
        condition = repr(holds)
    return f"not within {PATIENCE_S:.0f} s: {condition}" + (f"; seen: {saw()}" if saw else "")
