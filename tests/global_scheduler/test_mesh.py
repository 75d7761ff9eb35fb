"""The mesh's soft state: who speaks for an engine, what is counted, when the table changes."""

import pytest

from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.liveness import Leases
from services.global_scheduler.mesh import EngineReplaced, Leader, MalformedReport, Mesh
from services.global_scheduler.policy.least_tokens import LeastTokens
from services.global_scheduler.policy.registry import make_policy
from services.global_scheduler.policy.state import Placement, ReadPath, RefusalReason, Request


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def mesh(clock: Clock) -> Mesh:
    return Mesh(LeastTokens(), Leases(3, clock))


def where(mesh: Mesh, count: int = 1, prompt: int = 10) -> list[str]:
    decisions = mesh.place([Request(str(i), "small", prompt, 0, 10) for i in range(count)])
    answers = [decisions[str(i)] for i in range(count)]
    return [d.decode if isinstance(d, Placement) else d.reason.value for d in answers]


def test_placements_count_until_the_next_report(mesh: Mesh, up) -> None:
    leader = Leader()
    mesh.hear(leader, up("a", "b"))
    assert [where(mesh)[0] for _ in range(4)] == ["a", "b", "a", "b"]
    mesh.hear(leader, up("a", tokens=25, introduce=False))
    assert where(mesh, 2) == ["b", "a"]
    assert mesh.engines["a"].placements == 3
    assert mesh.status().placements == 6


def test_a_change_of_an_engines_words_reaches_the_policy_and_the_table(mesh: Mesh, up) -> None:
    leader = Leader()
    mesh.hear(leader, up("a"))
    assert mesh.refresh()
    again = up("a")
    again.engines[0].max_context = 16
    mesh.hear(leader, pb.LeaderUp(group_id="g", engines=again.engines))
    assert mesh.refresh()
    assert where(mesh) == ["too_large"]
    assert where(mesh, prompt=6) == ["a"]


def test_an_engine_may_change_its_role(mesh: Mesh, up) -> None:
    leader = Leader()
    mesh.hear(leader, up("a", "b"))
    mesh.hear(leader, up("a", role=pb.ROLE_PREFILL))
    assert where(mesh, 2) == ["b", "b"]
    mesh.hear(leader, up("b", role=pb.ROLE_DECODE))
    (decision,) = mesh.place([Request("r", "small", 10, 0, 10)]).values()
    assert isinstance(decision, Placement)
    assert (decision.prefill, decision.decode) == ("a", "b")


def test_engines_of_one_node_share_a_read_queue_whoever_leads_them(up) -> None:
    mesh = Mesh(make_policy("dualpath"), Leases(3, Clock()))
    prefill = Leader()
    mesh.hear(prefill, up("p", group="one", role=pb.ROLE_PREFILL, node="n1", reads=50))
    mesh.hear(Leader(), up("d", group="two", role=pb.ROLE_DECODE, node="n2", reads=90))
    request = Request("r", "small", 100, 64, 10)
    assert [decision.path for decision in mesh.place([request]).values()] == [ReadPath.PREFILL]
    mesh.hear(prefill, up("p", group="one", role=pb.ROLE_PREFILL, node="n1", reads=50, introduce=False))
    mesh.hear(Leader(), up("other", group="three", node="n1", reads=50))
    assert [decision.path for decision in mesh.place([request]).values()] == [ReadPath.DECODE]


def test_liveness_beats_load_and_a_report_brings_it_back(mesh: Mesh, up, clock: Clock) -> None:
    frozen, busy = Leader(), Leader()
    mesh.hear(frozen, up("frozen"))
    clock.now = 2
    mesh.hear(busy, up("busy", tokens=10_000))
    assert where(mesh) == ["frozen"]
    clock.now = 3
    assert where(mesh, 3) == ["busy"] * 3
    mesh.hear(frozen, up("frozen", introduce=False))
    assert where(mesh) == ["frozen"]
    clock.now = 100
    assert where(mesh) == [RefusalReason.NO_LIVE_ENGINE.value]


def test_the_end_of_a_stream_drops_its_engines_only(mesh: Mesh, up) -> None:
    leader = Leader()
    mesh.hear(leader, up("a", "b", group="one"))
    mesh.hear(Leader(), up("c", group="two"))
    mesh.leave(leader)
    mesh.leave(leader)
    assert set(mesh.engines) == {"c"}


def test_a_new_epoch_replaces_the_old_one(mesh: Mesh, up) -> None:
    old, new = Leader(), Leader()
    mesh.hear(old, up("a", epoch=1))
    where(mesh)
    mesh.hear(new, up("a", epoch=2))
    assert mesh.engines["a"].placements == 0
    with pytest.raises(EngineReplaced, match=r"'a' is led by another stream since.*epoch 2"):
        mesh.hear(old, up("a", introduce=False))
    mesh.leave(old)
    assert where(mesh) == ["a"]


def test_a_replaced_engine_is_not_live_before_its_first_report(mesh: Mesh, up) -> None:
    mesh.hear(Leader(), up("a", epoch=1))
    message = up("a", epoch=2)
    mesh.hear(Leader(), pb.LeaderUp(group_id="g", engines=message.engines))
    assert where(mesh) == ["no_live_engine"]


def test_the_table_changes_when_it_should_and_only_then(mesh: Mesh, up, clock: Clock) -> None:
    leader = Leader()

    def change(*engines: str, **told: object) -> tuple[bool, list[str]]:
        mesh.hear(leader, up(*engines, **told))
        return mesh.refresh(), [info.engine_id for info in mesh.table().engines]

    assert change("a") == (True, ["a"])
    assert change("a", tokens=5, introduce=False) == (False, ["a"])
    assert change("b") == (True, ["a", "b"])
    assert change("a", accepting=False, introduce=False) == (True, ["b"])
    assert change("a", introduce=False) == (True, ["a", "b"])
    assert change("a", epoch=2) == (True, ["a", "b"])
    assert mesh.version == 6
    clock.now = 3
    assert mesh.refresh()
    assert list(mesh.table().engines) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda m: setattr(m, "group_id", ""), "group_id ''"),
        (lambda m: setattr(m, "group_id", "other"), "group_id 'other'"),
        (lambda m: setattr(m.engines[0], "address", ""), "engine 'a': address is not set"),
        (lambda m: setattr(m.engines[0], "page_tokens", 0), "engine 'a': page_tokens is not set"),
        (lambda m: setattr(m.engines[0], "role", 9), "engine 'a': role 9 is not known"),
        (lambda m: setattr(m.reports[0], "engine_id", "z"), "report on engine 'z'"),
    ],
)
def test_malformed_messages_are_refused_whole(mesh: Mesh, up, spoil, words: str) -> None:
    leader = Leader()
    mesh.hear(leader, up("old"))
    message = up("a")
    spoil(message)
    with pytest.raises(MalformedReport, match=words):
        mesh.hear(leader, message)
    assert set(mesh.engines) == {"old"}
