"""How a batch of blocks becomes durable: placed behind what its segments hold, written, and synced once a segment.

A lane is one caller's at a time, and has a segment in every folder; blocks go to the folders in turn. So the blocks of
a batch are written to all disks at once, and what is below a segment's end is durable whenever a batch begins.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.kvstore import _segments
from services.kvstore.block import BadBlock
from services.kvstore.engines import Write
from services.kvstore.engines.local import record as on_disk
from services.kvstore.engines.local import segment as files
from services.kvstore.engines.local.holes import free
from services.kvstore.engines.local.record import Record, footprint
from services.kvstore.engines.local.segment import Segment

Outcomes = list[Exception | None]
FULL = (errno.ENOSPC, errno.EDQUOT)
PACED_BYTES = 8 << 20
"""What a write limit lets through at once."""


class Store(Protocol):
    """What a lane needs of its engine."""

    channels: _segments.Channels

    @property
    def paced(self) -> bool:
        """Whether there is a write limit."""
        ...

    def new_segment(self, folder: int) -> Segment:
        """Raises OSError."""
        ...

    def seal(self, segment: Segment) -> None: ...
    def next_sequence(self) -> int: ...
    def pace(self, size: int) -> None:
        """Waits until the write limit lets so many bytes through."""
        ...

    def publish(self, segment: Segment, records: Sequence[Record]) -> None: ...


@dataclass(slots=True)
class _Placed:
    at: int
    """In the batch."""
    write: Write
    segment: Segment
    record: Record


class Lane:
    def __init__(self, store: Store, folders: int, segment_bytes: int) -> None:
        self._store = store
        self._active: list[Segment | None] = [None] * folders
        self._segment_bytes = segment_bytes
        self._turn = 0

    def append(self, writes: Sequence[Write]) -> Outcomes:
        """One outcome a block; those without an error are durable and visible."""
        outcomes: Outcomes = [None] * len(writes)
        waiting = list(range(len(writes)))
        sequences = [self._store.next_sequence() for _ in writes]
        folders = list(range(len(self._active)))
        why: OSError | None = None
        while waiting and folders:
            placed, waiting, failed = self._place(writes, sequences, waiting, folders)
            for folder, error in failed:
                folders.remove(folder)
                why = error
            self._write(placed, outcomes)
        for at in waiting:
            outcomes[at] = why
        return outcomes

    def close(self) -> None:
        for folder in range(len(self._active)):
            self._retire(folder)

    def _place(
        self, writes: Sequence[Write], sequences: list[int], waiting: list[int], folders: list[int]
    ) -> tuple[list[_Placed], list[int], list[tuple[int, OSError]]]:
        """Room for as many as the active segments take; what is left, and the folders where there was none at all."""
        shares: dict[int, list[int]] = {folder: [] for folder in folders}
        for at in waiting:
            self._turn += 1
            shares[folders[self._turn % len(folders)]].append(at)
        placed: list[_Placed] = []
        failed: list[tuple[int, OSError]] = []
        for folder, share in shares.items():
            try:
                placed += self._place_in(folder, writes, sequences, share)
            except OSError as error:
                failed.append((folder, error))
        done = {one.at for one in placed}
        return placed, [at for at in waiting if at not in done], failed

    def _place_in(self, folder: int, writes: Sequence[Write], sequences: list[int], share: list[int]) -> list[_Placed]:
        if not share:
            return []
        segment = self._segment_for(folder, footprint(writes[share[0]].block.length))
        placed: list[_Placed] = []
        end = segment.end
        for at in share:
            record = Record(end, sequences[at], writes[at].block.stored, segment.end)
            if record.end > self._segment_bytes and placed:
                break
            placed.append(_Placed(at, writes[at], segment, record))
            end = record.end
        while placed:  # a disk that is nearly full may have room for fewer
            try:
                files.allocate(segment, placed[-1].record.end - segment.end)
                return placed
            except OSError as error:
                if error.errno not in FULL or len(placed) == 1:
                    raise
                placed = placed[: len(placed) // 2]
        return placed

    def _segment_for(self, folder: int, size: int) -> Segment:
        segment = self._active[folder]
        if segment is not None and segment.end and segment.end + size > self._segment_bytes:
            self._retire(folder)
            segment = None
        if segment is None:
            segment = self._active[folder] = self._store.new_segment(folder)
        return segment

    def _retire(self, folder: int) -> None:
        segment, self._active[folder] = self._active[folder], None
        if segment is not None:
            self._store.seal(segment)

    def _write(self, placed: list[_Placed], outcomes: Outcomes) -> None:
        placed = sorted(placed, key=lambda one: one.at)  # the folders' shares interleaved: all disks work at once
        segments = list({id(one.segment): one.segment for one in placed}.values())
        try:
            results = [result for group in self._groups(placed) for result in self._write_group(group)]
            synced = self._store.channels.sync([segment.file for segment in segments])
        except BaseException:
            for segment in segments:
                files.cut(segment, segment.end)
            raise
        results_of = {one.at: result for one, result in zip(placed, results, strict=True)}
        for segment, error in zip(segments, synced, strict=True):
            self._settle(segment, error, [one for one in placed if one.segment is segment], results_of, outcomes)

    def _settle(
        self, segment: Segment, sync_error: int, placed: list[_Placed], results: dict[int, int], outcomes: Outcomes
    ) -> None:
        """Publishes what is durable in one segment, and gives back the rest."""
        good, lost = [], []
        for one in placed:
            result = results[one.at] or sync_error
            if result == _segments.DONE:
                good.append(one.record)
            else:
                lost.append(one.record)
                outcomes[one.at] = _refusal(result, segment)
        segment.end = max((record.end for record in good), default=segment.end)
        self._store.publish(segment, good)
        if lost:
            self._give_back(segment, lost)
        if sync_error or any(isinstance(outcomes[one.at], OSError) for one in placed):
            self._retire(self._active.index(segment))  # what the kernel holds of it is not to be trusted with more

    def _give_back(self, segment: Segment, lost: list[Record]) -> None:
        """Also on the disk, as far as it lets us: a put that failed is a miss for ever."""
        files.cut(segment, segment.end)
        with contextlib.suppress(OSError):
            for record in lost:
                if record.offset < segment.end:
                    free(segment.fd, record.offset, record.end)
            os.fdatasync(segment.fd)

    def _groups(self, placed: list[_Placed]) -> Iterator[list[_Placed]]:
        """All at once, or, where writes are limited, as much as goes at once."""
        group: list[_Placed] = []
        size = 0
        for one in placed:
            group.append(one)
            size += one.record.end - one.record.offset
            if self._store.paced and size >= PACED_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _write_group(self, group: list[_Placed]) -> list[int]:
        self._store.pace(sum(one.record.end - one.record.offset for one in group))
        return self._store.channels.write(
            [
                (
                    *one.segment.file,
                    one.record.offset,
                    on_disk.block_head(one.write.block, one.write.crc, one.segment.nonce, one.record),
                    one.write.data,
                    one.write.crc,
                )
                for one in group
            ]
        )


def _refusal(result: int, segment: Segment) -> Exception:
    if result == _segments.WRONG_BYTES:
        return BadBlock("payload checksum differs")
    return OSError(result, os.strerror(result), str(segment.path))
