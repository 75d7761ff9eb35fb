"""Which decode engines still hold an agent's context in DRAM: a turn's KV stays where it was decoded. Contexts go as a
whole, those of the least recently placed turns first."""

from collections import OrderedDict

from services.global_scheduler.policy.state import Held


class HeldContexts:
    """`capacity_tokens` an engine; 0: nothing is held."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._engines: dict[str, OrderedDict[int, int]] = {}
        self._totals: dict[str, int] = {}
        self._agents: dict[int, dict[str, int]] = {}

    def of(self, agent: int) -> tuple[Held, ...]:
        """Tokens of the agent's context, by engine."""
        return tuple(Held(engine, tokens) for engine, tokens in self._agents.get(agent, {}).items())

    def decoded(self, engine: str, agent: int, tokens: int) -> None:
        """So many tokens of whole blocks lie there once the agent's turn is over."""
        if tokens > self._capacity:
            return
        self._forget(engine, agent)
        contexts = self._engines.setdefault(engine, OrderedDict())
        contexts[agent] = tokens
        self._agents.setdefault(agent, {})[engine] = tokens
        self._totals[engine] = self._totals.get(engine, 0) + tokens
        while self._totals[engine] > self._capacity:
            self._forget(engine, next(iter(contexts)))

    def _forget(self, engine: str, agent: int) -> None:
        if tokens := self._agents.get(agent, {}).pop(engine, 0):
            del self._engines[engine][agent]
            self._totals[engine] -= tokens
