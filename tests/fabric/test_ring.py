"""The ring's two sides and its layout."""

import ast
import enum
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.fabric import _ring
from services.fabric.errors import OutOfBounds
from services.fabric.region import MemoryRegion
from services.fabric.ring import (
    EngineState,
    EngineStatus,
    Finish,
    LeaseState,
    NotARing,
    Owner,
    RingClient,
    RingGeometry,
    RingOwner,
    Share,
    SlotState,
)
from services.fabric.ring.layout import HEADER, LEASE, RECORD, REPORT, header_field_offset, unpack
from services.fabric.transports import open_region

ROOT = Path(__file__).parents[2]
GEOMETRY = RingGeometry(slots=64, prompt_words=1 << 12, token_words=1 << 12)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[RingOwner]:
    with MemoryRegion.create("ring", GEOMETRY.size_bytes, directory=tmp_path) as region:
        yield RingOwner(region, GEOMETRY, epoch=42, max_context=2048, vocab_size=1000, page_count=7)


def client_of(owner: RingOwner, share: Share) -> RingClient:
    return RingClient(open_region(owner.region.descriptor()), share)


def test_the_layout_is_what_the_papers_figures_ask_for() -> None:
    assert (HEADER.itemsize, LEASE.itemsize, RECORD.itemsize, REPORT.itemsize) == (1024, 32, 128, 64)
    fields = RingGeometry(4096, 1 << 22, 1 << 22).fields()
    assert fields["cancels_offset"] - fields["words_offset"] == 32 << 10  # one bulk read refreshes 4,096 slots
    assert all(value % 64 == 0 for name, value in fields.items() if name.endswith("_offset"))
    assert header_field_offset("doorbells") % 64 == 0  # all in one cache line


@pytest.mark.parametrize(
    ("state", "finish", "generation", "tokens"),
    [
        (SlotState.EMPTY, Finish.NONE, 0, 0),
        (SlotState.KV_PENDING, Finish.DRAINING, 0xFFFFFF, 2**32 - 1),
        (SlotState.DECODE_COMPLETED, Finish.LENGTH, 1, 1),
    ],
)
def test_a_slot_word_holds_all_four(state: SlotState, finish: Finish, generation: int, tokens: int) -> None:
    word = _ring.slot_word(state, finish, generation, tokens)
    assert _ring.unpack_word(word) == (state, finish, generation, tokens)
    slots = unpack(np.array([word, 0], np.uint64))
    assert [part.tolist() for part in slots] == [[state, 0], [finish, 0], [generation, 0], [tokens, 0]]


def test_generations_skip_zero() -> None:
    assert [_ring.next_generation(g) for g in (0, 1, 0xFFFFFE, 0xFFFFFF)] == [1, 2, 0xFFFFFF, 1]


def test_the_docs_carry_the_transition_table() -> None:
    text = (ROOT / "docs/ring.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (front end|scheduler) \|", text, re.M)
    documented = {(source, target): owner for source, target, owner in rows}
    assert len(documented) == len(rows)
    actual = {
        (source.name.lower(), target.name.lower()): owner.name.lower().replace("_", " ")
        for source in SlotState
        for target in SlotState
        if (owner := _ring.transition_owner(source, target)) is not Owner.NOBODY
    }
    assert documented == actual


def test_the_docs_carry_the_layout() -> None:
    text = (ROOT / "docs/ring.md").read_text()
    fields = RingGeometry(4096, 1 << 22, 1 << 22).fields()
    for name, value in fields.items():
        if name.endswith("_offset") or name == "size_bytes":
            assert f"{value:,}" in text, f"docs/ring.md does not say that {name} is {value:,}"


def test_the_stub_names_what_the_module_has() -> None:
    tree = ast.parse((ROOT / "services/fabric/_ring.pyi").read_text())
    named = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    named |= {ast.unparse(node.target) for node in tree.body if isinstance(node, ast.AnnAssign)}
    assert named == {name for name in dir(_ring) if not name.startswith("__")}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members = [part.targets[0].id for part in node.body if isinstance(part, ast.Assign)]  # type: ignore[attr-defined]
            real = getattr(_ring, node.name)
            assert members == list(real.__members__)
            assert issubclass(real, enum.IntEnum | enum.IntFlag)


def test_a_client_sees_what_the_engine_says(owner: RingOwner) -> None:
    owner.grant(owner.share(2))
    client = client_of(owner, owner.share(2))
    assert (client.epoch, client.max_context, client.vocab_size, client.submitted) == (42, 2048, 1000, 0)
    assert client.read_status() == EngineStatus(42, 0, EngineState.STARTING)
    owner.set_engine_state(EngineState.SERVING)
    _ring.store_release_u64(owner.buffer, header_field_offset("heartbeat"), 3)
    assert client.read_status() == EngineStatus(42, 3, EngineState.SERVING)
    assert owner.heartbeat == 3


def test_shares_divide_the_ring(owner: RingOwner) -> None:
    shares = [owner.share(place) for place in range(owner.front_ends)]
    assert [share.slot_begin for share in shares] == list(range(0, 64, 8))
    assert all(share.prompt_count == share.token_count == 512 for share in shares)
    assert shares[7].prompt_begin + shares[7].prompt_count == GEOMETRY.prompt_words


def test_a_lease_goes_round(owner: RingOwner) -> None:
    assert owner.lease_state(0) is LeaseState.FREE
    owner.grant(owner.share(0))
    assert (owner.lease_state(0), owner.lease_state(1)) == (LeaseState.LEASED, LeaseState.FREE)
    with pytest.raises(RuntimeError, match="front-end place 0 is leased, not free"):
        owner.grant(owner.share(0))
    owner.end(0)
    owner.end(0)
    assert owner.lease_state(0) is LeaseState.ENDED
    owner.end(1)
    assert owner.lease_state(1) is LeaseState.FREE


def test_a_place_with_a_slot_in_use_is_not_leased(owner: RingOwner) -> None:
    words_at = GEOMETRY.fields()["words_offset"]
    _ring.store_release_u64(owner.buffer, words_at + 8 * 9, _ring.slot_word(SlotState.DECODE_PAUSED, Finish.NONE, 1, 0))
    with pytest.raises(RuntimeError, match="slot 9 of free front-end place 1 is not empty"):
        owner.grant(owner.share(1))
    assert owner.slot_states() == [63, 0, 0, 0, 1, 0, 0]


def test_leasing_makes_every_generation_new(owner: RingOwner) -> None:
    owner.grant(owner.share(0))
    assert set(unpack(client_of(owner, owner.share(0)).read_words()).generations.tolist()) == {1}
    assert set(unpack(client_of(owner, owner.share(1)).read_words()).generations.tolist()) == {0}


def test_a_region_too_small_for_its_ring(owner: RingOwner, tmp_path: Path) -> None:
    with MemoryRegion.create("small", GEOMETRY.size_bytes - 1, directory=tmp_path) as region:
        with pytest.raises(ValueError, match=f"the ring needs {GEOMETRY.size_bytes} bytes"):
            RingOwner(region, GEOMETRY, epoch=1, max_context=1, vocab_size=1, page_count=1)
        with pytest.raises(NotARing, match="holds no ring"):
            RingClient(open_region(region.descriptor()), owner.share(0))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", 1, "holds no ring"),
        ("version", 2, "version 2, this program reads 1"),
        ("records_offset", 64, "records_offset is 64, its geometry asks for"),
        ("slot_count", 1 << 20, "asks for"),
        ("max_context", 0, "max_context is 0"),
        ("max_context", 1 << 30, "max_context is"),
        ("engine_state", 99, "is no state"),
    ],
)
def test_a_header_that_does_not_hold_together_is_refused(
    owner: RingOwner, field: str, value: int, message: str
) -> None:
    owner.buffer[: HEADER.itemsize].view(HEADER)[0][field] = value
    with pytest.raises(NotARing, match=message):
        client_of(owner, owner.share(0)).read_status()


@pytest.mark.parametrize(
    "wrong",
    [
        {"slot_count": 65},
        {"slot_begin": 1, "slot_count": 64},
        {"slot_begin": 1 << 31, "slot_count": 1 << 31},
        {"slot_count": 0},
        {"prompt_count": 1 << 30},
        {"token_begin": 4096, "token_count": 1},
        {"front_end": 8},
    ],
    ids=str,
)
def test_a_share_that_is_no_part_of_the_ring_is_refused(owner: RingOwner, wrong: dict[str, int]) -> None:
    """An engine tells it by gRPC: a wrong one must not become memory, or another front end's doorbell."""
    with pytest.raises(NotARing, match="a share of"):
        client_of(owner, replace(owner.share(0), **wrong))


def test_a_client_stays_inside_its_share(owner: RingOwner) -> None:
    client = client_of(owner, owner.share(1))
    one, words = np.ones(1, np.uint64), np.zeros(1, np.uint32)
    for slot in (7, 16):
        slots = np.array([slot], np.uint64)
        for touch in (
            lambda slots=slots: client.cancel(slots, words),
            lambda slots=slots: client.read_reports(slots),
            lambda slots=slots: client.write_records(slots, np.zeros(1, RECORD)),
            lambda slots=slots: client.publish(slots, one, one),
            lambda slots=slots: client.release(slots, one, one),
        ):
            with pytest.raises(OutOfBounds, match=r"front end 1 holds \[8, 16\) of the slots only"):
                touch()
    for begin in (511, 1024):
        begins = np.array([begin], np.uint64)
        with pytest.raises(OutOfBounds, match="prompt arena only"):
            client.write_prompts(begins, one, words)
        with pytest.raises(OutOfBounds, match="token arena only"):
            client.read_tokens(begins, one)


def test_publishing_swaps_in_order_and_rings_once(owner: RingOwner) -> None:
    owner.grant(owner.share(0))
    client = client_of(owner, owner.share(0))
    words = client.read_words()
    slots = np.array([3, 1], np.uint64)
    pending = np.array([_ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, 2, 0)] * 2, np.uint64)
    assert client.publish(slots, words[[3, 1]], pending).tolist() == [True, True]
    assert client.publish(slots, words[[3, 1]], pending).tolist() == [False, False]
    assert unpack(client.read_words()).states.tolist() == [0, 1, 0, 1, 0, 0, 0, 0]
    assert int(owner.buffer[: HEADER.itemsize].view(HEADER)[0]["doorbells"][0]) == client.submitted == 4
