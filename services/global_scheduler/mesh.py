"""What the scheduler knows of the mesh: soft state that leaders tell it, and tell it again after a restart."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hostless.v1 import scheduler_pb2 as pb
from services.common.keys import MARK_BYTES
from services.global_scheduler.held import HeldIndex
from services.global_scheduler.liveness import Leases
from services.global_scheduler.policy.state import (
    Decision,
    Engine,
    Load,
    Placement,
    Policy,
    ReadPath,
    RefusalReason,
    Request,
    Role,
)

ROLES = {pb.ROLE_UNIFIED: Role.UNIFIED, pb.ROLE_PREFILL: Role.PREFILL, pb.ROLE_DECODE: Role.DECODE}
PATHS = {
    ReadPath.UNIFIED: pb.READ_PATH_UNIFIED,
    ReadPath.PREFILL: pb.READ_PATH_PREFILL,
    ReadPath.DECODE: pb.READ_PATH_DECODE,
    ReadPath.SPLIT: pb.READ_PATH_SPLIT,
}
"""In the order of their numbers."""


class MalformedReport(ValueError):
    """A leader sent something that doesn't hold together; the message names it."""


class EngineReplaced(Exception):
    """A leader reports on an engine for which a newer leader speaks now."""


class Leader:
    """One open Lead stream; its engines are its own until it ends or another leader introduces them (D9)."""

    group_id = ""


@dataclass(slots=True)
class EngineRecord:
    info: pb.EngineInfo
    leader: Leader
    report: pb.EngineReport | None = None
    placed_on: bool = False  # the policy has it
    placements: int = 0  # since this epoch was introduced


@dataclass(slots=True)
class Totals:
    placements: Counter[ReadPath] = field(default_factory=Counter)
    refusals: Counter[RefusalReason] = field(default_factory=Counter)
    reused_tokens: int = 0  # of hits, as believed when they were placed


class Mesh:
    """Engines, their leases, and placing by the policy, which has the engines that may be given work, and no others.
    Not thread-safe; holds no clock but that of its leases."""

    def __init__(self, policy: Policy, leases: Leases) -> None:
        self.leases = leases
        self.engines: dict[str, EngineRecord] = {}
        self.totals = Totals()
        self.held = HeldIndex()
        self.version = 1
        self._policy = policy
        self._table: list[pb.EngineInfo] = []
        self._changed = False  # since the table was made

    # --- what leaders say ---

    def hear(self, leader: Leader, up: pb.LeaderUp) -> None:
        """Takes one message of a leader. Raises MalformedReport or EngineReplaced; nothing of it is kept then."""
        self._check(leader, up)
        leader.group_id = up.group_id
        for info in up.engines:
            self._introduce(leader, info)
        for report in up.reports:
            record = self.engines[report.engine_id]
            record.report = report
            self.held.hear(report.engine_id, report.held_added, report.held_removed)
            report.ClearField("held_added")
            report.ClearField("held_removed")
            self.leases.renew(report.engine_id)
            self._tell(record)

    def leave(self, leader: Leader) -> None:
        """Drops the leader's engines at once. Idempotent."""
        for engine_id in [key for key, record in self.engines.items() if record.leader is leader]:
            self._take(self.engines.pop(engine_id))
            self.leases.drop(engine_id)
            self.held.forget(engine_id)

    def _check(self, leader: Leader, up: pb.LeaderUp) -> None:
        if not up.group_id or up.group_id != (leader.group_id or up.group_id):
            raise MalformedReport(f"group_id {up.group_id!r}: must be set, and stay the same within a stream")
        for info in up.engines:
            _check_info(info)
        introduced = {info.engine_id for info in up.engines}
        for report in up.reports:
            if len(report.held_added) % MARK_BYTES or len(report.held_removed) % MARK_BYTES:
                raise MalformedReport(f"report on engine {report.engine_id!r}: held blocks are {MARK_BYTES} bytes each")
            record = self.engines.get(report.engine_id)
            if report.engine_id in introduced or (record and record.leader is leader):
                continue
            if record:
                raise EngineReplaced(
                    f"engine {report.engine_id!r} is led by another stream since; its group "
                    f"{record.leader.group_id!r}, epoch {record.info.epoch}"
                )
            raise MalformedReport(f"report on engine {report.engine_id!r}, which this stream did not introduce")

    def _introduce(self, leader: Leader, info: pb.EngineInfo) -> None:
        """The newest word on an engine wins: a restarted engine must not wait for its old lease to run out."""
        record = self.engines.get(info.engine_id)
        if record and record.leader is leader and record.info == info:
            return
        if record:
            self._take(record)
        if record and record.leader is leader and record.info.epoch == info.epoch:
            record.info = info
            self._tell(record)
        else:
            self.engines[info.engine_id] = EngineRecord(info, leader)
            self.leases.drop(info.engine_id)
            self.held.forget(info.engine_id)
        self._policy.know(info.model)

    def _tell(self, record: EngineRecord) -> None:
        """Brings the policy up to date on an engine."""
        if record.report is None or not self.placeable(record):
            self._take(record)
        elif record.placed_on:
            self._policy.report(record.info.engine_id, _load(record.report))
        else:
            self._policy.add(_engine(record), _load(record.report))
            record.placed_on = self._changed = True

    def _take(self, record: EngineRecord) -> None:
        if record.placed_on:
            self._policy.remove(record.info.engine_id)
            record.placed_on, self._changed = False, True

    def _expire(self) -> None:
        for engine_id in self.leases.lapsed():
            self._take(self.engines[engine_id])

    # --- what it answers ---

    @property
    def waiting(self) -> int:
        """Requests placed neither yet nor refused."""
        return self._policy.waiting

    def place(self, requests: Sequence[Request] = ()) -> dict[str, Decision]:
        """One round: what is decided now, by request id, of these requests and those that wait. Their ids differ."""
        self._expire()
        for request in requests:
            self._policy.submit(request)
        decisions = {decision.request_id: decision for decision in self._policy.decide()}
        for decision in decisions.values():
            if isinstance(decision, Placement):
                self.totals.placements[decision.path] += 1
                self.totals.reused_tokens += decision.reused_tokens
                for engine_id in {decision.prefill, decision.decode}:
                    self.engines[engine_id].placements += 1
            else:
                self.totals.refusals[decision.reason] += 1
        return decisions

    def withdraw(self, request_id: str) -> bool:
        """It waits no more. False if it didn't."""
        return self._policy.withdraw(request_id)

    def placeable(self, record: EngineRecord) -> bool:
        """Liveness beats everything: the lease runs, and the engine said that it accepts."""
        return record.report is not None and record.report.accepting and self.leases.live(record.info.engine_id)

    def table(self) -> pb.PlacementTable:
        """As of the last `refresh`."""
        return pb.PlacementTable(version=self.version, engines=self._table)

    def refresh(self) -> bool:
        """Brings the table up to date; True, and a new version, if it changed."""
        self._expire()
        if not self._changed:
            return False
        self._changed = False
        table = [record.info for record in self.engines.values() if record.placed_on]
        if table == self._table:
            return False
        self._table = table
        self.version += 1
        return True

    def status(self) -> pb.MeshStatus:
        return pb.MeshStatus(
            engines=[self._engine_status(record) for record in self.engines.values()],
            placements=self.totals.placements.total(),
            refusals=self.totals.refusals.total(),
            path_choices=[self.totals.placements[path] for path in PATHS],
        )

    def _engine_status(self, record: EngineRecord) -> pb.EngineStatus:
        age_s = self.leases.age_s(record.info.engine_id) if record.report else 0.0
        return pb.EngineStatus(
            info=record.info,
            report=record.report,
            report_age_ms=min(int(age_s * 1000), 2**32 - 1),
            live=self.leases.live(record.info.engine_id),
            placements=record.placements,
        )


def _check_info(info: pb.EngineInfo) -> None:
    for name in ("engine_id", "address", "model", "page_tokens", "page_count", "max_context"):
        if not getattr(info, name):
            raise MalformedReport(f"engine {info.engine_id!r}: {name} is not set")
    if info.role not in ROLES:
        raise MalformedReport(f"engine {info.engine_id!r}: role {info.role} is not known")


def _engine(record: EngineRecord) -> Engine:
    info = record.info
    return Engine(
        engine_id=info.engine_id,
        group_id=record.leader.group_id,
        node_id=info.node_id or record.leader.group_id,
        role=ROLES[info.role],
        model=info.model,
        page_tokens=info.page_tokens,
        page_count=info.page_count,
        max_context=info.max_context,
        receive_tokens=info.receive_tokens,
    )


def _load(report: pb.EngineReport) -> Load:
    return Load(report.requests, report.tokens, report.read_queue_tokens, report.free_pages)
