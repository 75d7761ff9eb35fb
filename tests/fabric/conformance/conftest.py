"""Every test here runs over each transport that this machine has."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.fabric.hosting import RegionHost
from services.fabric.region import MemoryRegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from services.fabric.verbs.arbitrated import LANES_VARIABLE
from tests.fabric.conformance.benches import BENCHES, Bench

LENGTH = 1 << 16


HERE = [bench for bench in BENCHES if not bench.missing()]


@pytest.fixture(params=HERE, ids=[bench.label for bench in HERE])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    chosen: Bench = request.param
    monkeypatch.setenv("HOSTLESS_SHM", str(tmp_path))
    monkeypatch.setenv(LANES_VARIABLE, chosen.lanes)
    return chosen


@pytest.fixture
def host(bench: Bench) -> Iterator[RegionHost]:
    with bench.host() as host:
        yield host


@pytest.fixture
def region(host: RegionHost) -> Iterator[MemoryRegion]:
    with host.create("conformance", LENGTH, Rights.ALL) as region:
        yield region


@pytest.fixture
def remote(region: MemoryRegion) -> Iterator[RemoteRegion]:
    remote = open_region(region.descriptor())
    yield remote
    remote.close()
