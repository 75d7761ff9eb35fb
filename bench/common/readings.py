"""What benches read off processes and lists of times, each by one function."""

import os
import urllib.request
from collections.abc import Sequence
from pathlib import Path


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process so far. Raises OSError once it is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def metrics_page(address: str) -> str:
    """Of a service, by the host:port of its metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as reply:
        text: str = reply.read().decode()
    return text


def quantile(values: Sequence[float], share: float) -> float:
    """The value itself at that rank, nothing between two. IndexError without values."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
