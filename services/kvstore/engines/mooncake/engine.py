"""The engine `mooncake`: a block is an object of its page (see engines/page.py) and its bytes.

Several stores may be members of one pool. A block that another one put is found by `find`; one that the pool dropped,
for room or because a machine left, is a miss at the first read. That an object exists is never taken for an answer: its
page must be the block's, and the checksums right. Nothing outlives the pool, and a scan finds nothing.
"""

from collections.abc import Sequence

from services.kvstore.block import BadBlock, Stored
from services.kvstore.engines import Read, Scan, Write, page
from services.kvstore.engines.mooncake.pool import Pool
from services.kvstore.engines.page import LARGEST_BLOCK, PAGE_BYTES

FIND_BATCH = 64
"""Pages fetched at once to see how long a run is."""


class MooncakeEngine:
    """Closes the pool's member that it is given."""

    shared = True
    largest_block = LARGEST_BLOCK
    index_bytes = 0

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def footprint(self, length: int) -> int:
        return PAGE_BYTES + length

    def scan(self) -> Scan:
        return Scan([], 0)

    def find(self, keys: Sequence[bytes]) -> list[Stored]:
        run: list[Stored] = []
        for at in range(0, len(keys), FIND_BATCH):
            batch = keys[at : at + FIND_BATCH]
            pages = memoryview(bytearray(PAGE_BYTES * len(batch)))
            parts = [[pages[n * PAGE_BYTES : (n + 1) * PAGE_BYTES]] for n in range(len(batch))]
            outcomes = self._pool.get_ranges([key.hex() for key in batch], parts, [[0]] * len(batch))
            for key, (raw,), outcome in zip(batch, parts, outcomes, strict=True):
                try:
                    found = page.parse(raw).block.stored
                except BadBlock:
                    return run
                if outcome is not None or found.key != key:
                    return run
                run.append(found)
        return run

    def put(self, writes: Sequence[Write]) -> list[Exception | None]:
        outcomes: list[Exception | None] = [None] * len(writes)
        parts: dict[int, list[memoryview]] = {}
        for at, write in enumerate(writes):
            try:
                head = page.make(write.block, write.data, write.crc)
                parts[at] = [memoryview(bytearray(head)), write.data]
            except BadBlock as fault:
                outcomes[at] = fault
        if parts:
            keys = [writes[at].block.key.hex() for at in parts]
            for at, outcome in zip(parts, self._pool.put(keys, list(parts.values())), strict=True):
                outcomes[at] = outcome
        return outcomes

    def load(self, reads: Sequence[Read]) -> list[Exception | None]:
        """Whole blocks by one call, slices by another."""
        outcomes: list[Exception | None] = [None] * len(reads)
        whole = [at for at, read in enumerate(reads) if read.offset == 0 and len(read.into) == read.length]
        for chosen, load in (
            (whole, self._load_whole),
            (sorted(set(range(len(reads))) - set(whole)), self._load_slices),
        ):
            if chosen:
                for at, outcome in zip(chosen, load([reads[at] for at in chosen]), strict=True):
                    outcomes[at] = outcome
        return outcomes

    def remove(self, keys: Sequence[bytes]) -> list[OSError | None]:
        return self._pool.remove([key.hex() for key in keys])

    def register(self, memory: memoryview) -> None:
        self._pool.register(memory)

    def unregister(self, memory: memoryview) -> None:
        self._pool.unregister(memory)

    def close(self) -> None:
        self._pool.close()

    def _load_whole(self, reads: Sequence[Read]) -> list[Exception | None]:
        pages = [memoryview(bytearray(PAGE_BYTES)) for _ in reads]
        parts = [[raw, read.into] for raw, read in zip(pages, reads, strict=True)]
        outcomes = self._pool.get([read.key.hex() for read in reads], parts)
        return [
            outcome or _fault(read, raw, 0, read.into)
            for read, raw, outcome in zip(reads, pages, outcomes, strict=True)
        ]

    def _load_slices(self, reads: Sequence[Read]) -> list[Exception | None]:
        """Rounded out to pieces, as these are what is summed; into place directly where the slice is whole pieces."""
        bounds = [page.around(read.length, read.offset, len(read.into)) for read in reads]
        pages = [memoryview(bytearray(PAGE_BYTES)) for _ in reads]
        pieces = [
            read.into if end - begin == len(read.into) else memoryview(bytearray(end - begin))
            for read, (begin, end) in zip(reads, bounds, strict=True)
        ]
        outcomes = self._pool.get_ranges(
            [read.key.hex() for read in reads],
            [[raw, data] for raw, data in zip(pages, pieces, strict=True)],
            [[0, PAGE_BYTES + begin] for begin, _ in bounds],
        )
        checked: list[Exception | None] = []
        for read, raw, data, (begin, _), outcome in zip(reads, pages, pieces, bounds, outcomes, strict=True):
            checked.append(outcome or _fault(read, raw, begin, data))
            if checked[-1] is None and data is not read.into:
                read.into[:] = data[read.offset - begin : read.offset - begin + len(read.into)]
        return checked


def _fault(read: Read, raw: memoryview, begin: int, data: memoryview) -> BadBlock | None:
    try:
        found = page.parse(raw)
        found.require(read.key, read.length)
        found.around(read.offset, len(read.into))
        found.verify(begin, data)
    except BadBlock as fault:
        return fault
    return None
