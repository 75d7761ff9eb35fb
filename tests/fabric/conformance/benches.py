"""The transports under test. A new one joins by an entry in BENCHES."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.fabric.errors import TransportUnavailable
from services.fabric.hosting import RegionHost
from services.fabric.verbs.device import local_device


@dataclass(frozen=True)
class Bench:
    """name        as descriptors carry it
    lanes       of transport verbs: who keeps the classes apart
    missing     why it can't be tested on this machine; empty: it can
    keeps_dead  whether a dead owner's memory can still be reached until somebody sweeps it
    """

    name: str
    lanes: str = "hardware"
    missing: Callable[[], str] = lambda: ""
    keeps_dead: bool = False

    @property
    def label(self) -> str:
        return self.name if self.lanes == "hardware" else f"{self.name}-{self.lanes}"

    @contextmanager
    def host(self) -> Iterator[RegionHost]:
        with RegionHost(self.name, "127.0.0.1:0") as host:
            yield host


def _no_device() -> str:
    try:
        local_device()
    except TransportUnavailable as error:
        return f"{error} (tests/rdma has a machine with one)"
    return ""


BENCHES = (
    Bench("shm", keeps_dead=True),
    Bench("tcp"),
    Bench("verbs", missing=_no_device),
    Bench("verbs", lanes="arbiter", missing=_no_device),
)
