"""Keeps a mesh alive: starts in order, waits until all are ready, restarts what died, stops in reverse."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from services.cli.mesh.plan import ServicePlan
from services.cli.mesh.process import Child, describe_exit
from services.cli.mesh.readiness import until_ready


class Reporter(Protocol):
    """Told what happens, for a person or a test."""

    def starting(self, name: str, pid: int) -> None: ...
    def waiting(self, name: str, why: str) -> None: ...
    def ready(self, name: str, seconds: float) -> None: ...
    def died(self, name: str, how: str, restart_in_s: float) -> None: ...
    def stopping(self, name: str) -> None: ...
    def stopped(self, name: str, by_itself: bool) -> None: ...


@dataclass(frozen=True)
class Backoff:
    """Pause before a restart: doubles with each one, starts anew once a service has lived for a while."""

    first_s: float = 0.5
    longest_s: float = 15.0
    healthy_s: float = 30.0

    def pause_s(self, restarts: int) -> float:
        return min(self.first_s * float(2**restarts), self.longest_s)


class StartFailed(Exception):
    """A service did not become ready; `name` says which."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


@dataclass
class Member:
    """One service of the mesh and its present process."""

    plan: ServicePlan
    child: Child
    started: float
    restarts: int = 0


class Supervisor:
    """Owns the processes of a mesh. start(), then keep() until cancelled, then stop() in any case."""

    def __init__(
        self,
        plans: Sequence[ServicePlan],
        log_of: Callable[[str], Path],
        reporter: Reporter,
        publish: Callable[[Sequence[Member]], None] = lambda _: None,
        backoff: Backoff | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.members: list[Member] = []
        self._plans = plans
        self._log_of = log_of
        self._report = reporter
        self._publish = publish  # called whenever processes have changed and are ready
        self._backoff = backoff or Backoff()
        # By this the children know whose end is theirs too (services/common/lifecycle.py).
        self._environ = {**(os.environ if environ is None else environ), "HOSTLESS_PARENT": str(os.getpid())}

    async def start(self) -> None:
        """Starts all in order and returns when all are ready. Raises StartFailed; then stop() is still due."""
        for plan in self._plans:
            self.members.append(Member(plan, self._spawn(plan), time.monotonic()))
        try:
            async with asyncio.TaskGroup() as tasks:
                for member in self.members:
                    tasks.create_task(self._until_ready(member))
        except* StartFailed as group:
            raise group.exceptions[0] from None
        self._publish(self.members)

    async def keep(self) -> None:
        """Restarts whatever dies, with back-off, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for member in self.members:
                tasks.create_task(self._keep(member))

    async def stop(self) -> bool:
        """Stops all in reverse order of starting. Returns whether every one ended by itself in its time."""
        for member in reversed(self.members):
            if not member.child.ended:
                self._report.stopping(member.plan.name)
                by_itself = await member.child.stop(member.plan.stop_s)
                self._report.stopped(member.plan.name, by_itself)
        return not any(member.child.killed for member in self.members)

    def kill(self) -> None:
        """Ends all at once, also while stop() waits."""
        for member in self.members:
            member.child.kill()

    def _spawn(self, plan: ServicePlan) -> Child:
        try:
            child = Child(plan.command, self._log_of(plan.name), self._environ)
        except OSError as error:
            raise StartFailed(plan.name, f"{plan.command[0]} can't be run: {error.strerror}") from error
        self._report.starting(plan.name, child.pid)
        return child

    async def _until_ready(self, member: Member) -> None:
        """Returns when it is ready; raises StartFailed when it ends before, or takes too long."""
        name = member.plan.name
        ready = asyncio.create_task(until_ready(member.plan, lambda why: self._report.waiting(name, why)))
        ended = asyncio.create_task(member.child.wait())
        try:
            await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise StartFailed(member.plan.name, f"{describe_exit(ended.result())} before it was ready")
            await ready
            self._report.ready(member.plan.name, time.monotonic() - member.started)
        except TimeoutError as error:
            raise StartFailed(member.plan.name, str(error)) from None
        finally:
            ready.cancel()
            ended.cancel()
            await asyncio.wait((ready, ended))

    async def _keep(self, member: Member) -> None:
        attempts = 0
        while True:
            code = await member.child.wait()
            if time.monotonic() - member.started > self._backoff.healthy_s:
                attempts = 0
            pause_s = self._backoff.pause_s(attempts)
            attempts += 1
            self._report.died(member.plan.name, describe_exit(code), pause_s)
            await asyncio.sleep(pause_s)
            member.started = time.monotonic()
            member.restarts += 1
            member.child = self._spawn(member.plan)
            try:
                await self._until_ready(member)
                self._publish(self.members)
            except StartFailed:
                await member.child.stop(member.plan.stop_s)
