"""D10, D11, D12 and D15 in any history of reports, arrivals, withdrawals and lost engines, against the reference; the
same with engines that hold some of a hit, and with a policy that doesn't ask for that."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.global_scheduler.policy.parameters import Parameters
from services.global_scheduler.policy.registry import make_policy
from services.global_scheduler.policy.state import Decision, Engine, Held, Load, Placement, Request, Role
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
    st.dictionaries(
        st.sampled_from([name for names in ENGINES.values() for name in names] + ["gone"]),
        st.integers(1, 20).map(lambda pages: pages * PAGE),
        max_size=4,
    ),
)


def shorter(hit: int, prefill: int, decode: int, here: int, there: int) -> tuple[int, int]:
    """D12."""
    return (0, hit - there) if decode - there < prefill - here else (hit - here, 0)


def halves(hit: int, prefill: int, decode: int, here: int, there: int) -> tuple[int, int]:
    """D15: whole pages to the prefill side, as many as bring both sides' ends nearest to each other."""

    def ends(n: int) -> tuple[int, int]:
        return prefill + n - here, decode + hit - n

    pages = range(0, hit + PAGE, PAGE)
    n = min(max(max(pages, key=lambda n: (-abs(ends(n)[0] - ends(n)[1]), n)), here), hit)
    together = max(ends(n)) if n < hit else prefill + n - here
    if there and decode + hit - there <= together:
        return 0, hit - there
    return (n - here, hit - n) if n else (0, hit - there)


class AsTheReference(RuleBasedStateMachine):
    split = reuse = False

    def __init__(self) -> None:
        super().__init__()
        self.policy = make_policy("dualpath", Parameters(ALPHA, BETA, self.split, self.reuse))
        self.policy.know("m")
        self.reference = Reference(ALPHA, BETA, halves if self.split else shorter)
        self.arrived = 0

    @rule(
        role=st.sampled_from(list(ENGINES)),
        index=st.integers(0, 5),
        load=loads,
        own_node=st.booleans(),
        large=st.booleans(),
        receives=st.sampled_from((0, 0, 40, 70)),
    )
    def add(self, role: Role, index: int, load: Load, own_node: bool, large: bool, receives: int) -> None:
        name, group = list(ENGINES[role].items())[index]
        if name not in self.reference.engines:
            node = group if own_node else "shared"
            engine = Engine(name, group, node, role, "m", PAGE, 50 if large else 15, 200 if large else 80, receives)
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
    def submit(self, burst: list[tuple[int, float, int, frozenset[str], dict[str, int]]]) -> None:
        for prompt, hit, new, tried, holders in burst:
            self.arrived += 1
            held = tuple(Held(name, tokens) for name, tokens in holders.items())
            request = Request(str(self.arrived), "m", prompt, int(prompt * hit), new, tried, held)
            self.policy.submit(request)
            self.reference.waiting.append(Asked(request if self.reuse else replace(request, held=())))

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


class ReuseAsTheReference(AsTheReference):
    reuse = True


class ReuseAndSplitAsTheReference(AsTheReference):
    reuse = split = True


TestDualPath = AsTheReference.TestCase
TestDualPath.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestSplitReads = SplitAsTheReference.TestCase
TestSplitReads.settings = settings(max_examples=75, stateful_step_count=30, deadline=None)
TestReuse = ReuseAsTheReference.TestCase
TestReuse.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestReuseAndSplitReads = ReuseAndSplitAsTheReference.TestCase
TestReuseAndSplitReads.settings = settings(max_examples=75, stateful_step_count=30, deadline=None)
