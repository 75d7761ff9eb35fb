"""Who may read only, or write only, does no more, over every transport: refused by name, and nothing happens."""

from collections.abc import Callable

import numpy as np
import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric.errors import NoRight
from services.fabric.hosting import RegionHost
from services.fabric.operations import CompareSwap, FetchAdd, Read, Write
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights
from services.fabric.transports import open_region

LENGTH = 4096
AT = np.array([0, 8], np.uint64)
EIGHT = np.array([8, 8], np.uint64)

TOUCHES: list[tuple[Rights, Callable[[RemoteRegion], object]]] = [
    (Rights.READ, lambda remote: remote.post([Read(0, bytearray(8))])),
    (Rights.READ, lambda remote: remote.gather(AT, EIGHT, np.empty(16, np.uint8))),
    (Rights.WRITE, lambda remote: remote.post([Write(0, b"12345678")])),
    (Rights.WRITE, lambda remote: remote.scatter(AT, EIGHT, np.ones(16, np.uint8))),
    (Rights.ATOMIC, lambda remote: remote.post([CompareSwap(0, 0, 7)])),
    (Rights.ATOMIC, lambda remote: remote.post([FetchAdd(0, 7)])),
    (Rights.ATOMIC, lambda remote: remote.cas_many(AT, np.zeros(2, np.uint64), np.ones(2, np.uint64))),
]
SOME = [Rights.READ, Rights.WRITE, Rights.ATOMIC, Rights.READ | Rights.WRITE, Rights.READ | Rights.ATOMIC]


@pytest.mark.parametrize("given", SOME, ids=str)
def test_peers_do_what_they_may_and_nothing_else(host: RegionHost, given: Rights) -> None:
    with host.create("least", LENGTH, given) as region:
        assert region.descriptor().rights == given
        remote = open_region(region.descriptor())
        for needed, touch in TOUCHES:
            if needed in given:
                region.view[:] = 0
                touch(remote)
                assert bool(region.view.any()) == (needed is not Rights.READ)
        region.view[:] = 3
        for needed, touch in TOUCHES:
            if needed not in given:
                with pytest.raises(NoRight, match=f"region .*: its owner gives no right to {needed.name.lower()}"):  # type: ignore[union-attr]
                    touch(remote)
        assert (region.view == 3).all()
        remote.verify()
        remote.close()


def test_a_batch_is_refused_as_a_whole(host: RegionHost) -> None:
    with host.create("batch", LENGTH, Rights.READ | Rights.WRITE) as region:
        remote = open_region(region.descriptor())
        with pytest.raises(NoRight, match="atomic"):
            remote.post([Write(0, b"12345678"), FetchAdd(0, 1)])
        assert not region.view.any()
        remote.close()


@pytest.mark.parametrize("given", SOME, ids=str)
def test_who_claims_more_is_refused(host: RegionHost, given: Rights) -> None:
    with host.create("claims", LENGTH, given) as region:
        claims = RegionDescriptor()
        claims.CopyFrom(region.descriptor())
        claims.rights = Rights.ALL
        with pytest.raises(NoRight, match=r"claims"):
            open_region(claims)


def test_who_asks_for_less_gets_less(host: RegionHost) -> None:
    """An owner may hand on a part of what the region gives."""
    with host.create("part", LENGTH, Rights.ALL) as region:
        part = RegionDescriptor()
        part.CopyFrom(region.descriptor())
        part.rights = Rights.READ
        remote = open_region(part)
        assert remote.read(0, 8) == bytes(8)
        with pytest.raises(NoRight, match="write"):
            remote.write(0, b"1")
        if (mapped := remote.mapped()) is not None:
            assert mapped.readonly
        remote.close()
