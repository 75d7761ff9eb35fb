"""Requests that are laid out in a share, one behind the other."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.fabric import _ring
from services.fabric.errors import OutOfBounds
from services.fabric.region import MemoryRegion
from services.fabric.ring import Finish, RingClient, RingGeometry, RingOwner, SlotState
from services.fabric.ring.burst import Burst
from services.fabric.ring.layout import RECORD
from services.fabric.transports import open_region

GEOMETRY = RingGeometry(slots=64, prompt_words=1 << 12, token_words=1 << 12)
PROMPTS = [np.arange(count, dtype=np.uint32) for count in (3, 5, 2)]
MOST = [7, 1, 4]


class Engine:
    """The ring's memory, as an engine has it."""

    def __init__(self, owner: RingOwner) -> None:
        at = GEOMETRY.fields()
        buffer = owner.buffer
        self.words = buffer[at["words_offset"] :][: 8 * 64].view(np.uint64)
        self.records = buffer[at["records_offset"] :][: RECORD.itemsize * 64].view(RECORD)
        self.prompts = buffer[at["prompt_offset"] :][: 4 << 12].view(np.uint32)
        self.tokens = buffer[at["token_offset"] :][: 4 << 12].view(np.uint32)

    def finish(self, slot: int, count: int) -> None:
        record = self.records[slot]
        self.tokens[record["token_begin"] :][:count] = 100 * slot + np.arange(count)
        generation = int(record["generation"])
        self.words[slot] = _ring.slot_word(SlotState.DECODE_COMPLETED, Finish.LENGTH, generation, count)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[tuple[Engine, RingClient]]:
    with MemoryRegion.create("ring", GEOMETRY.size_bytes, directory=tmp_path) as region:
        owner = RingOwner(region, GEOMETRY, epoch=42, max_context=2048, vocab_size=1000, page_count=7)
        owner.grant(share := owner.share(1))
        client = RingClient(open_region(region.descriptor()), share)
        yield Engine(owner), client
        client.close()


def test_requests_lie_one_behind_the_other_and_are_numbered(ring: tuple[Engine, RingClient]) -> None:
    engine, client = ring
    first = client.share.slot_begin
    burst = Burst(client, PROMPTS, MOST)
    burst.submit(slice(0, 1))
    assert burst.look().states.tolist() == [SlotState.PREFILL_PENDING, SlotState.EMPTY, SlotState.EMPTY]
    burst.submit(slice(1, 3))
    assert set(burst.look().states.tolist()) == {SlotState.PREFILL_PENDING}
    records = engine.records[first : first + 3]
    assert records["sequence"].tolist() == [1, 2, 3]
    assert client.submitted == 3
    assert (records["token_begin"] - client.share.token_begin).tolist() == [0, 7, 8]
    for record, prompt in zip(records, PROMPTS, strict=True):
        assert engine.prompts[record["prompt_begin"] :][: record["prompt_count"]].tolist() == prompt.tolist()


def test_answers_are_read_and_slots_used_again(ring: tuple[Engine, RingClient]) -> None:
    engine, client = ring
    first = client.share.slot_begin
    burst = Burst(client, PROMPTS, MOST)
    burst.submit()
    for at, count in enumerate(MOST):
        engine.finish(first + at, count)
    assert burst.answers() == [[100 * (first + at) + i for i in range(count)] for at, count in enumerate(MOST)]
    burst.release()
    assert set(burst.look().states.tolist()) == {SlotState.EMPTY}
    again = Burst(client, PROMPTS, MOST)
    assert (again.records["generation"] == burst.records["generation"] + 1).all()
    again.submit()
    with pytest.raises(RuntimeError, match="not all requests"):
        burst.release()


def test_what_does_not_fit_is_refused(ring: tuple[Engine, RingClient]) -> None:
    _, client = ring
    with pytest.raises(OutOfBounds):
        Burst(client, [np.zeros(600, np.uint32)], [1]).submit()
