"""One end of a reliable connection: made, connected to its other end, and, by peers of a region, driven."""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto

from hostless.v1.fabric_pb2 import QueuePairEnd
from services.fabric.errors import FabricError, StaleRegion, TransportUnavailable, Unreachable
from services.fabric.verbs.device import PORT, RdmaDevice, gid_text
from services.fabric.verbs.lanes import Lane
from services.fabric.verbs.library import pyverbs

DEPTH = 512
"""Work requests of one doorbell, at most."""

INLINE_BYTES = 64
"""Writes up to this length are copied into the request itself, if the device can; the NIC saves a read of memory."""

ROUND_S = 30.0
"""Of one doorbell to its completion, at most. A network that is down fails sooner, by TIMEOUT and RETRIES."""

TIMEOUT = 14
"""Of a packet: 4.096 us * 2**14 = 67 ms; a device may take up to four times as long."""

RETRIES = 7
"""The most there are: after 8 lost tries, half a second at the least, the connection has failed."""

SPINS = 64
SLEEP_S = (20e-6, 1e-3)
"""A completion is looked for so often at once, as that is when a NIC answers; then between sleeps that grow."""


class Kind(Enum):
    READ = auto()
    WRITE = auto()
    SWAP = auto()


@dataclass(frozen=True, slots=True)
class Request:
    """One work request. `local` and `remote` are addresses. A SWAP leaves the word found at `local`, 8 bytes."""

    kind: Kind
    local: int
    remote: int
    length: int
    expected: int = 0
    desired: int = 0


class QueuePair:
    """Verbs: make, `end` to tell the other end, `connect` to what that told, `run`, close.

    Not for two threads at a time.
    """

    def __init__(self, device: RdmaDevice, access: int = 0) -> None:
        """`access` is what the other end may do to this process's memory (IBV_ACCESS_REMOTE_*)."""
        self._device, self._access = device, access
        self._enums = e = device.enums
        self._sequence = secrets.randbits(24)
        self._requests = 0
        qp, sge = pyverbs("qp"), pyverbs("wr").SGE
        operations = e.IBV_QP_EX_WITH_RDMA_WRITE | e.IBV_QP_EX_WITH_RDMA_READ | e.IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
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
        self._sge = sge(0, 0, 0)

    def end(self) -> QueuePairEnd:
        """What the other end has to know of this one."""
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
        """Raises FabricError if the device refuses: a wrong GID, or no way there."""
        addr, attr = pyverbs("addr"), pyverbs("qp").QPAttr(port_num=PORT)
        attr.qp_access_flags = self._access
        attr.path_mtu = min(self._device.mtu, other.mtu).bit_length() - 8  # ibv_mtu
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = other.number, other.sequence, self._sequence
        attr.max_rd_atomic = attr.max_dest_rd_atomic = max(1, min(self._device.reads, other.reads))
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer = TIMEOUT, RETRIES, RETRIES, 12
        route = addr.GlobalRoute(
            dgid=addr.GID(gid_text(other.gid)),
            sgid_index=self._device.gid_index,
            flow_label=lane.flow_label,
            traffic_class=lane.traffic_class,
            hop_limit=64,
        )
        attr.ah_attr = addr.AHAttr(gr=route, is_global=1, port_num=PORT, sl=lane.service_level, dlid=other.lid)
        try:
            with self._device.lock:
                init = pyverbs("qp").QPAttr(port_num=PORT)
                init.qp_access_flags = self._access
                self._pair.to_init(init)
                self._pair.to_rts(attr)
        except pyverbs("pyverbs_error").PyverbsError as error:
            raise FabricError(
                f"RDMA device {self._device.name} (GID index {self._device.gid_index}) finds no way to GID "
                f"{gid_text(other.gid)}: {error}"
            ) from None

    def run(self, requests: Sequence[Request], local_key: int, remote_key: int, lost: "Lost") -> None:
        """Posts at most DEPTH requests by one doorbell, and returns when all are complete, in order.

        After an error the queue pair is of no use any more. Raises StaleRegion, Unreachable or FabricError.
        """
        self._post(requests, local_key, remote_key)
        self._wait(lost)

    def close(self) -> None:
        """Idempotent."""
        with self._device.lock, suppress(pyverbs("pyverbs_error").PyverbsError):
            self._pair.close()
            self._completions.close()

    def _post(self, requests: Sequence[Request], local_key: int, remote_key: int) -> None:
        e, pair, sge = self._enums, self._pair, self._sge
        sge.lkey = local_key
        before = Kind.WRITE
        last = len(requests) - 1
        pair.wr_start()
        for at, request in enumerate(requests):
            kind = request.kind
            # A later request of another kind may overtake a read or a swap, unless it is told to wait for it.
            flags = e.IBV_SEND_FENCE if kind is not before and before is not Kind.WRITE else 0
            if at == last:
                flags |= e.IBV_SEND_SIGNALED
                self._requests += 1
            inline = kind is Kind.WRITE and request.length <= INLINE_BYTES
            pair.wr_id = self._requests
            pair.wr_flags = flags | (e.IBV_SEND_INLINE if inline else 0)
            if kind is Kind.WRITE:
                pair.wr_rdma_write(remote_key, request.remote)
            elif kind is Kind.READ:
                pair.wr_rdma_read(remote_key, request.remote)
            else:
                pair.wr_atomic_cmp_swp(remote_key, request.remote, request.expected, request.desired)
            if inline:
                pair.wr_set_inline_data(request.local, request.length)
            else:
                sge.addr, sge.length = request.local, request.length
                pair.wr_set_sge(sge)
            before = kind
        try:
            pair.wr_complete()
        except pyverbs("pyverbs_error").PyverbsError as error:
            raise FabricError(f"RDMA device {self._device.name} refuses {len(requests)} requests: {error}") from None

    def _wait(self, lost: "Lost") -> None:
        give_up = time.monotonic() + ROUND_S
        pause, most = SLEEP_S
        spins = 0
        while True:
            count, found = self._completions.poll(1)
            if count:
                if found[0].status != self._enums.IBV_WC_SUCCESS:
                    raise self._failure(found[0].status)
                if found[0].wr_id == self._requests:
                    return
            elif (spins := spins + 1) > SPINS:
                lost.check()
                if time.monotonic() > give_up:
                    raise Unreachable(f"no completion within {ROUND_S:g} s")
                time.sleep(pause)
                pause = min(pause * 1.2, most)

    def _failure(self, status: int) -> FabricError:
        e = self._enums
        if status in (e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_INV_REQ_ERR):
            return StaleRegion("the owner's device refuses: the region has ended, or gives no right to this operation")
        if status in (e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_RNR_RETRY_EXC_ERR, e.IBV_WC_RESP_TIMEOUT_ERR):
            return Unreachable(f"the owner's device has not answered {RETRIES + 1} tries")
        return FabricError(f"a request failed with ibv_wc_status {status}")


class Lost:
    """What ended a connection, as told from elsewhere."""

    def __init__(self) -> None:
        self.reason: FabricError | None = None

    def check(self) -> None:
        """Raises the reason."""
        if self.reason is not None:
            raise self.reason
