"""The parts without a disk: pacing, holes, records, checksums."""

import os
import random
from pathlib import Path
from typing import Any

import crc32c as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kvstore import _segments
from services.kvstore.block import Stored
from services.kvstore.engines.local import record as on_disk
from services.kvstore.engines.local.holes import data_spans, free, without
from services.kvstore.engines.local.pacing import TokenBucket
from services.kvstore.engines.local.record import PAGE, Record


@given(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 5_000_000)), min_size=1, max_size=60))
def test_a_bucket_never_lets_more_through_than_its_rate(takes: list[tuple[float, int]]) -> None:
    rate, burst = 1e6, 2e6
    bucket, now, total = TokenBucket(rate, burst, 0.0), 0.0, 0
    for pause, size in takes:
        now += pause
        now += bucket.take(size, now)  # the caller waits as told
        total += size
        assert total <= burst + rate * now + 1
    assert bucket.take(1, now + burst / rate + 5) == 0.0


def test_a_bucket_that_lets_nothing_through_is_refused() -> None:
    for rate, burst in ((0, 1), (1, 0), (-1, 1)):
        with pytest.raises(ValueError, match="above 0"):
            TokenBucket(rate, burst, 0.0)


def spans(marks: list[int]) -> list[tuple[int, int]]:
    ordered = sorted(set(marks))
    return list(zip(ordered[::2], ordered[1::2], strict=False))


@given(st.lists(st.integers(0, 60), max_size=12), st.lists(st.integers(0, 60), max_size=12))
def test_without_is_the_difference_of_sets(marks: list[int], kept_marks: list[int]) -> None:
    all_of, kept = spans(marks), spans(kept_marks)
    left = {at for begin, end in without(all_of, kept) for at in range(begin, end)}
    expected = {at for begin, end in all_of for at in range(begin, end)}
    assert left == expected - {at for begin, end in kept for at in range(begin, end)}


def test_data_and_holes_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 20 * PAGE)
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    assert list(data_spans(fd)) == [(0, 20 * PAGE)]
    free(fd, 3 * PAGE, 4 * PAGE)
    free(fd, 10 * PAGE, 18 * PAGE)
    _segments.allocate(fd, 20 * PAGE, 4 * PAGE)
    assert list(data_spans(fd)) == [(0, 3 * PAGE), (4 * PAGE, 10 * PAGE), (18 * PAGE, 20 * PAGE)]
    os.close(fd)


@given(st.binary(max_size=70_000), st.booleans())
def test_checksums_are_the_librarys(data: bytes, instruction: bool) -> None:
    instruction = instruction and _segments.CRC_INSTRUCTION
    assert _segments.crc32c(data, instruction) == reference.crc32c(data)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 12_288, 100_003, 1 << 20])
def test_checksums_of_all_sizes(size: int) -> None:
    data = random.Random(size).randbytes(size)
    for begin in (0, 1, 5):
        part = memoryview(data)[begin:]
        assert _segments.crc32c(part, False) == reference.crc32c(part) == _segments.crc32c(part)


@given(st.integers(1, _segments.LARGEST_BLOCK))
def test_a_block_has_at_most_512_pieces_of_16_kib_and_more(length: int) -> None:
    piece = _segments.piece_bytes(length)
    assert piece in (16 << 10, 32 << 10, 64 << 10)
    assert -(-length // piece) <= 512
    assert piece == 16 << 10 or length > 512 * piece // 2
    assert on_disk.footprint(length) == PAGE + -(-length // PAGE) * PAGE


def test_records_survive_and_nothing_else_passes_for_one(tools: Any) -> None:
    (block,) = tools.chain(1)
    record = Record(8192, 77, block.stored, 4096)
    head = on_disk.block_head(block, 5, nonce=99, record=record)
    assert head.startswith(on_disk.identity(block.key, block.length, 99, 8192))
    page = on_disk._sealed(head)
    assert on_disk.parse_block(page, 99, 8192) == record
    assert on_disk.parse_block(page, 98, 8192) is None
    assert on_disk.parse_block(page, 99, 4096) is None
    assert on_disk.parse_block(page[:-1], 99, 8192) is None
    for at in random.Random(1).sample(range(PAGE), 100):
        broken = bytearray(page)
        broken[at] ^= 1
        assert on_disk.parse_block(bytes(broken), 99, 8192) is None
    lying = on_disk._sealed(head.replace(block.tokens, bytes(256)))
    assert on_disk.parse_block(lying, 99, 8192) is None


@given(st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2, *[st.binary(min_size=16, max_size=16)] * 2), max_size=20))
def test_footers_survive(entries: list[tuple[int, int, bytes, bytes]]) -> None:
    records = [Record(offset, sequence, Stored(key, parent, 3, 9)) for offset, sequence, key, parent in entries]
    data = on_disk.footer(records)
    assert on_disk.parse_footer(data) == records
    page = on_disk.trailer(5, 4096, data)
    assert on_disk.parse_trailer(page, 5) == (4096, len(data), reference.crc32c(data))
    assert on_disk.parse_trailer(page, 6) is None


@given(st.lists(st.tuples(st.sampled_from(["set", "pop", "get"]), st.integers(0, 300)), max_size=400), st.booleans())
def test_a_table_of_places_is_a_dictionary(steps: list[tuple[str, int]], alike: bool) -> None:
    table, model = _segments.PlaceTable(), dict[bytes, int]()
    for at, (verb, number) in enumerate(steps):
        key = (b"same hash" + number.to_bytes(7)) if alike else number.to_bytes(8) * 2
        if verb == "set":
            assert table.set(key, at + 1) == model.get(key, 0)
            model[key] = at + 1
        else:
            assert (table.pop if verb == "pop" else table.get)(key) == model.get(key, 0)
            model.pop(key, None) if verb == "pop" else None
        assert len(table) == len(model)
    for number in range(301):
        for key in (b"same hash" + number.to_bytes(7), number.to_bytes(8) * 2):
            assert table.get(key) == model.get(key, 0)


def test_a_table_of_places_is_small() -> None:
    table = _segments.PlaceTable()
    for number in range(200_000):
        table.set(random.Random(number).randbytes(16), number + 1)
    assert 32 <= table.memory / len(table) <= 64
    for wrong in (b"", b"k" * 15):
        with pytest.raises(ValueError, match="16 bytes"):
            table.get(wrong)
