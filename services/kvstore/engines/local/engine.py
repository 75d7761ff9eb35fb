"""The engine `local`: blocks in append-only segment files on this machine's disks, past the page cache.

Which files and where is decided here, in Python; the bytes move in native/: io_uring, checksums, verification.
"""

import contextlib
import errno
import itertools
import logging
import mmap
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from services.kvstore import _segments
from services.kvstore.block import Stored
from services.kvstore.engines import Read, Scan, Write
from services.kvstore.engines.local import checks, holes, recovery
from services.kvstore.engines.local import record as on_disk
from services.kvstore.engines.local import segment as files
from services.kvstore.engines.local.appending import PACED_BYTES, Lane, Outcomes
from services.kvstore.engines.local.folder import Folder
from services.kvstore.engines.local.options import LocalOptions
from services.kvstore.engines.local.pacing import TokenBucket
from services.kvstore.engines.local.places import Place, Places
from services.kvstore.engines.local.record import Record
from services.kvstore.engines.local.segment import Segment

log = logging.getLogger(__name__)

LANE_WAIT_S = 300
"""How long a put waits for its turn: a disk that hangs must not gather threads without end."""


class LocalEngine:
    """One folder a disk; blocks go to them in turn. Raises SettingError when one can't be used."""

    shared = False

    def __init__(self, folders: Sequence[Path], options: LocalOptions | None = None) -> None:
        self._options = options = options or LocalOptions()
        with contextlib.ExitStack() as undo:
            self._folders = []
            for root in folders:
                self._folders.append(Folder(root))
                undo.callback(self._folders[-1].close)
            self.channels = _segments.Channels(options.channels, options.queue_depth, options.io)
            undo.pop_all()
        if self.channels.why:
            log.warning("no io_uring here: threads read and write", extra={"reason": self.channels.why})
        self._places = Places(self._dispose)
        self._numbers, self._sequences = itertools.count(1), itertools.count(1)
        self._lanes: queue.LifoQueue[Lane] = queue.LifoQueue()  # the last used first: few segments
        for _ in range(options.lanes):
            self._lanes.put(Lane(self, len(self._folders), options.segment_bytes))
        limit = options.write_limit_bytes_s
        self._bucket = TokenBucket(limit, PACED_BYTES, time.monotonic()) if limit else None
        self._bucket_lock = threading.Lock()
        self._closing = threading.Event()

    @property
    def largest_block(self) -> int:
        return _segments.LARGEST_BLOCK

    @property
    def index_bytes(self) -> int:
        """Memory for where the blocks are: 32 to 64 bytes a block."""
        return self._places.memory

    def footprint(self, length: int) -> int:
        return on_disk.footprint(length)

    def scan(self) -> Scan:
        number = broken = 0
        records: list[Record] = []
        for folder in self._folders:
            folder.remove_older()
            for its_number, nonce, path in folder.files():
                number = max(number, its_number)
                found, lost = self._reopen(folder, path, nonce)
                records += found
                broken += lost
        records.sort(key=lambda record: record.sequence)
        sequence = records[-1].sequence if records else 0
        self._numbers, self._sequences = itertools.count(number + 1), itertools.count(sequence + 1)
        latest = {record.stored.key: record for record in records}
        return Scan([record.stored for record in records if latest[record.stored.key] is record], broken)

    def find(self, keys: Sequence[bytes]) -> list[Stored]:
        return []

    def put(self, writes: Sequence[Write]) -> Outcomes:
        outcomes: Outcomes = [checks.unfit(write) for write in writes]
        fit = [at for at, outcome in enumerate(outcomes) if outcome is None]
        if not fit:
            return outcomes
        try:
            lane = self._lanes.get(timeout=LANE_WAIT_S)
        except queue.Empty:
            return [
                outcome or OSError(errno.ETIMEDOUT, "the disks have not taken earlier blocks") for outcome in outcomes
            ]
        try:
            done = lane.append([writes[at] for at in fit])
        finally:
            self._lanes.put(lane)
        for at, outcome in zip(fit, done, strict=True):
            outcomes[at] = outcome
        return outcomes

    def load(self, reads: Sequence[Read]) -> list[Exception | None]:
        with self._places.using([read.key for read in reads]) as places:
            outcomes: list[Exception | None] = [checks.no_slice(*pair) for pair in zip(reads, places, strict=True)]
            asked = [
                (at, read, place)
                for at, (read, place) in enumerate(zip(reads, places, strict=True))
                if place is not None and outcomes[at] is None
            ]
            results = self.channels.read([checks.request(read, place) for _, read, place in asked])
            for (at, _, place), result in zip(asked, results, strict=True):
                outcomes[at] = checks.loss(result, place)
        return outcomes

    def remove(self, keys: Sequence[bytes]) -> list[OSError | None]:
        outcomes: list[OSError | None] = []
        for key in keys:
            place = self._places.forget(key)
            outcomes.append(self._free(place) if place is not None else None)
        return outcomes

    def register(self, memory: memoryview) -> None:
        if not self.channels.add_memory(memory):
            log.info("memory is not registered with the disks", extra={"bytes": memory.nbytes})

    def unregister(self, memory: memoryview) -> None:
        self.channels.drop_memory(memory)

    def close(self) -> None:
        """Waits for puts under way. Segments get their footers, so that the next start is quick. Idempotent."""
        if self._closing.is_set():
            return
        self._closing.set()
        self.close_lanes()
        for segment in self._places.all_segments():
            files.close(segment, self.channels)
        for folder in self._folders:
            folder.close()

    def close_lanes(self) -> None:
        """Ends the segments that are appended to, once the puts under way are done; later puts begin new ones."""
        lanes = [self._lanes.get() for _ in range(self._options.lanes)]
        for lane in lanes:
            lane.close()
            self._lanes.put(lane)

    # What a lane needs of its store:

    @property
    def paced(self) -> bool:
        return self._bucket is not None

    def pace(self, size: int) -> None:
        if self._bucket is None:
            return
        with self._bucket_lock:
            wait = self._bucket.take(size, time.monotonic())
        self._closing.wait(wait)

    def next_sequence(self) -> int:
        return next(self._sequences)

    def new_segment(self, folder: int) -> Segment:
        place = self._folders[folder]
        segment = files.create(place.segments, next(self._numbers), self.channels, place.direct)
        self._places.open_segment(segment)
        return segment

    def publish(self, segment: Segment, records: Sequence[Record]) -> None:
        for replaced in self._places.add(segment, records):
            self._free(replaced)

    def seal(self, segment: Segment) -> None:
        records = self._places.close_segment(segment)
        if records:
            files.seal(segment, records)
        self._places.done([segment])

    def _free(self, place: Place) -> OSError | None:
        try:
            holes.free(place.segment.fd, place.offset, place.end)
        except OSError as error:
            return error
        finally:
            self._places.done([place.segment])
        return None

    def _dispose(self, segment: Segment) -> None:
        files.close(segment, self.channels)
        try:
            segment.path.unlink()
        except OSError as error:
            log.error("an empty segment stays", extra={"path": str(segment.path), "reason": str(error)})

    def _reopen(self, folder: Folder, path: Path, nonce: int) -> tuple[list[Record], int]:
        """Takes in a segment of an earlier run: its blocks, and how many were not whole. All else in it goes."""
        try:
            found = recovery.inspect(path, nonce)
            segment = files.reopen(path, nonce, self.channels, folder.direct)
        except OSError as error:
            log.error("a segment can't be read", extra={"path": str(path), "reason": str(error)})
            return [], 1
        broken = {
            record.offset
            for record in found.doubtful
            if not self._whole(Place(segment, record.offset, record.end), record.stored.key, record.stored.length)
        }
        alive = [record for record in found.records if record.offset not in broken]
        self._tidy(segment, found, alive)
        self._places.open_segment(segment)
        for replaced in self._places.add(segment, alive):
            self._free(replaced)
        self._places.close_segment(segment)
        self._places.done([segment])
        return alive, len(broken)

    def _tidy(self, segment: Segment, found: recovery.Found, alive: list[Record]) -> None:
        try:
            for begin, end in found.rubbish(alive):
                holes.free(segment.fd, begin, end)
        except OSError as error:
            log.error("room of lost blocks is not freed", extra={"path": str(segment.path), "reason": str(error)})
        if alive and not found.sealed:
            segment.end = alive[-1].end
            files.seal(segment, alive)

    def _whole(self, place: Place, key: bytes, length: int) -> bool:
        """Reads a block into memory of our own and verifies it."""
        with mmap.mmap(-1, length) as scratch, memoryview(scratch) as into:
            return self.channels.read([checks.request(Read(key, length, 0, into), place)]) == [_segments.DONE]
