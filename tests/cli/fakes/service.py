"""A service that does nothing, as a real process: service.py NAME HOST:PORT JOURNAL [deaf|stillborn]

Appends "NAME up" and "NAME down" to JOURNAL. deaf: does not stop when asked. stillborn: ends with code 3.
"""

import asyncio
import sys
from pathlib import Path

from services.common import lifecycle, rpc

name, address, journal, *traits = sys.argv[1:]


def note(what: str) -> None:
    with Path(journal).open("a") as file:
        file.write(f"{name} {what}\n")


async def serve(life: lifecycle.Lifecycle) -> None:
    if "stillborn" in traits:
        print(f"{name}: no such model", file=sys.stderr)
        raise SystemExit(3)
    async with rpc.serve(address, lambda server: None, [], grace_s=0):
        note("up")
        await life.until_stopping()
        if "deaf" in traits:
            await asyncio.Event().wait()
        note("down")


if __name__ == "__main__":
    raise SystemExit(lifecycle.run(name, serve))
