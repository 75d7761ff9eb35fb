"""The simulator again, slow and obvious: at every event every rate and every group is looked at anew.

It knows one policy, "the caller says", so that both simulators can be given the same placements."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.global_scheduler._simulator import Config
from tests.global_scheduler.simulator.test_flows import progressive_filling

Choose = Callable[[list[int], list[int]], list[int]]

START_S = 0.0137
"""Between the starts of two agents: at one instant rounding would decide who is first."""


@dataclass
class Turn:
    agent: int
    prompt: int
    cached: int
    output: int
    prefill: int = -1
    decode: int = -1
    near: int = 0
    near_held: int = 0
    far_held: int = 0
    reads: int = 0
    pushes: int = 0
    computed: int = 0
    chunk: int = 0
    decoded: int = 0
    left_at: float = 0.0
    in_hbm: bool = False
    times: dict[str, float] = field(default_factory=dict)

    @property
    def miss(self) -> int:
        return self.prompt - self.cached


@dataclass
class Flow:
    kind: str
    turn: Turn
    engine: int
    left: float
    way: dict[tuple[str, int], float]
    near: bool = False


class Reference:
    """`place(turn)` sets prefill, decode, near and what is held of a turn that has arrived."""

    def __init__(self, c: Config, choose: Choose, place: Callable[[Turn], None]) -> None:
        self.c, self.choose, self.place = c, choose, place
        self.now = 0.0
        self.flows: list[Flow] = []
        self.lanes: dict[tuple[int, str], deque[Flow]] = {}
        self.reads: dict[int, deque[Flow]] = {}
        nodes = c.prefill_nodes + c.decode_nodes
        count = nodes * c.engines_per_node
        self.prefilling: list[list[Turn]] = [[] for _ in range(count)]
        self.batch: list[list[Turn]] = [[] for _ in range(count)]
        self.waiting: list[deque[Turn]] = [deque() for _ in range(count)]
        self.joining: list[list[Turn]] = [[] for _ in range(count)]
        split = c.prefill_nodes * c.engines_per_node
        self.free = [c.prefill_kv_tokens if e < split else c.decode_kv_tokens for e in range(count)]
        self.groups = [
            list(range(first, min(first + size, end)))
            for begin, end, size in ((0, split, c.prefill_group), (split, count, c.decode_group))
            for first in range(begin, end, size)
        ]
        self.split = split
        self.busy: dict[int, str] = {}
        self.timers: list[tuple[float, int, str, int]] = []
        self.began: dict[int, float] = {}
        self.moved: dict[int, float] = {}
        self.compute_s: dict[int, float] = {}
        self.agents: list[deque[tuple[int, int, int]]] = []
        self.done: list[Turn] = []
        self.order = 0
        self.tied = False  # two things happened at one instant, or so nearly that rounding decides which is first

    # --- the loop ---

    def run(self, agents: list[list[tuple[int, int, int]]]) -> list[Turn]:
        self.agents = [deque(turns) for turns in agents]
        for agent in range(len(agents)):
            self.timer(START_S * agent, "agent", agent)
        while self.timers or self.flows:
            rates = self.rates()
            ends = [self.now + flow.left / rate for flow, rate in zip(self.flows, rates, strict=True)]
            next_timer = min(self.timers)[0] if self.timers else float("inf")
            then = min([next_timer, *ends])
            self.tied |= sum(end <= then * (1 + 1e-9) for end in [next_timer, *ends]) > 1
            for flow, rate in zip(self.flows, rates, strict=True):
                flow.left -= rate * (then - self.now)
            self.now = then
            while self.timers and min(self.timers)[0] <= then:
                event = min(self.timers)
                self.timers.remove(event)
                getattr(self, "on_" + event[2])(event[3])
            for flow in [f for f, end in zip(self.flows, ends, strict=False) if end <= then * (1 + 1e-12)]:
                self.flows.remove(flow)
                self.arrived(flow)
        return self.done

    def timer(self, at: float, kind: str, subject: int) -> None:
        self.order += 1
        self.timers.append((at, self.order, kind, subject))

    def rates(self) -> list[float]:
        capacity = {"in": self.c.storage_read, "out": self.c.storage_write, "dram": self.c.dram}
        names = sorted({link for flow in self.flows for link in flow.way})
        number = {link: i for i, link in enumerate(names)}
        ways = {i: {number[k]: w for k, w in flow.way.items()} for i, flow in enumerate(self.flows)}
        rates = progressive_filling([capacity.get(link[0], self.c.compute_nic) for link in names], ways)
        return [rates[i] for i in range(len(self.flows))]

    def move(self, flow: Flow) -> bool:
        if self.c.free_io or flow.left <= 0:
            return False
        most = self.c.loads_in_flight if flow.kind == "load" else 1
        lane = [f for f in self.flows if (f.kind, f.engine) == (flow.kind, flow.engine)]
        if len(lane) < most:
            self.flows.append(flow)
        else:
            self.lanes.setdefault((flow.engine, flow.kind), deque()).append(flow)
        return True

    def node(self, engine: int) -> int:
        return engine // self.c.engines_per_node

    def group(self, engine: int) -> int:
        return next(i for i, members in enumerate(self.groups) if engine in members)

    # --- a turn's way ---

    def on_agent(self, agent: int) -> None:
        turn = Turn(agent, *self.agents[agent].popleft())
        turn.times["arrived"] = self.now
        self.place(turn)
        far = turn.cached - turn.near - turn.far_held
        parts = [(turn.near - turn.near_held, turn.prefill, True), (far, turn.decode, False)]
        turn.reads = sum(tokens > 0 for tokens, _, _ in parts)
        if not turn.reads:
            self.ready(turn)
        for tokens, engine, near in parts:
            node = self.node(engine)
            if tokens:
                way = {("in", node): 1.0, ("dram", node): 1.0}
                flow = Flow("read", turn, engine, tokens * self.c.kv_bytes, way, near)
                self.reads.setdefault(node, deque()).append(flow)
        for _, engine, _ in parts:
            self.read(self.node(engine))

    def read(self, node: int) -> None:
        queue = self.reads.get(node, deque())
        while queue:
            moving = [f for f in self.flows if f.kind == "read" and self.node(f.engine) == node]
            if len(moving) >= self.c.reads_in_flight:
                return
            flow = queue.popleft()
            if self.c.free_io:
                self.arrived(flow)
            else:
                self.flows.append(flow)

    def arrived(self, flow: Flow) -> None:
        lane = self.lanes.get((flow.engine, flow.kind))
        if lane:
            self.flows.append(lane.popleft())
        turn = flow.turn
        if flow.kind == "read":
            turn.reads -= 1
            if not turn.reads:
                self.ready(turn)
            self.read(self.node(flow.engine))
        elif flow.kind == "load":
            self.transfer_done(self.group(turn.prefill))
        elif flow.kind == "push":
            turn.pushes -= 1
            last = not turn.pushes and turn.computed == turn.miss
            if last:
                self.pass_on(turn)
            if self.c.layerwise:
                self.transfer_done(self.group(turn.prefill))
            elif last:
                self.start_prefill(self.group(turn.prefill))
        elif flow.kind == "handover":
            self.joining[turn.decode].append(turn)
            self.start_decode(self.group(turn.decode))

    def ready(self, turn: Turn) -> None:
        self.prefilling[turn.prefill].append(turn)
        self.start_prefill(self.group(turn.prefill))

    # --- prefill ---

    def group_flows(self, g: int) -> int:
        kinds = ("load", "push") if self.c.layerwise else ("load",)
        queued = [flow for lane in self.lanes.values() for flow in lane]
        return sum(f.kind in kinds and self.group(f.turn.prefill) == g for f in [*self.flows, *queued])

    def start_prefill(self, g: int) -> None:
        if g in self.busy:
            return
        cost, slowest, total = self.c.prefill, 0.0, 0
        for e in self.groups[g]:
            room, shown = self.free[e], []
            for turn in self.prefilling[e]:
                if not self.c.layerwise and not turn.in_hbm:
                    room -= turn.prompt
                    if room < 0:
                        break
                shown.append(turn)
            if not shown:
                continue
            have = [turn.cached + turn.computed for turn in shown]
            chunks = self.choose(have, [turn.miss - turn.computed for turn in shown])
            attention = 0.0
            for turn, chunk, cached in zip(shown, chunks, have, strict=False):
                context = cached + chunk / 2
                attention += chunk * (cost.pair_s * context + cost.selected_s * min(context, cost.selected))
                self.take(e, turn, chunk)
            slowest = max(slowest, attention + sum(chunks) * cost.engine_token_s)
            total += sum(chunks)
        if not total:
            return
        even = total / len(self.groups[g]) * cost.group_token_s
        self.compute_s[g] = cost.step_s + max(cost.weight_s, slowest + even)
        self.began[g] = self.moved[g] = self.now
        self.busy[g] = "loading"
        if self.c.layerwise or not self.group_flows(g):
            self.compute(g)

    def take(self, e: int, turn: Turn, chunk: int) -> None:
        first, turn.chunk = turn.computed == 0, chunk
        self.batch[e].append(turn)
        if self.c.layerwise:
            self.load(turn, turn.near, turn.cached - turn.near + turn.computed, first)
            self.push(turn, chunk)
        elif not turn.in_hbm:
            turn.in_hbm = True
            self.free[e] -= turn.prompt
            self.load(turn, turn.near, turn.cached - turn.near, False)

    def load(self, turn: Turn, near: int, far: int, onward: bool) -> None:
        p, d = turn.prefill, turn.decode
        local = {("dram", self.node(p)): 1.0, ("nic_out", p): 1.0, ("nic_in", p): 1.0}
        if onward:
            local |= {("nic_out", p): 2.0, ("nic_in", d): 1.0, ("dram", self.node(d)): 1.0}
        remote = {("dram", self.node(d)): 1.0, ("nic_out", d): 1.0, ("nic_in", p): 1.0}
        self.move(Flow("load", turn, p, near * self.c.kv_bytes, local))
        self.move(Flow("load", turn, p, far * self.c.kv_bytes, remote))

    def push(self, turn: Turn, tokens: int) -> None:
        way = {("nic_out", turn.prefill): 1.0, ("nic_in", turn.decode): 1.0, ("dram", self.node(turn.decode)): 1.0}
        turn.pushes += self.move(Flow("push", turn, turn.prefill, tokens * self.c.kv_bytes, way))

    def compute(self, g: int) -> None:
        self.busy[g] = "computing"
        self.timer(self.now + self.compute_s[g], "computed", g)

    def transfer_done(self, g: int) -> None:
        self.moved[g] = self.now
        if self.group_flows(g):
            return
        if self.busy[g] == "loading":
            self.compute(g)
        else:
            self.close(g)

    def on_computed(self, g: int) -> None:
        self.busy[g] = "computed"
        self.close(g)

    def close(self, g: int) -> None:
        if self.busy[g] != "computed" or (self.c.layerwise and self.group_flows(g)):
            return
        exposed = min(self.compute_s[g], self.moved[g] - self.began[g]) / self.c.layers if self.c.layerwise else 0.0
        self.timer(self.now + exposed, "prefilled", g)

    def on_prefilled(self, g: int) -> None:
        del self.busy[g]
        for e in self.groups[g]:
            batch, self.batch[e] = self.batch[e], []
            for turn in batch:
                turn.computed += turn.chunk
                if turn.computed < turn.miss:
                    continue
                self.prefilling[e].remove(turn)
                turn.times["first"] = self.now
                turn.decoded = 1
                if not self.c.layerwise:
                    self.push(turn, turn.prompt)
                if not turn.pushes:
                    self.pass_on(turn)
        self.start_prefill(g)

    def pass_on(self, turn: Turn) -> None:
        if turn.in_hbm:
            self.free[turn.prefill] += turn.prompt
        turn.in_hbm = False
        if turn.output == 1:
            self.finish(turn)
            return
        self.waiting[turn.decode].append(turn)
        self.admit(turn.decode)
        self.start_decode(self.group(turn.decode))

    # --- decode ---

    def context(self, turn: Turn) -> int:
        return turn.prompt + turn.decoded

    def copy(self, kind: str, turn: Turn) -> None:
        d = turn.decode
        way = {("dram", self.node(d)): 1.0, ("nic_out", d): 1.0, ("nic_in", d): 1.0}
        moves = self.move(Flow(kind, turn, d, self.context(turn) * self.c.kv_bytes, way))
        if not moves and kind == "handover":
            self.joining[d].append(turn)

    def admit(self, e: int) -> None:
        while self.waiting[e] and self.free[e] >= self.context(self.waiting[e][0]) + 1:
            turn = self.waiting[e].popleft()
            self.free[e] -= self.context(turn)
            self.copy("handover", turn)

    def start_decode(self, g: int) -> None:
        if g in self.busy:
            return
        cost, slowest, running = self.c.decode, 0.0, 0
        for e in self.groups[g]:
            self.batch[e] += self.joining[e]
            self.joining[e] = []
            count, context = len(self.batch[e]), sum(map(self.context, self.batch[e]))
            chosen = min(context, count * cost.selected) * cost.selected_s
            slowest = max(slowest, count * cost.engine_token_s + context * cost.context_s + chosen)
            running += count
        if running:
            self.busy[g] = "decoding"
            even = running / len(self.groups[g]) * cost.group_token_s
            self.timer(self.now + cost.step_s + max(cost.weight_s, even) + slowest, "decoded", g)

    def on_decoded(self, g: int) -> None:
        del self.busy[g]
        for e in self.groups[g]:
            self.free[e] -= len(self.batch[e])
            for turn in self.batch[e]:
                turn.decoded += 1
        for turn in [turn for e in self.groups[g] for turn in self.batch[e] if turn.decoded == turn.output]:
            self.batch[turn.decode].remove(turn)
            self.free[turn.decode] += self.context(turn)
            self.finish(turn)
        for e in self.groups[g]:
            while self.free[e] < 0 and len(self.batch[e]) > 1:
                turn = self.batch[e].pop()
                self.free[e] += self.context(turn)
                self.waiting[e].appendleft(turn)
                self.copy("evict", turn)
            self.admit(e)
        self.start_decode(g)

    def finish(self, turn: Turn) -> None:
        turn.times["finished"] = self.now
        self.done.append(turn)
        size = self.c.block_tokens
        tokens = ((turn.prompt + turn.output - 1) // size - turn.cached // size) * size
        d = turn.decode
        way = {("out", self.node(d)): 1.0, ("dram", self.node(d)): 2.0, ("nic_out", d): 1.0, ("nic_in", d): 1.0}
        self.move(Flow("persist", turn, d, tokens * self.c.kv_bytes, way))
        if self.agents[turn.agent]:
            self.timer(self.now, "agent", turn.agent)
