"""What an operation does, over every transport: results, order, atomicity, and 10,000 of them against a shadow."""

import random
import threading

import numpy as np

from services.fabric.operations import CompareSwap, FetchAdd, Operation, Read, TrafficClass, Write
from services.fabric.region import MemoryRegion
from services.fabric.remote_region import RemoteRegion
from services.fabric.rights import Rights
from services.fabric.transports import open_region
from tests.fabric.conformance.conftest import LENGTH

OPERATIONS = 10_000
BATCH = 100


def test_a_batch_runs_in_order_and_answers_what_was_found(remote: RemoteRegion) -> None:
    early, late = bytearray(8), bytearray(8)
    answers = remote.post(
        [
            Write(8, (5).to_bytes(8, "little")),
            CompareSwap(8, 5, 9),
            Read(8, early),
            Write(8, (7).to_bytes(8, "little")),
            CompareSwap(8, 5, 1),
            Read(8, late),
        ],
        TrafficClass.KV,
    )
    assert answers == [None, 5, None, None, 7, None]
    assert (int.from_bytes(early, "little"), int.from_bytes(late, "little")) == (9, 7)


def test_swaps_of_any_word(remote: RemoteRegion, region: MemoryRegion) -> None:
    for word in (1, 2**63, 2**64 - 1, 0x0123456789ABCDEF):
        assert remote.cas(LENGTH - 8, 0, word) == 0
        assert remote.cas(LENGTH - 8, 1 if word != 1 else 2, 3) == word
        assert int(region.view[-8:].view(np.uint64)[0]) == word
        assert remote.cas(LENGTH - 8, word, 0) == word


def test_adds_to_any_word(remote: RemoteRegion, region: MemoryRegion) -> None:
    word = region.view[-8:].view(np.uint64)
    for add, found, now in ((5, 0, 5), (2**64 - 1, 5, 4), (-7, 4, 2**64 - 3), (3, 2**64 - 3, 0)):
        assert remote.fetch_add(LENGTH - 8, add) == found
        assert int(word[0]) == now
    both = remote.post([FetchAdd(8, 2), CompareSwap(8, 2, 40), FetchAdd(8, 2), Write(8, bytes(8)), FetchAdd(8, 1)])
    assert both == [0, 2, 40, None, 0]
    assert int(region.view[8:16].view(np.uint64)[0]) == 1


def test_ten_thousand_operations_against_a_shadow(remote: RemoteRegion, region: MemoryRegion) -> None:
    chance = random.Random(7)
    shadow = bytearray(LENGTH)
    for _ in range(OPERATIONS // BATCH):
        operations: list[Operation] = []
        expected: list[bytes | int | None] = []
        for _ in range(BATCH):
            operation, answer = _random(chance, shadow)
            operations.append(operation)
            expected.append(answer)
        answers = remote.post(operations, chance.choice(list(TrafficClass)))
        for operation, answer, found in zip(operations, answers, expected, strict=True):
            got = bytes(operation.into) if isinstance(operation, Read) else answer  # type: ignore[arg-type]
            assert got == found, operation
        assert region.view.tobytes() == shadow


def _random(chance: random.Random, shadow: bytearray) -> tuple[Operation, bytes | int | None]:
    """An operation, what it answers, and its effect on the shadow."""
    kind = chance.choice("rwca")
    if kind in "ca":
        at = chance.randrange(64) * 8
        word = int.from_bytes(shadow[at : at + 8], "little")
        if kind == "a":
            add = chance.getrandbits(64)
            shadow[at : at + 8] = ((word + add) % 2**64).to_bytes(8, "little")
            return FetchAdd(at, add), word
        expected, desired = chance.choice((word, word ^ 1)), chance.getrandbits(64)
        if expected == word:
            shadow[at : at + 8] = desired.to_bytes(8, "little")
        return CompareSwap(at, expected, desired), word
    length = chance.choice((0, 1, 4, 8, chance.randrange(100), chance.randrange(2000)))
    at = chance.randrange(LENGTH - length + 1)
    if kind == "r":
        return Read(at, bytearray(length)), bytes(shadow[at : at + length])
    data = chance.randbytes(length)
    shadow[at : at + length] = data
    return Write(at, data), None


def test_bulk_operations(remote: RemoteRegion, region: MemoryRegion) -> None:
    random_bytes = np.random.default_rng(3)
    lengths = random_bytes.integers(0, 60, 700).astype(np.uint64)
    offsets = (np.arange(700, dtype=np.uint64) * np.uint64(64)) + np.uint64(3)
    flat = random_bytes.integers(0, 256, int(lengths.sum())).astype(np.uint8)
    remote.scatter(offsets, lengths, flat, TrafficClass.KV)
    got = np.empty_like(flat)
    remote.gather(offsets, lengths, got)
    assert np.array_equal(got, flat)
    words = np.arange(0, 8 * 600, 8, dtype=np.uint64)
    region.view[: 8 * 600].view(np.uint64)[:] = np.arange(600)
    expected = np.arange(600, dtype=np.uint64)
    expected[::2] += np.uint64(1)
    found = remote.cas_many(words, expected, np.full(600, 77, np.uint64))
    assert found.tolist() == list(range(600))
    assert region.view[: 8 * 600].view(np.uint64).tolist() == [77 if i % 2 else i for i in range(600)]


def test_large_copies_arrive_whole(host, bench) -> None:  # type: ignore[no-untyped-def]
    length = (3 << 20) + 24
    data = np.random.default_rng(1).integers(0, 256, length - 13, np.uint8)
    with host.create("large", length, Rights.ALL) as region:
        remote = open_region(region.descriptor())
        for offset in (0, 3, 8):
            remote.write(offset, data, TrafficClass.KV)
            assert np.array_equal(region.view[offset : offset + len(data)], data)
            assert remote.read(offset, len(data), TrafficClass.KV) == data.tobytes()
        remote.close()


def test_a_later_write_is_never_seen_before_an_earlier_one(remote: RemoteRegion, region: MemoryRegion) -> None:
    """The ring's rule: payload, then the word that announces it, by a later write of the same batch."""
    words = region.view.view(np.uint64)
    last, rounds = LENGTH // 8 - 1, 300
    faults = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            announced = int(words[last])
            if (seen := int(words[:64].min())) < announced:
                faults.append((announced, seen))
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for number in range(1, rounds + 1):
            payload = np.full(64, number, np.uint64)
            remote.post([Write(0, payload), Write(8 * last, number.to_bytes(8, "little"))])
    finally:
        done.set()
        watcher.join()
    assert not faults


def test_words_of_a_bulk_read_are_whole(remote: RemoteRegion, region: MemoryRegion) -> None:
    """While the owner stores words whose halves are equal, no reader sees one whose halves differ."""
    words = region.view[: 8 * 128].view(np.uint64)
    done = threading.Event()

    def store() -> None:
        number = 0
        while not done.is_set():
            number = (number + 0x01010101) & 0xFFFFFFFF
            words[:] = number << 32 | number

    writer = threading.Thread(target=store)
    writer.start()
    torn = 0
    try:
        for offset in (0, 0, 3, 5):
            for _ in range(100):
                seen = np.frombuffer(bytes(remote.read(offset, 8 * 127)), np.uint8)
                skip = -offset % 8
                whole = seen[skip : skip + 8 * 126].copy().view(np.uint64)
                torn += int(np.count_nonzero(whole >> np.uint64(32) != whole & np.uint64(0xFFFFFFFF)))
    finally:
        done.set()
        writer.join()
    assert not torn


def test_one_swap_of_many_wins(region: MemoryRegion) -> None:
    each = 50

    def add() -> None:
        remote = open_region(region.descriptor())
        for _ in range(each):
            found = 0
            while (now := remote.cas(0, found, found + 1)) != found:
                found = now
        remote.close()

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(region.view[:8].view(np.uint64)[0]) == 3 * each


def test_adds_of_many_all_count(region: MemoryRegion) -> None:
    each = 200

    def add() -> None:
        remote = open_region(region.descriptor())
        for _ in range(each):
            remote.fetch_add(0, 3)
        remote.close()

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(region.view[:8].view(np.uint64)[0]) == 3 * 3 * each


def test_one_region_from_many_threads(remote: RemoteRegion, region: MemoryRegion) -> None:
    def fill(number: int) -> None:
        piece = np.full(1000, number, np.uint8)
        for _ in range(20):
            remote.write(number * 1000, piece, TrafficClass.KV if number % 2 else TrafficClass.MODEL)
            assert remote.read(number * 1000, 1000) == piece.tobytes()

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert region.view[:4000].tolist() == [number for number in range(4) for _ in range(1000)]
