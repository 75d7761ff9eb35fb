"""What a crash leaves: every durable block comes back right, nothing half-written shows, and no room is lost to it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.kvstore.block import BadBlock, Block
from services.kvstore.engines.local import LocalEngine
from services.kvstore.engines.local.record import PAGE, footprint
from tests.kvstore.engines.contract import load, write
from tests.kvstore.engines.local.conftest import SMALL, crash, segments, taken

LENGTH = 20_000
STEP = footprint(LENGTH)


@pytest.fixture
def died(root: Path, tools: Any) -> tuple[list[Block], bytes]:
    """A store that was killed after two puts of three blocks; what its only segment holds, but for trailing room."""
    engine = LocalEngine([root], SMALL)
    engine.scan()
    blocks = tools.chain(6, length=LENGTH)
    for half in (blocks[:3], blocks[3:]):
        assert engine.put([write(block, tools.payload(block)) for block in half]) == [None] * 3
    crash(engine)
    (path,) = segments(root)
    assert path.stat().st_size == 6 * STEP
    return blocks, path.read_bytes()


def recovered(root: Path, tools: Any, blocks: list[Block]) -> list[Block]:
    """Starts twice: by pages, then by the footer that the first start wrote. Blocks there, their bytes checked."""
    found = []
    for _ in range(2):
        engine = LocalEngine([root], SMALL)
        stored = engine.scan().blocks
        found.append([block for block in blocks if block.stored in stored])
        assert len(found[-1]) == len(stored)
        for block in found[-1]:
            assert load(engine, block) == tools.payload(block)
        # footer and trailer, and a page of the file system's for its extents
        assert taken(root) <= len(stored) * STEP + 3 * PAGE
        engine.close()
    assert found[0] == found[1]
    return found[0]


def test_all_durable_blocks_are_found_without_a_footer(root: Path, tools: Any, died: Any) -> None:
    assert recovered(root, tools, died[0]) == died[0]


POINTS = sorted(
    point
    for block in range(6)
    for start in [block * STEP]
    for point in (start, start + 1, start + 512, start + PAGE - 1, start + PAGE, start + PAGE + 512, start + STEP - 512)
)


@pytest.mark.parametrize("size", POINTS)
def test_a_file_cut_anywhere_keeps_the_blocks_before_the_cut(root: Path, tools: Any, died: Any, size: int) -> None:
    blocks, _ = died
    os.truncate(segments(root)[0], size)
    # the last page of a block is mostly padding, which no reader asks for; but it is not there, so nor is the block
    whole = size // STEP
    assert recovered(root, tools, blocks) == blocks[:whole]


@pytest.mark.parametrize("kind", ["zeros", "ones", "hole"])
@pytest.mark.parametrize("sector", [0, 1, 7, 8, 9, STEP // 512 - 8])
@pytest.mark.parametrize("block", [3, 4, 5])
def test_a_sector_of_the_last_put_that_was_not_written_loses_its_block_only(
    root: Path, tools: Any, died: Any, block: int, sector: int, kind: str
) -> None:
    blocks, data = died
    (path,) = segments(root)
    at = block * STEP + sector * 512
    with open(path, "r+b") as file:
        if kind == "hole":
            at = at // PAGE * PAGE
            os.truncate(path, at)
            os.truncate(path, len(data))
            file.seek(at + PAGE)
            file.write(data[at + PAGE :])
        else:
            file.seek(at)
            file.write((b"\0" if kind == "zeros" else b"\xff") * 512)
    lost = data[at : at + 512] != path.read_bytes()[at : at + 512]
    assert recovered(root, tools, blocks) == [one for one in blocks if not (lost and one is blocks[block])]


@pytest.mark.parametrize("at", [4, 30, 60, 200, 1024, PAGE - 1, PAGE])
def test_a_flipped_bit_is_seen_at_the_start_or_on_load(root: Path, tools: Any, died: Any, at: int) -> None:
    blocks, data = died
    (path,) = segments(root)
    flipped = bytearray(data)
    flipped[at] ^= 16
    path.write_bytes(flipped)
    engine = LocalEngine([root], SMALL)
    stored = engine.scan().blocks
    for block in blocks[1:]:
        assert load(engine, block) == tools.payload(block)
    if blocks[0].stored in stored:
        with pytest.raises(BadBlock):
            load(engine, blocks[0])
    engine.close()


def test_a_block_removed_before_the_crash_stays_away(root: Path, tools: Any) -> None:
    engine = LocalEngine([root], SMALL)
    engine.scan()
    blocks = tools.chain(6, length=LENGTH)
    assert engine.put([write(block, tools.payload(block)) for block in blocks]) == [None] * 6
    engine.remove([blocks[5].key, blocks[1].key, blocks[0].key])
    crash(engine)
    assert recovered(root, tools, blocks) == blocks[2:5]


def test_a_crash_between_the_two_steps_of_a_removal(root: Path, tools: Any, died: Any) -> None:
    blocks, _ = died
    (path,) = segments(root)
    _write(path, 2 * STEP, bytes(PAGE))  # its page is gone, its bytes are not
    assert recovered(root, tools, blocks) == [*blocks[:2], *blocks[3:]]


def test_a_header_inside_a_payload_is_none(root: Path, tools: Any, died: Any) -> None:
    """A client that knows the format writes a block whose bytes look like a segment's."""
    blocks, data = died
    (forged,) = tools.chain(1, seed=7, length=len(data))
    engine = LocalEngine([root], SMALL)
    engine.scan()
    (outcome,) = engine.put([write(forged, data)])
    assert outcome is None
    engine.remove([forged.key])
    crash(engine)
    assert recovered(root, tools, blocks) == blocks


@pytest.mark.parametrize("block", range(6))
def test_a_page_that_is_lost_costs_its_block_only(root: Path, tools: Any, died: Any, block: int) -> None:
    """Also a segment's first page: there is none that the others need."""
    blocks, _ = died
    _write(segments(root)[0], block * STEP, os.urandom(PAGE))
    assert recovered(root, tools, blocks) == [*blocks[:block], *blocks[block + 1 :]]


@pytest.mark.parametrize("damage", ["cut", "trailer", "footer"])
def test_a_torn_footer_costs_a_slower_start_only(root: Path, tools: Any, damage: str) -> None:
    engine = LocalEngine([root], SMALL)
    engine.scan()
    blocks = tools.chain(4, length=LENGTH)
    assert engine.put([write(block, tools.payload(block)) for block in blocks]) == [None] * 4
    engine.close()
    (path,) = segments(root)
    size = path.stat().st_size
    if damage == "cut":
        os.truncate(path, size - PAGE)
    else:
        _write(path, size - (PAGE if damage == "trailer" else 2 * PAGE), b"\xee" * 16)
    assert recovered(root, tools, blocks) == blocks


def test_rubbish_among_the_segments(root: Path, tools: Any, died: Any) -> None:
    blocks, data = died
    folder = segments(root)[0].parent
    ours = segments(root)[0].name
    (folder / "00000007-0123456789abcdef.seg").write_bytes(b"")
    (folder / "00000008-0123456789abcdef.seg").write_bytes(os.urandom(3 * PAGE))
    (folder / "00000009-0123456789abcdef.seg").write_bytes(data)  # another segment's pages
    (folder / "notes.txt").write_text("mine")
    (folder / "00000010-0123456789abcdef.seg").mkdir()
    assert recovered(root, tools, blocks) == blocks
    assert sorted(path.name for path in folder.iterdir()) == [ours, "00000010-0123456789abcdef.seg", "notes.txt"]


def test_copies_of_a_segment_are_taken_for_one(root: Path, tools: Any, died: Any) -> None:
    blocks, _ = died
    (path,) = segments(root)
    shutil.copy(path, path.with_name(path.name.replace("00000001", "00000005")))
    assert recovered(root, tools, blocks) == blocks


def test_only_what_was_under_way_is_read_again(
    root: Path, tools: Any, died: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    really: Callable[..., bool] = LocalEngine._whole

    def counted(self: LocalEngine, place: Any, key: bytes, length: int) -> bool:
        read.append(place.offset)
        return really(self, place, key, length)

    monkeypatch.setattr(LocalEngine, "_whole", counted)
    engine = LocalEngine([root], SMALL)
    engine.scan()
    engine.close()
    assert read == [number * STEP for number in (3, 4, 5)]


def _write(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)
