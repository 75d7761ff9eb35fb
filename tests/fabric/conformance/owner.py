"""A process that owns a region, to be killed: python -m tests.fabric.conformance.owner TRANSPORT NAME LENGTH

Prints the region's descriptor in hexadecimal, and ends when its input does.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.hosting import RegionHost
from services.fabric.rights import Rights

END_S = 20.0


@contextmanager
def owner(transport: str, name: str, length: int) -> Iterator[tuple["subprocess.Popen[str]", RegionDescriptor]]:
    """The process and its region. It is ended with the block, if it still lives."""
    command = [sys.executable, "-m", "tests.fabric.conformance.owner", transport, name, str(length)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        try:
            yield process, RegionDescriptor.FromString(bytes.fromhex(process.stdout.readline()))
        finally:
            process.stdin.close()
            process.wait(END_S)


def main(transport: str, name: str, length: str) -> None:
    with RegionHost(transport, "127.0.0.1:0") as host, host.create(name, int(length), Rights.ALL) as region:
        print(region.descriptor().SerializeToString().hex(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
