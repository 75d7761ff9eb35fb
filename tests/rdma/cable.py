"""What a test does to the cable between the two devices of the virtual machine (guest/init.sh)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

PORTS = ("cable0", "cable1")


@contextmanager
def netem(*words: str) -> Iterator[None]:
    """Both directions suffer until the block ends: netem("loss", "5%")."""
    for port in PORTS:
        _run("tc", "qdisc", "add", "dev", port, "root", "netem", *words)
    try:
        yield
    finally:
        for port in PORTS:
            _run("tc", "qdisc", "del", "dev", port, "root")


def cut() -> "contextmanager[None]":  # type: ignore[type-arg]
    """Nothing passes until the block ends. (A port that is set down would take its queue pairs' addresses with it.)"""
    return netem("loss", "100%")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=10)
