"""A scheduler turn by turn, with a front end and an engine in the test's own hands.

Nothing happens but by a call: `turn`, `land` (the engine computes the step in flight), `submit`, `cancel`.
After each turn the core's books must add up and every slot word must have moved along its table.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.fabric import _ring
from services.fabric._ring import Finish, LeaseState, Owner, SlotState
from services.fabric.ring import RingGeometry, RingOwner, Share
from services.fabric.ring.layout import HEADER, RECORD, REPORT
from services.gpu_backend._scheduler import Command, Turn
from services.gpu_backend.engine import StepKind
from services.gpu_backend.scheduler.host import native_scheduler
from services.gpu_backend.scheduler.memory import EngineMemory
from services.gpu_backend.scheduler.orders import OrderQueue
from services.gpu_backend.scheduler.settings import SchedulerSettings
from tests.gpu_backend.scheduler.toy import VOCABULARY, ToyEngine, expected_tokens, prompt_tokens

SLOTS, MAX_CONTEXT = 64, 512  # eight slots a front end
PROMPT_ROOM, TOKEN_ROOM = 512, 512


class HeapRegion:
    """Zeroed memory of this process where a region would be."""

    def __init__(self, length: int) -> None:
        memory = np.zeros(length + 64, np.uint8)
        skip = -memory.ctypes.data % 64
        self.view: NDArray[np.uint8] = memory[skip : skip + length]
        self.length, self.path = length, Path("heap")


@dataclass
class Request:
    """What was submitted, what must come back, and what happened on the way."""

    slot: int
    front_end: int
    generation: int
    sequence: int
    prompt: NDArray[np.uint32]
    most: int
    expected: list[int]
    cached: int
    whole: bool = True  # the record holds together
    cancelled: bool = False
    finish: Finish | None = None
    tokens: list[int] = field(default_factory=list)
    report: Any = None


@dataclass(frozen=True)
class Step:
    kind: StepKind
    slots: tuple[int, ...]
    counts: tuple[int, ...]
    sampled: frozenset[int]
    """Slots that get a token."""
    graph_size: int


class World:
    def __init__(self, settings: SchedulerSettings, front_ends: int = 1, launch_window: int = 0) -> None:
        geometry = RingGeometry(SLOTS, SLOTS * PROMPT_ROOM, SLOTS * TOKEN_ROOM)
        region: Any = HeapRegion(geometry.size_bytes)
        self.ring = RingOwner(
            region, geometry, epoch=1, max_context=MAX_CONTEXT, vocab_size=VOCABULARY, page_count=settings.pages
        )
        self.settings = settings
        at, buffer = geometry.fields(), self.ring.buffer
        self.header: Any = buffer[: HEADER.itemsize].view(HEADER)[0]
        self.words: NDArray[np.uint64] = buffer[at["words_offset"] :][: 8 * SLOTS].view(np.uint64)
        self.cancels: NDArray[np.uint32] = buffer[at["cancels_offset"] :][: 4 * SLOTS].view(np.uint32)
        self.records: Any = buffer[at["records_offset"] :][: RECORD.itemsize * SLOTS].view(RECORD)
        self.reports: Any = buffer[at["reports_offset"] :][: REPORT.itemsize * SLOTS].view(REPORT)
        self.prompt: NDArray[np.uint32] = buffer[at["prompt_offset"] :][: 4 * SLOTS * PROMPT_ROOM].view(np.uint32)
        self.token: NDArray[np.uint32] = buffer[at["token_offset"] :][: 4 * SLOTS * TOKEN_ROOM].view(np.uint32)
        self.native = native_scheduler(
            buffer, settings, max_context=MAX_CONTEXT, vocab_size=VOCABULARY, launch_window=launch_window
        )
        self.memory = EngineMemory(self.native)
        self.orders = OrderQueue(self.native, self.memory)
        self.engine = ToyEngine(settings.pages)
        self.now_ns = 1_000_000_000
        self.flying: tuple[int, Step] | None = None
        self.steps: list[Step] = []
        self.live: dict[int, Request] = {}  # by slot
        self.done: list[Request] = []
        self.shares: list[Share] = [self.ring.share(f) for f in range(front_ends)]
        for share in self.shares:
            self.ring.grant(share)

    # --- the front end ---

    def word(self, slot: int) -> tuple[SlotState, Finish, int, int]:
        return _ring.unpack_word(int(self.words[slot]))

    def state(self, slot: int) -> SlotState:
        return self.word(slot)[0]

    def free_slot(self, front_end: int) -> int | None:
        share = self.shares[front_end]
        slots = range(share.slot_begin, share.slot_begin + share.slot_count)
        return next((slot for slot in slots if self.state(slot) == SlotState.EMPTY), None)

    def submit(
        self, prompt_count: int, most: int = 4, *, front_end: int = 0, seed: int = 0, cached: int = 0,
        stop_ids: tuple[int, ...] = (), spoil: dict[str, Any] | None = None,
    ) -> Request:  # fmt: skip
        """`spoil`: fields of the record that are to be something else."""
        slot = self.free_slot(front_end)
        assert slot is not None
        generation = _ring.next_generation(self.word(slot)[2])
        self.header["doorbells"][front_end] += 1
        prompt = prompt_tokens(seed, prompt_count)
        record = np.zeros((), RECORD)
        record["generation"], record["sequence"] = generation, self.header["doorbells"][front_end] & 0xFFFFFFFF
        record["prompt_begin"], record["prompt_count"] = slot * PROMPT_ROOM, prompt_count
        record["token_begin"], record["max_tokens"] = slot * TOKEN_ROOM, most
        record["top_p"], record["seed"], record["temperature"] = 1, seed, 1
        record["stop_ids"][: len(stop_ids)], record["stop_count"] = stop_ids, len(stop_ids)
        record["cached_tokens"], record["kv_reads"], record["kv_root"][0] = cached, seed + 1, 1
        for name, value in (spoil or {}).items():
            record[name] = value
        self.records[slot] = record
        self.prompt[slot * PROMPT_ROOM :][:prompt_count] = prompt
        self.words[slot] = _ring.slot_word(SlotState.PREFILL_PENDING, Finish.NONE, generation, 0)
        expected = expected_tokens(prompt, seed, most, stop_ids)
        self.live[slot] = Request(
            slot, front_end, generation, int(record["sequence"]), prompt, most, expected, cached, whole=not spoil
        )
        return self.live[slot]

    def cancel(self, request: Request) -> None:
        request.cancelled = True
        self.cancels[request.slot] = request.generation

    def collect(self) -> None:
        """Takes over what has ended, and empties its slots."""
        for slot, request in list(self.live.items()):
            state, finish, generation, count = self.word(slot)
            assert generation == request.generation
            request.tokens = self.token[slot * TOKEN_ROOM :][:count].tolist()
            if state == SlotState.DECODE_COMPLETED:
                request.finish, request.report = finish, self.reports[slot].copy()
                self.words[slot] = _ring.slot_word(SlotState.EMPTY, Finish.NONE, generation, 0)
                self.done.append(self.live.pop(slot))

    # --- the engine and the scheduler ---

    def turn(self, seconds: float = 1e-3) -> Turn:
        before = self.words.copy()
        self.now_ns += round(seconds * 1e9)
        result = self.native.turn(self.now_ns)
        if (wrong := self.native.check()) != "":
            raise AssertionError(wrong)
        for slot in np.flatnonzero(before != self.words).tolist():
            self._watch(slot, _ring.unpack_word(int(before[slot])), self.word(slot))
        if (launch := self.native.next_launch(0)) is not None:
            assert self.flying is None, "two steps in flight"
            self.flying = launch[0], self._read_step(launch[3])
        return result

    def _watch(self, slot: int, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        lease = self.ring.lease_state(slot // (SLOTS // self.ring.front_ends))
        assert before[2] == after[2], "a generation changed"
        if lease == LeaseState.LEASED and before[0] != after[0]:
            owner = _ring.transition_owner(before[0], after[0])
            assert owner == Owner.SCHEDULER, f"{before[0]} -> {after[0]} is not the scheduler's"
        if lease == LeaseState.LEASED and (request := self.live.get(slot)) is not None and request.whole:
            count = after[3]
            assert before[3] <= count
            assert self.token[slot * TOKEN_ROOM :][:count].tolist() == request.expected[:count]

    def _read_step(self, graph_size: int) -> Step:
        view = self.memory.step_view()
        rows = view.sequences[: view.sequence_count]
        slots, counts, sampled = (rows[name].tolist() for name in ("slot", "token_count", "sample"))
        samples = frozenset(slot for slot, sample in zip(slots, sampled, strict=True) if sample)
        step = Step(view.kind, tuple(slots), tuple(counts), samples, graph_size)
        assert graph_size >= (view.token_count if view.kind == StepKind.PREFILL else view.sequence_count)
        self.steps.append(step)
        return step

    def land(self, error: int = 0) -> None:
        """The step in flight, if there is one, is computed (or fails)."""
        if self.flying is None:
            return
        number, self.flying = self.flying[0], None
        if not error:
            self.engine.step(self.memory.step_view())
        self.native.complete(number, error)

    def go(self, turns: int = 1) -> None:
        """Lands and turns: one step of the batch each."""
        for _ in range(turns):
            self.land()
            self.turn()
        self.collect()

    def finish(self, turns: int = 2000) -> None:
        """Until nothing is left to do; fails if that takes too many turns."""
        for _ in range(turns):
            self.go()
            if not self.live and self.flying is None:
                return
        raise AssertionError(f"no end of {sorted(self.live)}: {self.native.counters()}")

    def stop(self) -> None:
        self.native.command(Command.STOP)

    @property
    def idle(self) -> bool:
        n = self.native.counters()
        return n["free_pages"] == self.settings.pages and n["free_lanes"] == self.settings.lanes
