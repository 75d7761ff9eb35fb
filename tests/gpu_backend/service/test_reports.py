"""What a report says of a ring, against counting slot by slot."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.fabric import _ring
from services.fabric.region import MemoryRegion
from services.fabric.ring import Finish, RingGeometry, RingOwner, SlotState
from services.fabric.ring.layout import RECORD
from services.gpu_backend.reports import RingLoad, StoreTraffic, make_report, read_load

GEOMETRY = RingGeometry(slots=64, prompt_words=1024, token_words=1024)

COUNTERS = {
    "free_pages": 1,
    "running": 2,
    "prefill_launches": 3,
    "decode_launches": 4,
    "prompt_tokens": 5,
    "cached_tokens": 6,
    "generated_tokens": 7,
    "preemptions": 8,
    "blocks_dropped": 9,
}


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RingOwner]:
    folder: Path = tmp_path_factory.mktemp("shm")
    with MemoryRegion.create("reports", GEOMETRY.size_bytes, directory=folder) as region:
        yield RingOwner(region, GEOMETRY, epoch=1, max_context=64, vocab_size=10, page_count=4)


slots = st.dictionaries(
    st.integers(0, GEOMETRY.slots - 1),
    st.tuples(st.sampled_from(SlotState), st.integers(0, 2**31), st.integers(0, 2**31)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(slots)
def test_load_equals_counting_by_hand(ring: RingOwner, filled: dict[int, tuple[SlotState, int, int]]) -> None:
    fields = ring.geometry.fields()
    records = ring.buffer[fields["records_offset"] :][: RECORD.itemsize * GEOMETRY.slots].view(RECORD)
    states, requests, tokens = [0] * len(SlotState), 0, 0
    for slot in range(GEOMETRY.slots):
        state, generated, prompt = filled.get(slot, (SlotState.EMPTY, 0, 5))
        word = _ring.slot_word(state, Finish.NONE, 1, generated)
        _ring.store_release_u64(ring.buffer, fields["words_offset"] + 8 * slot, word)
        records["prompt_count"][slot] = prompt
        states[state] += 1
        if state not in (SlotState.EMPTY, SlotState.DECODE_COMPLETED):
            requests, tokens = requests + 1, tokens + prompt + generated
    assert read_load(ring) == RingLoad(states, requests, tokens)


def test_waiting_is_what_does_not_run() -> None:
    load = RingLoad([60, 0, 1, 2, 1, 0, 0], requests=4, tokens=100)
    store = StoreTraffic(read_queue_tokens=64, blocks_stored=3, blocks_dropped=5)
    report = make_report("e", load, COUNTERS, store, accepting=True)
    assert (report.requests, report.running, report.waiting, report.accepting) == (4, 2, 2, True)
    assert (report.read_queue_tokens, report.blocks_stored, report.blocks_dropped) == (64, 3, 9 + 5)
    assert make_report("e", load, COUNTERS | {"running": 9}, store, True).waiting == 0
