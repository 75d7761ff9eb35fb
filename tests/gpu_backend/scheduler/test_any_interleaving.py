"""Any order of events: every request ends once with the right tokens, and nothing is lost on the way."""

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from services.fabric._ring import Finish, LeaseState, SlotState
from services.gpu_backend._scheduler import KvOrderKind
from services.gpu_backend.engine import PAGE_TOKENS
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.toy import prompt_tokens
from tests.gpu_backend.scheduler.world import Request, World

FRONT_ENDS = 2
FATES = {Finish.STOP, Finish.LENGTH, Finish.CANCELLED, Finish.TOO_LARGE, Finish.BAD_RECORD, Finish.ENGINE_ERROR}
SPOILT: list[dict[str, Any]] = [
    {"generation": 0},
    {"prompt_count": 0},
    {"prompt_begin": 0xFFFFFFFF},
    {"token_begin": 0xFFFFFFF0},
    {"max_tokens": 0xFFFFFFFF},
    {"temperature": float("nan")},
    {"top_p": 0.0},
    {"stop_count": 9},
    {"flags": 1 << 31},
    {"cached_tokens": 63},
]


class Interleaving(RuleBasedStateMachine):
    world: World

    @initialize(
        lanes=st.integers(1, 4),
        pages=st.integers(4, 9),
        chunk=st.sampled_from([0, 7, 50, 64]),
        fair=st.booleans(),
        mixed=st.sampled_from([0, 0, 4, 60, 128]),
        quota=st.sampled_from([0.0, 0.0, 0.05]),
        orders=st.booleans(),
        capacity=st.sampled_from([1, 2, 4, 32]),
        limit=st.integers(1, 8),
        patience=st.sampled_from([0.0, 0.01, 10.0]),
        window=st.sampled_from([0, 1, 2, 5]),
    )
    def build(
        self, lanes: int, pages: int, chunk: int, fair: bool, mixed: int, quota: float, orders: bool, capacity: int,
        limit: int, patience: float, window: int,
    ) -> None:  # fmt: skip
        self.world = World(
            SchedulerSettings(
                lanes=lanes, step_tokens=128, pages=pages, prefill_chunk=chunk, decode_between_chunks=fair,
                mixed_tokens=mixed, attention_quota_s=quota, attention_time=(1e-3, 1e-3, 1e-5),
                kv_orders=orders, order_capacity=capacity, store_limit=limit, agent_patience_s=patience,
            ),
            FRONT_ENDS,
            window,
        )  # fmt: skip
        self.asked: deque[Any] = deque()  # loads to be answered
        self.layers = self.world.memory.layer_counters(windowed=False)
        self.open: list[tuple[Any, list[int]]] = []  # loads answered whose layers still come, and their pages
        self.known: set[tuple[int, int]] = set()  # requests that the agent has had an order of
        self.gone: list[Request] = []  # of ended leases
        self.errors = 0

    # --- front ends ---

    @rule(
        front_end=st.integers(0, FRONT_ENDS - 1),
        prompt=st.sampled_from([1, 5, 63, 64, 65, 127, 130, 192, 250]),
        most=st.sampled_from([1, 2, 3, 60, 66, 130]),
        seed=st.integers(0, 3),
        cached=st.booleans(),
        stop=st.booleans(),
        spoil=st.one_of(st.just({}), st.just({}), st.just({}), st.sampled_from(SPOILT)),
    )
    def submit(
        self, front_end: int, prompt: int, most: int, seed: int, cached: bool, stop: bool, spoil: dict[str, Any]
    ) -> None:
        if not self.leased(front_end) or self.world.free_slot(front_end) is None:
            return
        hit = (prompt - 1) // PAGE_TOKENS * PAGE_TOKENS if cached else 0
        stop_ids = tuple(range(8)) if stop else ()
        self.world.submit(prompt, most, front_end=front_end, seed=seed, cached=hit, stop_ids=stop_ids, spoil=spoil)

    @rule(choice=st.integers(0, 63))
    def cancel(self, choice: int) -> None:
        if live := sorted(self.world.live):
            self.world.cancel(self.world.live[live[choice % len(live)]])

    @rule(front_end=st.integers(0, FRONT_ENDS - 1))
    def ring_for_nothing(self, front_end: int) -> None:
        if self.leased(front_end):
            self.world.header["doorbells"][front_end] += 1

    @rule(front_end=st.integers(0, FRONT_ENDS - 1))
    def end_lease(self, front_end: int) -> None:
        self.world.collect()
        self.world.ring.end(front_end)
        for slot, request in list(self.world.live.items()):
            if request.front_end == front_end:
                self.gone.append(self.world.live.pop(slot))

    @rule(front_end=st.integers(0, FRONT_ENDS - 1))
    def lease_again(self, front_end: int) -> None:
        if self.world.ring.lease_state(front_end) == LeaseState.FREE:
            self.world.ring.grant(self.world.shares[front_end])

    def leased(self, front_end: int) -> bool:
        return self.world.ring.lease_state(front_end) == LeaseState.LEASED

    @rule()
    def collect(self) -> None:
        self.world.collect()

    # --- scheduler, engine, agent ---

    @rule(count=st.integers(1, 3))
    def turns(self, count: int) -> None:
        for _ in range(count):
            self.world.turn()

    @rule(count=st.integers(1, 40))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.land()
            self.world.turn()

    def land(self) -> None:
        """The engine waits for the layers of those who fly."""
        slots = self.world.flying[1].slots if self.world.flying else ()
        for load in [load for load in self.open if int(load[0]["slot"]) in slots]:
            self.end_layers(load, came=True)
        self.world.land()

    @rule()
    def fail_a_step(self) -> None:
        self.errors += self.world.flying is not None
        self.world.land(error=1)

    @rule(seconds=st.sampled_from([1e-6, 0.02, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.turn(seconds)

    @precondition(lambda self: self.world.settings.kv_orders)
    @rule(release=st.integers(0, 4))
    def agent_takes_orders(self, release: int) -> None:
        for order in self.world.orders.take():
            request = int(order["slot"]), int(order["generation"])
            kind = KvOrderKind(int(order["kind"]))
            if kind == KvOrderKind.END:
                self.known.remove(request)
                continue
            self.known.add(request)
            if kind == KvOrderKind.LOAD:
                self.asked.append(order)
            else:
                page = self.world.engine.kv[int(order["page"])]
                assert page.tolist() == order["tokens"].tolist(), "a stored page holds other tokens than it says"
        self.world.orders.release(min(release, self.world.orders.unreleased))

    @precondition(lambda self: self.world.settings.kv_orders)
    @rule(missing=st.integers(0, 2))
    def agent_answers_a_load(self, missing: int) -> None:
        if not self.asked:
            return
        order = self.asked.popleft()
        blocks = max(0, int(order["block_count"]) - missing)
        self.fill(order, self.world.orders.pages_of(order)[:blocks].tolist())
        self.world.orders.answer_load(order, blocks)

    @precondition(lambda self: self.world.settings.kv_orders)
    @rule(missing=st.integers(0, 2))
    def agent_answers_a_load_at_its_first_layer(self, missing: int) -> None:
        if not self.asked:
            return
        order = self.asked.popleft()
        blocks = max(0, int(order["block_count"]) - missing)
        self.layers.open(int(order["lane"]))
        self.open.append((order, self.world.orders.pages_of(order)[:blocks].tolist()))
        self.world.orders.answer_load(order, blocks)

    @rule(choice=st.integers(0, 63), came=st.booleans())
    def agent_writes_the_last_layer(self, choice: int, came: bool) -> None:
        if self.open:
            self.end_layers(self.open[choice % len(self.open)], came)

    def end_layers(self, load: tuple[Any, list[int]], came: bool) -> None:
        """Writes to the pages whatever has become of the request; they must not be another's yet."""
        self.open.remove(load)
        order, pages = load
        if came:
            self.fill(order, pages)
            self.layers.close(int(order["lane"]), 1)
        else:
            self.world.engine.kv[pages] = 0
            self.layers.fail(int(order["lane"]))

    def fill(self, order: Any, pages: list[int]) -> None:
        tokens = prompt_tokens(int(order["kv_reads"]) - 1, 512)
        for i, page in enumerate(pages):
            self.world.engine.kv[page] = tokens[i * PAGE_TOKENS : (i + 1) * PAGE_TOKENS]

    # --- in the end ---

    @property
    def settled(self) -> bool:
        ending = any(self.world.ring.lease_state(f) == LeaseState.ENDED for f in range(FRONT_ENDS))
        orders = self.world.native.counters()["orders_open"]
        return not (self.world.live or ending or orders) and self.world.idle

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for _ in range(50_000):  # a token a step, and a relaunch after each, at the worst
            if self.world.settings.kv_orders:
                self.agent_takes_orders(4)
                self.agent_answers_a_load(0)
                self.agent_writes_the_last_layer(0, came=True)
            self.land()
            self.world.turn()
            self.world.collect()
            if self.settled:
                break
        assert not self.world.live, "a request never ended"
        assert self.world.idle, f"pages or lanes were lost: {self.world.native.counters()}"
        assert not self.known, "the agent was not told of an end"
        assert self.settled
        assert self.world.ring.slot_states()[SlotState.EMPTY] == len(self.world.words)
        for request in self.world.done:
            self.judge(request)
        self.judge_order()

    def judge(self, request: Request) -> None:
        finish, whole = request.finish, len(request.expected)
        assert finish in FATES
        assert request.report["generation"] == request.generation
        if not request.whole:
            assert finish == Finish.BAD_RECORD
            return
        assert request.tokens == request.expected[: len(request.tokens)]
        if finish == Finish.TOO_LARGE:
            assert len(request.prompt) + request.most - 1 > self.world.settings.capacity_tokens
        elif finish == Finish.CANCELLED:
            assert request.cancelled
        elif finish == Finish.ENGINE_ERROR:
            assert self.errors > 0
        else:
            assert len(request.tokens) == whole

    def judge_order(self) -> None:
        """Within a front end, prompts that nothing loads for are first computed in order of submission."""
        for front_end in range(FRONT_ENDS):
            computed = [
                (int(r.report["claimed_ns"]), r.sequence, int(r.report["prefill_ns"]))
                for r in self.world.done
                if r.front_end == front_end and r.whole and r.report["prefill_ns"] and not r.cached
            ]
            times = [prefill for _, _, prefill in sorted(computed)]
            assert times == sorted(times), "a later prompt was computed before an earlier one"


Interleaving.TestCase.settings = settings(max_examples=150, stateful_step_count=70, deadline=None)
TestInterleaving = Interleaving.TestCase
