"""What the rest of an engine's process sees of its scheduler, wherever that runs."""

from typing import Protocol

from services.gpu_backend.layers import LayerCounters
from services.gpu_backend.scheduler.orders import OrderQueue
from services.gpu_backend.scheduler.settings import SchedulerSettings


class SchedulerLost(RuntimeError):
    """The scheduler ended without being told to; the message says why."""


class Scheduler(Protocol):
    """Serves one ring from `start` to `stop`: host.py's on threads of this process, or the one that lives on the GPU.

    Ring and engine stay the caller's, and outlive it.
    """

    @property
    def settings(self) -> SchedulerSettings: ...

    @property
    def orders(self) -> OrderQueue:
        """The KV agent's end."""
        ...

    @property
    def layers(self) -> LayerCounters | None:
        """By which steps and KV agent wait for each other (D6); None: a step needs all its KV when it begins."""
        ...

    def start(self) -> None:
        """Once."""
        ...

    def drain(self) -> None:
        """New requests are refused with Finish.DRAINING; those that were claimed go on."""
        ...

    def tend(self) -> None:
        """To be called about once a second: tells the scheduler that the host lives. Raises SchedulerLost."""
        ...

    def counters(self) -> dict[str, int]:
        """By the names of state.hpp's Counters; some milliseconds old."""
        ...

    @property
    def unfinished(self) -> int:
        """Requests claimed and not yet ended."""
        ...

    def stop(self, timeout_s: float) -> None:
        """Ends every request and then itself; idempotent. Blocks.

        Raises TimeoutError if the step in flight doesn't end in time, and then the scheduler lives on;
        SchedulerLost if it had ended before.
        """
        ...

    def check(self) -> None:
        """Raises AssertionError with the first thing in the core's books that doesn't add up."""
        ...

    def close(self) -> None:
        """Gives back what it holds, after `stop`. Idempotent."""
        ...
