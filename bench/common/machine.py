"""What a figure was measured on, for the results of a benchmark."""

import os
import platform
import time
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """As it is now: the load is that before a run, if it is asked for before."""
    names = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }
