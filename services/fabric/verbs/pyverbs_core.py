"""Verbs by pyverbs, Debian's package: needs nothing to be built, and costs Python some calls an operation."""

import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hostless.v1.fabric_pb2 import QueuePairEnd
from services.fabric.errors import FabricError, TransportUnavailable, Unreachable
from services.fabric.lanes import Lane
from services.fabric.operations import Atomic, CompareSwap, FetchAdd, Operation, Read, Write
from services.fabric.remote_region import pieces
from services.fabric.verbs import rounds
from services.fabric.verbs.core import (
    DEPTH,
    INLINE_BYTES,
    MOST_READS,
    NO_DMABUF,
    PORT,
    RETRIES,
    ROUND_S,
    TIMEOUT,
    WORD,
    Access,
    Far,
    Kind,
    check,
    check_end,
    failure,
    locked_memory,
)
from services.fabric.verbs.library import pyverbs

SPINS = 64
SLEEP_S = (20e-6, 0.5e-3)
"""A completion is looked for so often at once, as that is when a NIC answers; then between sleeps that grow."""

Flat = NDArray[np.uint8]


class PyverbsMemory:
    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.local_key, self.remote_key = int(handle.lkey), int(handle.rkey)

    def close(self) -> None:
        self._handle.close()


class PyverbsDevice:
    def __init__(self, name: str, gid_index: int) -> None:
        """Raises TransportUnavailable if the device can't be opened or its port is down."""
        self.enums, self._mr, error = pyverbs("enums"), pyverbs("mr"), pyverbs("pyverbs_error").PyverbsError
        try:
            self.context = pyverbs("device").Context(name=name)
            self.protection = pyverbs("pd").PD(self.context)
            port = self.context.query_port(PORT)
            self.reads = min(MOST_READS, int(self.context.query_device().max_qp_rd_atom))
            self.gid = bytes.fromhex(str(self.context.query_gid(PORT, gid_index)).replace(":", ""))
        except error as reason:
            raise TransportUnavailable(f"RDMA device {name}: {reason}; see `hostless fabric check`") from None
        if port.state != self.enums.IBV_PORT_ACTIVE:
            raise TransportUnavailable(f"RDMA device {name}: its port is not active; see `hostless fabric check`")
        self.name, self.gid_index = name, gid_index
        self.lid, self.mtu = int(port.lid), 128 << int(port.active_mtu)
        self.lock = threading.RLock()
        """pyverbs keeps lists of what belongs to a context: held while something is made or ended."""

    def register(self, address: int, length: int, access: Access) -> PyverbsMemory:
        try:
            with self.lock:
                return PyverbsMemory(self._mr.MR(self.protection, length, int(access), address=address))
        except pyverbs("pyverbs_error").PyverbsRDMAError as reason:
            raise locked_memory(self.name, length, reason) from None

    def register_gpu(self, dmabuf: int, offset: int, length: int, access: Access) -> PyverbsMemory:
        try:
            with self.lock:
                made = self._mr.DmaBufMR(self.protection, length, int(access), dmabuf=dmabuf, offset=offset)
                return PyverbsMemory(made)
        except pyverbs("pyverbs_error").PyverbsError as reason:
            raise TransportUnavailable(
                f"RDMA device {self.name} does not register GPU memory by dma-buf ({reason}); {NO_DMABUF}"
            ) from None

    def queue_pair(self, access: Access = Access.NONE, staging_bytes: int = 0) -> "PyverbsQueuePair":
        return PyverbsQueuePair(self, access, staging_bytes)


class PyverbsQueuePair:
    def __init__(self, device: PyverbsDevice, access: Access, staging_bytes: int) -> None:
        """Use queue_pair()."""
        self._device, self._access = device, int(access)
        self._enums = e = device.enums
        self._sequence = secrets.randbits(24)
        self._requests = 0
        self._lost = False
        qp = pyverbs("qp")
        operations = e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_READ
        operations |= e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | e.IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        try:
            with device.lock:
                self._completions = pyverbs("cq").CQ(device.context, DEPTH + 1)
                wanted = qp.QPInitAttrEx(
                    qp_type=e.IBV_QPT_RC,
                    scq=self._completions,
                    rcq=self._completions,
                    cap=qp.QPCap(max_send_wr=DEPTH, max_recv_wr=1, max_inline_data=INLINE_BYTES),
                    pd=device.protection,
                    comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                    send_ops_flags=operations,
                )
                self._pair = qp.QPEx(device.context, wanted)
        except pyverbs("pyverbs_error").PyverbsError as error:
            raise TransportUnavailable(f"RDMA device {device.name} makes no queue pair: {error}") from None
        self._sge = pyverbs("wr").SGE(0, 0, 0)
        self._staging: Flat = np.zeros(staging_bytes, np.uint8)
        self._staging_at = int(self._staging.ctypes.data)
        self._memory = device.register(self._staging_at, staging_bytes, Access.LOCAL_WRITE) if staging_bytes else None

    def end(self) -> QueuePairEnd:
        device = self._device
        return QueuePairEnd(
            number=self._pair.qp_num,
            sequence=self._sequence,
            gid=device.gid,
            lid=device.lid,
            mtu=device.mtu,
            reads=device.reads,
        )

    def connect(self, other: QueuePairEnd, lane: Lane) -> None:
        check_end(other)
        addr, attr, init = pyverbs("addr"), pyverbs("qp").QPAttr(port_num=PORT), pyverbs("qp").QPAttr(port_num=PORT)
        init.qp_access_flags = attr.qp_access_flags = self._access
        attr.path_mtu = min(self._device.mtu, other.mtu).bit_length() - 8  # ibv_mtu: 1 is 256 bytes
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = other.number, other.sequence, self._sequence
        attr.max_rd_atomic = attr.max_dest_rd_atomic = max(1, min(self._device.reads, other.reads))
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = TIMEOUT, RETRIES, RETRIES, 12
        gid = ":".join(other.gid[at : at + 2].hex() for at in range(0, 16, 2))
        route = addr.GlobalRoute(
            dgid=addr.GID(gid),
            sgid_index=self._device.gid_index,
            flow_label=lane.flow_label,
            traffic_class=lane.traffic_class,
            hop_limit=64,
        )
        attr.ah_attr = addr.AHAttr(gr=route, is_global=1, port_num=PORT, sl=lane.service_level, dlid=other.lid)
        try:
            with self._device.lock:
                self._pair.to_init(init)
                self._pair.to_rts(attr)
        except pyverbs("pyverbs_error").PyverbsError as error:
            raise FabricError(
                f"RDMA device {self._device.name} (GID index {self._device.gid_index}) finds no way to GID {gid}: "
                f"{error}"
            ) from None

    def post(self, operations: Sequence[Operation], far: Far) -> list[int | None]:
        views = [_view(operation) for operation in operations]
        lengths = [WORD if view is None else len(view) for view in views]
        check(operations, lengths, far)
        answers: list[int | None] = [None] * len(operations)
        staging = self._staging
        for now in rounds.rounds(operations, lengths, far.length, len(staging)):
            for piece in now.pieces:
                view = views[piece.index]
                if piece.kind is Kind.WRITE and view is not None:
                    staging[piece.staged : piece.staged + piece.length] = view[piece.begin : piece.end]
            self._ring(now.pieces, operations, far)
            self._wait()
            for piece in now.pieces:
                begin, view = piece.staged + piece.lead, views[piece.index]
                if piece.kind is Kind.READ and view is not None:
                    view[piece.begin : piece.end] = staging[begin : begin + piece.end - piece.begin]
                elif piece.kind in (Kind.SWAP, Kind.ADD):
                    answers[piece.index] = int(staging[begin : begin + WORD].view(np.uint64)[0])
        return answers

    def move(
        self, kind: Kind, offsets: NDArray[np.uint64], lengths: NDArray[np.uint64], flat: NDArray[Any], far: Far
    ) -> None:
        make = Write if kind is Kind.WRITE else Read
        self.post([make(at, piece) for at, piece in pieces(offsets, lengths, flat)], far)

    def swap(
        self, offsets: NDArray[np.uint64], expected: NDArray[np.uint64], desired: NDArray[np.uint64], far: Far
    ) -> NDArray[np.uint64]:
        triples = zip(offsets.tolist(), expected.tolist(), desired.tolist(), strict=True)
        return np.array(self.post([CompareSwap(*triple) for triple in triples], far), np.uint64)

    def lose(self) -> None:
        self._lost = True

    def close(self) -> None:
        with self._device.lock, suppress(pyverbs("pyverbs_error").PyverbsError):
            self._pair.close()
            self._completions.close()
            if self._memory is not None:
                self._memory.close()

    def _ring(self, now: Sequence[rounds.Piece], operations: Sequence[Operation], far: Far) -> None:
        e, pair, sge, memory = self._enums, self._pair, self._sge, self._memory
        if self._lost or memory is None:
            raise Unreachable("the connection has ended")
        sge.lkey = memory.local_key
        before = Kind.WRITE
        pair.wr_start()
        for at, piece in enumerate(now):
            kind, local, remote = piece.kind, self._staging_at + piece.staged, far.address + piece.offset
            # A later request of another kind may overtake a read or a swap, unless it is told to wait for it.
            flags = e.IBV_SEND_FENCE if kind is not before and before is not Kind.WRITE else 0
            if at == len(now) - 1:
                flags |= e.IBV_SEND_SIGNALED
                self._requests += 1
            inline = kind is Kind.WRITE and piece.length <= INLINE_BYTES
            pair.wr_id = self._requests
            pair.wr_flags = flags | (e.IBV_SEND_INLINE if inline else 0)
            if kind is Kind.WRITE:
                pair.wr_rdma_write(far.key, remote)
            elif kind is Kind.READ:
                pair.wr_rdma_read(far.key, remote)
            else:
                atomic = operations[piece.index]
                if isinstance(atomic, CompareSwap):
                    pair.wr_atomic_cmp_swp(far.key, remote, atomic.expected, atomic.desired)
                elif isinstance(atomic, FetchAdd):
                    pair.wr_atomic_fetch_add(far.key, remote, atomic.add % 2**64)
            if inline:
                pair.wr_set_inline_data(local, piece.length)
            else:
                sge.addr, sge.length = local, piece.length
                pair.wr_set_sge(sge)
            before = kind
        try:
            pair.wr_complete()
        except pyverbs("pyverbs_error").PyverbsError as error:
            raise FabricError(f"RDMA device {self._device.name} refuses {len(now)} requests: {error}") from None

    def _wait(self) -> None:
        give_up = time.monotonic() + ROUND_S
        pause, most = SLEEP_S
        spins = 0
        while True:
            count, found = self._completions.poll(1)
            if count:
                if found[0].status != self._enums.IBV_WC_SUCCESS:
                    raise failure(found[0].status)
                if found[0].wr_id == self._requests:
                    return
            elif (spins := spins + 1) > SPINS:
                if self._lost:
                    raise Unreachable("the connection has ended")
                if time.monotonic() > give_up:
                    raise Unreachable(f"no completion within {ROUND_S:g} s")
                time.sleep(pause)
                pause = min(pause * 1.2, most)


def _view(operation: Operation) -> Flat | None:
    """An operation's memory as flat bytes; None for an atomic, which has none."""
    if isinstance(operation, Atomic):
        return None
    memory: Any = operation.into if isinstance(operation, Read) else operation.data
    flat = np.frombuffer(memory, np.uint8) if memoryview(memory).nbytes else np.empty(0, np.uint8)
    if isinstance(operation, Read) and not flat.flags.writeable:
        raise BufferError("what is read into must be writable")
    return flat
