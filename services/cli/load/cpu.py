"""CPU time of the services of a mesh on this machine, to see what a token costs."""

import os
from collections.abc import Mapping
from pathlib import Path

from services.cli.mesh.run_folder import Mesh


def seconds(mesh: Mesh | None) -> dict[str, float]:
    """User and system CPU seconds so far, by service; without a mesh on this machine, nothing."""
    return {service.name: _of(service.pid) for service in (mesh.services if mesh else ())}


def between(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each service used between two readings. One restarted meanwhile counts from its start."""
    return {name: used - before[name] if used >= before.get(name, used) else used for name, used in after.items()}


def _of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # ended
    user_ticks, system_ticks = int(fields[11]), int(fields[12])
    return (user_ticks + system_ticks) / os.sysconf("SC_CLK_TCK")
