"""DualPath's choices the slow way: every sum and order is made anew for each step from what was told."""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from services.global_scheduler.policy.state import Engine, Load, Request, Role


@dataclass(eq=False)
class Told:
    """An engine: its last report, the requests placed on it since with what it reads of them, those held for it."""

    engine: Engine
    load: Load
    since: list[tuple[Request, int]] = field(default_factory=list)
    held: list[Request] = field(default_factory=list)

    @property
    def on_it(self) -> list[Request]:
        return [request for request, _ in self.since] + self.held

    @property
    def seq(self) -> int:
        return self.load.requests + len(self.on_it)

    @property
    def tok(self) -> int:
        return self.load.tokens + sum(request.prompt_tokens for request in self.on_it)

    @property
    def reading(self) -> int:
        return self.load.read_queue_tokens + sum(tokens for _, tokens in self.since)

    @property
    def free(self) -> int:
        page = self.engine.page_tokens
        taken = sum(-(-(request.prompt_tokens + 1) // page) * page for request, _ in self.since)
        return min(self.load.free_pages * page, self.engine.page_count * page - self.load.tokens) - taken

    def holds(self, request: Request) -> int:
        return min(dict(request.held).get(self.engine.engine_id, 0), request.cached_tokens)

    def fits(self, request: Request) -> bool:
        if self.engine.engine_id in request.exclude_engines:
            return False
        if request.prompt_tokens + request.max_tokens > self.engine.max_context:
            return False
        if self.engine.role is Role.DECODE and 0 < self.engine.receive_tokens < request.prompt_tokens:
            return False
        memory = self.engine.page_count * self.engine.page_tokens
        return self.engine.role is Role.PREFILL or request.prompt_tokens + max(request.max_tokens, 1) - 1 <= memory


@dataclass(eq=False)
class Asked:
    request: Request
    prefill: Told | None = None
    group: str | None = None


class Reference:
    """One model, no unified engines. `waiting` is in the order of arrival."""

    def __init__(self, alpha: int, beta: int, path: Callable[[int, int, int, int, int], tuple[int, int]]) -> None:
        """`path`: the hit, the two sides' read queues, what each side holds of the hit -> what each side reads."""
        self.alpha, self.beta, self.path = alpha, beta, path
        self.engines: dict[str, Told] = {}
        self.waiting: list[Asked] = []
        self.queues: dict[str, list[Asked]] = {}

    def remove(self, engine_id: str) -> None:
        for asked in self.waiting:
            if asked.prefill:
                asked.prefill.held.remove(asked.request)
            asked.prefill = asked.group = None
        self.queues = {}
        del self.engines[engine_id]

    def withdraw(self, request_id: str) -> None:
        (asked,) = [asked for asked in self.waiting if asked.request.request_id == request_id]
        self.waiting.remove(asked)
        if asked.prefill:
            asked.prefill.held.remove(asked.request)
        if asked.group:
            self.queues[asked.group].remove(asked)

    def of(self, role: Role) -> list[Told]:
        return [told for told in self.engines.values() if told.engine.role is role]

    def decide(self) -> list[tuple[str, ...]]:
        """(request, "refused") or (request, prefill, decode, tokens read on each side), in any order."""
        answers: list[tuple[str, ...]] = []
        for asked in [asked for asked in self.waiting if not asked.prefill]:
            able = [any(told.fits(asked.request) for told in self.of(role)) for role in (Role.PREFILL, Role.DECODE)]
            if not all(able):
                self.waiting.remove(asked)
                answers.append((asked.request.request_id, "refused"))
                continue
            prefill = self.prefill_engine(asked.request)
            if not prefill:
                break
            prefill.held.append(asked.request)
            asked.prefill = prefill
            asked.group = self.decode_group(asked.request)
            self.queues.setdefault(asked.group, []).append(asked)
        placed = [pair for name in self.queues for pair in self.decode_engines(name)]
        for asked, decode in sorted(placed, key=lambda pair: self.waiting.index(pair[0])):
            answers.append(self.placed(asked, decode))
        return answers

    def placed(self, asked: Asked, decode: Told) -> tuple[str, ...]:
        request, prefill = asked.request, asked.prefill
        assert prefill
        queues, helds = (
            (self.read_queue(prefill), self.read_queue(decode)),
            (prefill.holds(request), decode.holds(request)),
        )
        here, there = self.path(request.cached_tokens, *queues, *helds)
        self.withdraw(request.request_id)
        prefill.since.append((request, here))
        decode.since[decode.since.index((request, 0))] = request, there
        return request.request_id, prefill.engine.engine_id, decode.engine.engine_id, str(here), str(there)

    def read_queue(self, told: Told) -> int:
        node = told.engine.node_id
        return sum(other.reading for other in self.engines.values() if other.engine.node_id == node)

    def prefill_engine(self, request: Request) -> Told | None:
        able = [told for told in self.of(Role.PREFILL) if told.fits(request) and told.tok <= self.beta]
        short = [told for told in able if self.read_queue(told) - told.holds(request) <= self.alpha]
        return min(
            short or able,
            key=lambda told: (told.tok - told.holds(request), told.seq, told.engine.engine_id),
            default=None,
        )

    def decode_group(self, request: Request) -> str:
        totals: dict[str, int] = {}
        for told in self.of(Role.DECODE):
            totals[told.engine.group_id] = totals.get(told.engine.group_id, 0) + told.tok
        for name, queue in self.queues.items():
            totals[name] += sum(asked.request.prompt_tokens for asked in queue)
        able = {told.engine.group_id: 0 for told in self.of(Role.DECODE) if told.fits(request)}
        for told in self.of(Role.DECODE):
            if told.fits(request):
                able[told.engine.group_id] = max(able[told.engine.group_id], told.holds(request))
        for name, held in able.items():
            totals[name] -= held
        return min(able, key=lambda name: (totals[name], name))

    def decode_engines(self, name: str) -> list[tuple[Asked, Told]]:
        """Places on the engines; leaves the queue as it is."""
        members = [told for told in self.of(Role.DECODE) if told.engine.group_id == name]
        free = sum(max(told.free, 0) for told in members)
        reach = []
        for asked in self.queues[name]:
            free -= asked.request.prompt_tokens + 1
            if free < 0:
                break
            reach.append(asked)
        total = sum(asked.request.prompt_tokens for asked in reach) + sum(told.tok for told in members)
        z = Fraction(105, 100) * total / len(members)
        pairs = []
        for asked in reach:
            length = asked.request.prompt_tokens
            roomy = [told for told in members if told.fits(asked.request) and told.free > length]
            low = [told for told in roomy if told.tok + length <= z]
            rest = [told for told in roomy if told not in low]
            if low:
                most = max(told.holds(asked.request) for told in low)
                low = [told for told in low if told.holds(asked.request) == most]
                decode = min(low, key=lambda told: (told.seq, told.tok, told.engine.engine_id))
            elif rest:
                decode = min(rest, key=lambda told: (told.tok, told.seq, told.engine.engine_id))
            else:
                break
            decode.since.append((asked.request, 0))
            pairs.append((asked, decode))
        return pairs
