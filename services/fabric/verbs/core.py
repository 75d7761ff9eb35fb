"""What verbs does for this transport, whatever library does it.

native_core.py is that, or pyverbs_core.py where the native module is not built: docs/decisions/0005.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import QueuePairEnd
from services.fabric.errors import FabricError, StaleRegion, Unreachable
from services.fabric.lanes import Lane
from services.fabric.operations import Atomic, Operation
from services.fabric.rights import Rights

PORT = 1
WORD = 8

DEPTH = 512
"""Work requests of one doorbell, at most."""

STAGING_BYTES = 2 << 20
"""Registered memory of a peer's connection, through which everything moves; the most of a doorbell."""

INLINE_BYTES = 64
"""Writes up to this length are copied into the request itself, if the device can; the NIC saves a read of memory."""

ROUND_S = 30.0
"""Of one doorbell to its completion, at most. A network that is down fails sooner, by TIMEOUT and RETRIES."""

TIMEOUT = 14
"""Of a packet: 4.096 us * 2**14 = 67 ms; a device may take up to four times as long."""

RETRIES = 7
"""The most there are: after 8 lost tries, half a second at the least, the connection has failed."""

MTUS = (256, 512, 1024, 2048, 4096)

MOST_READS = 16
"""Reads and atomics of one queue pair under way at once, at most; devices keep state for each."""


class Access(enum.IntFlag):
    """What may be done to registered memory: ibv_access_flags."""

    NONE = 0
    LOCAL_WRITE = 1
    REMOTE_WRITE = 2
    REMOTE_READ = 4
    REMOTE_ATOMIC = 8


_ACCESS = (
    (Rights.READ, Access.REMOTE_READ),
    (Rights.WRITE, Access.REMOTE_WRITE | Access.LOCAL_WRITE),
    (Rights.ATOMIC, Access.REMOTE_ATOMIC | Access.LOCAL_WRITE),
)


def access_of(rights: Rights) -> Access:
    """What memory is registered with, for peers with these rights. What peers change, the device must be let write."""
    return Access(sum({flag for right, access in _ACCESS if right & rights for flag in access}))


class Kind(enum.IntEnum):
    READ = 1
    WRITE = 2
    SWAP = 3
    ADD = 4


@dataclass(frozen=True, slots=True)
class Far:
    """Memory at the other end: `length` bytes at `address`, by the device's `key`."""

    address: int
    length: int
    key: int


class Registration(Protocol):
    """Memory that a device may touch; `close`, idempotent, ends that at once."""

    @property
    def remote_key(self) -> int: ...
    def close(self) -> None: ...


class QueuePair(Protocol):
    """One end of a reliable connection. Verbs: `end` to tell the other end, `connect` to what that told, run, close.

    The three that run operations return when all are complete, in order. They raise IndexError for bytes outside `far`
    and ValueError for words that are not aligned, before anything is done; StaleRegion, Unreachable or FabricError
    when the queue pair is of no use any more. Not for two threads at a time, but `lose` is for any.
    """

    def end(self) -> QueuePairEnd:
        """What the other end has to know of this one."""
        ...

    def connect(self, other: QueuePairEnd, lane: Lane) -> None:
        """Raises FabricError if `other` can't be, or the device refuses: a wrong GID, or no way there."""
        ...

    def post(self, operations: Sequence[Operation], far: Far) -> list[int | None]:
        """Answers, in order, the word found by each atomic, else None."""
        ...

    def move(
        self, kind: Kind, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], flat: NDArray[Any], far: Far
    ) -> None:
        """Reads into, or writes from, one flat array that the pieces fill exactly."""
        ...

    def swap(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64], far: Far
    ) -> NDArray[np.uint64]:
        """Answers the words found."""
        ...

    def lose(self) -> None:
        """The connection has ended, as told from elsewhere: what waits and what comes raises Unreachable."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class Device(Protocol):
    """An open RDMA device. For any thread. Lives as long as the process: see device.py."""

    name: str

    def register(self, address: int, length: int, access: Access) -> Registration:
        """Host memory, pinned from now on. Raises OSError, with what to do about a limit of locked memory."""
        ...

    def register_gpu(self, dmabuf: int, offset: int, length: int, access: Access) -> Registration:
        """GPU memory, by the file descriptor of its dma-buf (cuMemGetHandleForAddressRange), so that the device reads
        and writes it without the host (D7). Peers address it from 0.

        Raises TransportUnavailable where the device or its driver has no dma-buf registration.
        """
        ...

    def queue_pair(self, access: Access = Access.NONE, staging_bytes: int = 0) -> QueuePair:
        """`access` is what the other end may do; `staging_bytes` are for running operations from this end.

        Raises TransportUnavailable.
        """
        ...


def check_end(end: QueuePairEnd) -> None:
    """Raises FabricError for what no other end could have told: it came from a peer."""
    fine = len(end.gid) == 16 and end.mtu in MTUS and end.reads and end.lid < 1 << 16
    if not fine or max(end.number, end.sequence) >= 1 << 24:
        raise FabricError(f"the other end of a queue pair tells what can't be: {str(end)!r}")


def check(operations: Sequence[Operation], lengths: Sequence[int], far: Far) -> None:
    """Raises IndexError or ValueError, as the native core does."""
    for operation, length in zip(operations, lengths, strict=True):
        offset = operation.offset
        if offset < 0 or offset + length > far.length:
            raise IndexError(f"bytes [{offset}, +{length}) of a region of {far.length} bytes")
        if isinstance(operation, Atomic) and offset % WORD:
            raise ValueError(f"offset {offset} of an 8-byte word is not a multiple of 8")


_LOST_TRIES = (12, 13, 20)  # IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_RESP_TIMEOUT_ERR
_FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR
_REFUSED_THERE = (9, 10)  # IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR


def failure(status: int) -> FabricError:
    """What an ibv_wc_status other than success means here."""
    if status in _REFUSED_THERE:
        return StaleRegion("the owner's device refuses: the region has ended, or gives no right to this operation")
    if status in _LOST_TRIES:
        return Unreachable(f"the owner's device has not answered {RETRIES + 1} tries")
    if status == _FLUSHED:
        return Unreachable("the queue pair has failed")
    return FabricError(f"a request failed with ibv_wc_status {status}")


def locked_memory(name: str, length: int, reason: Exception) -> OSError:
    return OSError(
        f"RDMA device {name} does not register {length} bytes ({reason}); if the limit of locked memory is lower "
        "(ulimit -l), raise it"
    )


NO_DMABUF = "it takes mlx5 or another driver with ibv_reg_dmabuf_mr, and NVIDIA's open kernel modules"
