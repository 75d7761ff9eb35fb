from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from services.fabric.region import MemoryRegion
from services.fabric.ring import RingClient, RingGeometry, RingOwner
from services.fabric.tcp.agent import TcpPublisher
from services.fabric.transports import open_region
from services.tokenizer.attachment import share_of
from services.tokenizer.reader import Progress, TokenReader
from services.tokenizer.slots import SlotTracker
from services.tokenizer.submission import RingRequest, Submitter
from tests.tokenizer.ring.fake_scheduler import FakeScheduler, lease_of, make_ring


@dataclass
class Rig:
    """A ring with both its sides in this process."""

    owner: RingOwner
    scheduler: FakeScheduler
    ring: RingClient
    tracker: SlotTracker
    submitter: Submitter
    reader: TokenReader


@pytest.fixture
def publisher() -> TcpPublisher | None:
    """By which rings are reached; none: shared memory."""
    return None


@pytest.fixture
def rig(tmp_path: Path, publisher: TcpPublisher | None) -> Iterator[Callable[..., Rig]]:
    regions: list[MemoryRegion] = []

    def make(slots: int = 64, words: int = 1 << 15, tokens_per_poll: int = 1 << 20) -> Rig:
        geometry = RingGeometry(slots, words, words)
        region = MemoryRegion.create(f"ring-{len(regions)}", geometry.size_bytes, directory=tmp_path)
        regions.append(region)
        if publisher is not None:
            publisher.publish(region)
        owner, scheduler = make_ring(region, geometry)
        lease = lease_of(owner, 1)
        ring = RingClient(open_region(lease.ring), share_of(lease))
        tracker = SlotTracker(lease.slot_begin, ring.read_words())
        submitter = Submitter(ring, tracker)
        return Rig(owner, scheduler, ring, tracker, submitter, TokenReader(ring, submitter.release, tokens_per_poll))

    yield make
    for region in regions:
        region.close()


@pytest.fixture
def request_of() -> Callable[..., RingRequest]:
    def make(prompt_tokens: int = 5, max_tokens: int = 8, seed: int = 1, **more: object) -> RingRequest:
        prompt = np.arange(1, prompt_tokens + 1, dtype=np.uint64) * (seed % 97 + 1) % 50_000
        return RingRequest(prompt.astype(np.uint32), max_tokens, seed=seed, **more)  # type: ignore[arg-type]

    return make


__all__ = ["Progress", "Rig"]
