"""Waiting for a service to say that it is ready."""

import asyncio
from collections.abc import Callable

from services.cli.mesh.plan import ServicePlan

INTERVAL_S = 0.1


async def until_ready(plan: ServicePlan, tell: Callable[[str], None] = lambda _: None) -> None:
    """Returns when the service is ready; raises TimeoutError, with its last answer, after plan.ready_s. Calls tell()
    with each answer."""
    from services.common import probe  # gRPC takes its time to load; the services start meanwhile

    problem: str | None = "no answer yet"
    try:
        async with asyncio.timeout(plan.ready_s):
            while True:
                problem = await probe.ask(plan.probe)
                if problem is None:
                    return
                tell(problem)
                await asyncio.sleep(INTERVAL_S)
    except TimeoutError:
        raise TimeoutError(f"was not ready after {plan.ready_s:g} s: {problem}") from None
