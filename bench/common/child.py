"""Children of benches, which are not waited for without end."""

import subprocess
import threading
from typing import Any

STARTS_S = 60.0
ENDS_S = 30.0


def first_line(child: subprocess.Popen[str], within_s: float = STARTS_S) -> str:
    """What it says first on its stdout. A child that is silent for longer is killed, and RuntimeError raised."""
    assert child.stdout
    watch = threading.Timer(within_s, child.kill)
    watch.start()
    try:
        line = child.stdout.readline()
    finally:
        watch.cancel()
    if not line:
        raise RuntimeError(f"{child.args!r} has ended, or said nothing for {within_s:g} s")
    return line


def end(child: subprocess.Popen[Any], within_s: float = ENDS_S) -> None:
    """Closes its stdin, which asks it to end; kills it where it does not."""
    if child.stdin:
        child.stdin.close()
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        child.kill()
        raise
