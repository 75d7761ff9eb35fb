"""How much memory this process may still take."""

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """The smaller of what the machine has and what the container's limit leaves."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except FileNotFoundError:  # no cgroup v2 of our own: the root group has no limit
        return machine
    return machine if limit == "max" else min(machine, max(0, int(limit) - used))
