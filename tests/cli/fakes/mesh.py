"""A supervisor over fake services, as `hostless up` runs it: mesh.py FOLDER SPEC... [-- COMMAND...]

SPEC is NAME or NAME:TRAIT (see service.py). Prints events as lines, and "ready" once all are.
"""

import asyncio
import sys
from pathlib import Path

from services.cli.mesh import session
from services.cli.mesh.plan import HOST, ServicePlan
from services.cli.mesh.ports import free_ports
from services.cli.mesh.supervisor import Backoff, StartFailed, Supervisor

SERVICE = Path(__file__).with_name("service.py")


def say(*words: object) -> None:
    print(*words, flush=True)


class Lines:
    def starting(self, name: str, pid: int) -> None:
        say("starting", name, pid)

    def waiting(self, name: str, why: str) -> None:
        pass

    def ready(self, name: str, seconds: float) -> None:
        say("ready", name)

    def died(self, name: str, how: str, restart_in_s: float) -> None:
        say("died", name, how)

    def stopping(self, name: str) -> None:
        say("stopping", name)

    def stopped(self, name: str, by_itself: bool) -> None:
        say("stopped", name, by_itself)


def plans(folder: Path, specs: list[str], ports: list[int]) -> list[ServicePlan]:
    made = []
    for spec, port in zip(specs, ports, strict=True):
        name, _, trait = spec.partition(":")
        address = f"{HOST}:{port}"
        command = (sys.executable, str(SERVICE), name, address, str(folder / "journal"), *filter(None, [trait]))
        made.append(ServicePlan(name, command, address, ready_s=60, stop_s=1 if trait == "deaf" else 60))
    return made


def main() -> int:
    folder, *rest = sys.argv[1:]
    specs, command = (rest[: rest.index("--")], rest[rest.index("--") + 1 :]) if "--" in rest else (rest, [])
    with free_ports(len(specs), HOST) as ports:
        supervisor = Supervisor(
            plans(Path(folder), specs, ports),
            lambda name: Path(folder) / f"{name}.log",
            Lines(),
            publish=lambda members: say("published", *(m.child.pid for m in members)),
            backoff=Backoff(first_s=0.05),
        )
        try:
            return asyncio.run(session.run(supervisor, lambda: say("mesh ready"), command, "http://127.0.0.1:1"))
        except StartFailed as error:
            say("failed", error.name, error)
            return 1


if __name__ == "__main__":
    raise SystemExit(main())
