"""A peer that dies, over every transport: the others go on, and its descriptor is of no use to its successor."""

import signal
import threading

import numpy as np
import pytest

from services.fabric.errors import FabricError, NotARegion, StaleRegion, Unreachable
from services.fabric.hosting import RegionHost
from services.fabric.operations import TrafficClass
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from tests.fabric.conformance.benches import Bench
from tests.fabric.conformance.owner import owner

LENGTH = 4 << 20


def test_a_restarted_owner_refuses_the_old_descriptor(bench: Bench) -> None:
    with owner(bench.name, "mortal", LENGTH) as (process, old):
        remote = open_region(old)
        remote.write(0, b"before")
        process.send_signal(signal.SIGKILL)
        process.wait()
    with owner(bench.name, "mortal", LENGTH) as (_, new):
        with pytest.raises((StaleRegion, Unreachable)):
            remote.write(0, b"after")
        with pytest.raises((StaleRegion, NotARegion)):
            open_region(old)
        fresh = open_region(new)
        assert fresh.read(0, 6) == bytes(6)
        fresh.close()
    remote.close()


def test_an_owner_killed_in_the_middle_of_a_transfer(bench: Bench) -> None:
    """The writer gets an error soon, or, where the dead's memory is still there, goes on; it never hangs."""
    with owner(bench.name, "victim", LENGTH) as (process, descriptor):
        remote = open_region(descriptor)
        data = np.ones(LENGTH, np.uint8)
        remote.write(0, data[:4096], TrafficClass.KV)
        begun = threading.Event()
        ends: list[BaseException | None] = []

        def push() -> None:
            try:
                while process.poll() is None:
                    begun.set()
                    remote.write(0, data, TrafficClass.KV)
                remote.write(0, data, TrafficClass.KV)
                ends.append(None)
            except FabricError as error:
                ends.append(error)

        pushing = threading.Thread(target=push)
        pushing.start()
        assert begun.wait(60)
        process.send_signal(signal.SIGKILL)
        process.wait()
        pushing.join(60)
        assert not pushing.is_alive()
    assert bench.keeps_dead or isinstance(ends[0], StaleRegion | Unreachable)
    remote.close()


def test_a_peer_killed_leaves_the_owner_whole(bench: Bench, host: RegionHost) -> None:
    """Here the peer is this test's other process: an owner of nothing that the region depends on."""
    with host.create("survivor", 4096, Rights.ALL) as region:
        survivor = open_region(region.descriptor())
        with owner(bench.name, "stranger", 4096) as (process, descriptor):
            stranger = open_region(descriptor)
            stranger.write(0, b"x")
            process.send_signal(signal.SIGKILL)
        survivor.write(0, b"still here")
        assert region.view[:10].tobytes() == b"still here"
        stranger.close()
        survivor.close()
