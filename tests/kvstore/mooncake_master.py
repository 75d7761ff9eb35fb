"""A real mooncake_master for tests, on free ports."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.cli.mesh.ports import free_ports


@contextmanager
def master(log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """host:port of a running one, and its process."""
    with free_ports(2, "127.0.0.1") as (port, metrics):
        pass  # not kept: it listens without SO_REUSEADDR
    flags = [f"--rpc_port={port}", f"--metrics_port={metrics}", "--rpc_address=127.0.0.1"]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [Path(sys.executable).with_name("mooncake_master"), *flags, "--enable_metric_reporting=false"],
            stdout=out,
            stderr=out,
        ) as process,
    ):
        try:
            give_up = time.monotonic() + 20
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    assert process.poll() is None, log.read_text()
                    assert time.monotonic() < give_up, "mooncake_master does not listen"
                    time.sleep(0.05)
            yield f"127.0.0.1:{port}", process
        finally:
            process.kill()
