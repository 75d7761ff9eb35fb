"""A policy: the live engines of every model, one bounded queue, decisions in rounds."""

from collections.abc import Callable
from dataclasses import replace

from services.global_scheduler.policy.decode_choice import Waiting
from services.global_scheduler.policy.fleet import Member, Nodes
from services.global_scheduler.policy.parameters import Parameters
from services.global_scheduler.policy.pool import Choices, Pool
from services.global_scheduler.policy.roster import unknown_model
from services.global_scheduler.policy.state import Decision, Engine, Load, Refusal, RefusalReason, Request


class PooledPolicy:
    """Implements state.Policy by one pool a model. Models share nothing but the bound of the queue and, where engines
    of several are on one node, its read queue."""

    name: str

    def __init__(self, choices: Callable[[], Choices], parameters: Parameters) -> None:
        self._choices = choices
        self._max_waiting = parameters.max_waiting
        self._reuse = parameters.local_reuse
        self._nodes = Nodes()
        self._members: dict[str, tuple[Member, Pool]] = {}
        self._pools: dict[str, Pool] = {}
        self._waiting: dict[str, tuple[Waiting, Pool]] = {}
        self._arrivals = 0
        self._refused: list[Decision] = []
        self._open: dict[Pool, None] = {}  # pools where something changed since their last round, in order

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def know(self, model: str) -> None:
        if model not in self._pools:
            self._pools[model] = Pool(self._choices())

    def add(self, engine: Engine, load: Load) -> None:
        if engine.engine_id in self._members:
            raise ValueError(f"engine {engine.engine_id!r} takes work already")
        self.know(engine.model)
        pool = self._pools[engine.model]
        member = self._nodes.join(engine, load)
        self._members[engine.engine_id] = member, pool
        pool.add(member)
        self._open[pool] = None

    def report(self, engine_id: str, load: Load) -> None:
        member, pool = self._members[engine_id]
        member.hear(load)
        pool.changed(member)
        self._open[pool] = None

    def remove(self, engine_id: str) -> None:
        if engine_id in self._members:
            member, pool = self._members.pop(engine_id)
            pool.remove(member)
            self._nodes.leave(member)
            self._open[pool] = None

    def submit(self, request: Request) -> None:
        if request.request_id in self._waiting:
            raise ValueError(f"request {request.request_id!r} waits already")
        pool = self._pools.get(request.model)
        if pool is None:
            self._refused.append(unknown_model(request, self._pools))
        elif len(self._waiting) >= self._max_waiting:
            message = f"{self._max_waiting} requests wait for engines already; try again later"
            self._refused.append(Refusal(request.request_id, RefusalReason.QUEUE_FULL, message))
        else:
            self._arrivals += 1
            if request.held and not self._reuse:
                request = replace(request, held=())
            waiting = Waiting(self._arrivals, request)
            self._waiting[request.request_id] = waiting, pool
            pool.put(waiting)
            self._open[pool] = None

    def withdraw(self, request_id: str) -> bool:
        if request_id not in self._waiting:
            return False
        waiting, pool = self._waiting.pop(request_id)
        pool.withdraw(waiting)
        self._open[pool] = None
        return True

    def decide(self) -> list[Decision]:
        decisions, self._refused = self._refused, []
        opened, self._open = self._open, {}
        for pool in opened:
            for decision in pool.decide():
                del self._waiting[decision.request_id]
                decisions.append(decision)
        return decisions
