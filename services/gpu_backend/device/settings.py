"""How the scheduler lives on its GPU; what it decides is scheduler/settings.py's."""

from dataclasses import dataclass

MOST_LAUNCHES = 120
"""Fire-and-forget launches that CUDA allows one execution of a graph, in total (B4)."""


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """Raises ValueError where a value can't be."""

    launch_window: int = MOST_LAUNCHES
    """Launches until the scheduler replaces itself."""
    report_s: float = 5e-3
    """Between two reports of the counters to the host."""
    host_patience_s: float = 0.0
    """The scheduler ends when the host has not beaten for so long (DeviceScheduler.beat); 0: never."""
    deadline_s: float = 0.0
    """The scheduler ends so long after its start, by force if need be: for tests. 0: never."""

    def __post_init__(self) -> None:
        if not 2 <= self.launch_window <= MOST_LAUNCHES:
            raise ValueError(f"launch_window is {self.launch_window}; it must be between 2 and {MOST_LAUNCHES}")
        for name in ("report_s", "host_patience_s", "deadline_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
