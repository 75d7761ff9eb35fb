"""D10, D11, D12 and D15 in any history of reports, arrivals, withdrawals and lost engines, against the reference."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.global_scheduler.policy.parameters import Parameters
from services.global_scheduler.policy.registry import make_policy
from services.global_scheduler.policy.state import Decision, Engine, Load, Placement, Request, Role
from tests.global_scheduler.policy.reference import Asked, Reference, Told

ALPHA, BETA, PAGE = 60, 150, 4
ENGINES = {
    role: {f"{role.value}{i}": f"{role.value}_group{i // 3}" for i in range(6)} for role in (Role.PREFILL, Role.DECODE)
}

loads = st.builds(Load, st.integers(0, 3), st.integers(0, 200), st.integers(0, 80), st.integers(0, 50))
requests = st.tuples(
    st.integers(1, 90),
    st.floats(0, 1),
    st.sampled_from([0, 1, 30]),
    st.frozensets(st.sampled_from(["prefill0", "decode0", "decode1"]), max_size=2),
)


def shorter(hit: int, prefill: int, decode: int) -> tuple[int, int]:
    """D12."""
    return (0, hit) if decode < prefill else (hit, 0)


def halves(hit: int, prefill: int, decode: int) -> tuple[int, int]:
    """D15: whole pages to the prefill side, as many as bring both sides' ends nearest to each other."""
    pages = range(0, hit + PAGE, PAGE)
    here = min(max(pages, key=lambda n: (-abs((prefill + n) - (decode + hit - n)), n)), hit)
    return here, hit - here


class AsTheReference(RuleBasedStateMachine):
    split = False

    def __init__(self) -> None:
        super().__init__()
        self.policy = make_policy("dualpath", Parameters(ALPHA, BETA, split_reads=self.split))
        self.policy.know("m")
        self.reference = Reference(ALPHA, BETA, halves if self.split else shorter)
        self.arrived = 0

    @rule(
        role=st.sampled_from(list(ENGINES)),
        index=st.integers(0, 5),
        load=loads,
        own_node=st.booleans(),
        large=st.booleans(),
    )
    def add(self, role: Role, index: int, load: Load, own_node: bool, large: bool) -> None:
        name, group = list(ENGINES[role].items())[index]
        if name not in self.reference.engines:
            node = group if own_node else "shared"
            engine = Engine(name, group, node, role, "m", PAGE, 50 if large else 15, 200 if large else 80)
            self.policy.add(engine, load)
            self.reference.engines[name] = Told(engine, load)

    @rule(data=st.data(), load=loads)
    @precondition(lambda self: self.reference.engines)
    def report(self, data: st.DataObject, load: Load) -> None:
        name = data.draw(st.sampled_from(sorted(self.reference.engines)))
        self.policy.report(name, load)
        told = self.reference.engines[name]
        told.load = load
        told.since.clear()

    @rule(data=st.data())
    @precondition(lambda self: len(self.reference.engines) > 4)
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.reference.engines)))
        self.policy.remove(name)
        self.reference.remove(name)

    @rule(burst=st.lists(requests, min_size=1, max_size=6))
    def submit(self, burst: list[tuple[int, float, int, frozenset[str]]]) -> None:
        for prompt, hit, new, tried in burst:
            self.arrived += 1
            request = Request(str(self.arrived), "m", prompt, int(prompt * hit), new, tried)
            self.policy.submit(request)
            self.reference.waiting.append(Asked(request))

    @rule(data=st.data())
    @precondition(lambda self: self.reference.waiting)
    def withdraw(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([asked.request.request_id for asked in self.reference.waiting]))
        assert self.policy.withdraw(name)
        assert not self.policy.withdraw(name)
        self.reference.withdraw(name)

    @rule()
    def decide(self) -> None:
        assert sorted(map(told, self.policy.decide())) == sorted(self.reference.decide())
        assert self.policy.decide() == []

    @invariant()
    def as_many_wait(self) -> None:
        assert self.policy.waiting == len(self.reference.waiting)


def told(decision: Decision) -> tuple[str, ...]:
    if isinstance(decision, Placement):
        reads = str(decision.prefill_read_tokens), str(decision.decode_read_tokens)
        return decision.request_id, decision.prefill, decision.decode, *reads
    return decision.request_id, "refused"


class SplitAsTheReference(AsTheReference):
    split = True


TestDualPath = AsTheReference.TestCase
TestDualPath.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSplitReads = SplitAsTheReference.TestCase
TestSplitReads.settings = settings(max_examples=75, stateful_step_count=30, deadline=None)
