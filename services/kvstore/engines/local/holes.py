"""Which parts of a file hold data, and how parts are freed."""

import errno
import os
from collections.abc import Iterable, Iterator

from services.kvstore import _segments

Span = tuple[int, int]
"""[begin, end) in bytes."""


def data_spans(fd: int) -> Iterator[Span]:
    """The parts of a file that were written and not freed, in order; room that was only allocated is none."""
    at = 0
    while True:
        try:
            begin = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        at = os.lseek(fd, begin, os.SEEK_HOLE)
        yield begin, at


def without(spans: Iterable[Span], kept: Iterable[Span]) -> Iterator[Span]:
    """What of `spans` lies outside `kept`; both in order and without overlap."""
    keeping = iter([*kept, (1 << 63, 1 << 63)])
    low, high = next(keeping)
    for begin, end in spans:
        while begin < end:
            if high <= begin:
                low, high = next(keeping)
            elif low >= end:
                yield begin, end
                begin = end
            else:
                if begin < low:
                    yield begin, low
                begin = high


def free(fd: int, offset: int, end: int) -> None:
    """Frees a block's room. Its page goes first, so that a crash in between leaves nothing that looks like a block."""
    _segments.punch(fd, offset, _segments.PAGE)
    if end > offset + _segments.PAGE:
        _segments.punch(fd, offset + _segments.PAGE, end - offset - _segments.PAGE)
