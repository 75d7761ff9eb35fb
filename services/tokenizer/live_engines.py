"""The last placement table: which engines live, what they serve, and a turn among them (no I/O)."""

import asyncio
from collections.abc import Callable

from hostless.v1 import scheduler_pb2 as pb
from services.global_scheduler.client import bring_to_end
from services.tokenizer.errors import RequestError, unavailable
from services.tokenizer.prompt import Limits

Tried = frozenset[tuple[str, int]]
"""(engine_id, epoch) of engines that a request has lost; the same engine restarted is another one."""


class LiveEngines:
    """Kept by the scheduler's watch; read by all. `changed` is set, and replaced, at every new table."""

    def __init__(self) -> None:
        self.engines: dict[str, pb.EngineInfo] = {}
        self.changed = asyncio.Event()
        self._known_models: set[str] = set()  # offered at some time since this service started
        self._heard = False
        self._turn = 0

    def update(self, table: pb.PlacementTable) -> None:
        self.engines = {info.engine_id: info for info in table.engines}
        self._known_models |= {info.model for info in table.engines}
        self._heard = True
        self.changed.set()
        self.changed = asyncio.Event()

    def serving(self, model: str) -> list[pb.EngineInfo]:
        """Live engines that take prompts of the model."""
        return [info for info in self.engines.values() if info.model == model and info.role != pb.ROLE_DECODE]

    def models(self) -> list[str]:
        return sorted({info.model for info in self.engines.values() if info.role != pb.ROLE_DECODE})

    def complete(self, model: str) -> bool:
        """Whether live engines can bring a request to its end."""
        return bring_to_end(info.role for info in self.engines.values() if info.model == model)

    def unserved(self, model: str) -> RequestError:
        """Why nobody serves the model: never offered (404), or not now (503)."""
        if self._heard and self._known_models and model not in self._known_models:
            served = ", ".join(self.models()) or "none at the moment"
            message = f"the model {model!r} does not exist; served: {served}"
            return RequestError(404, message, code="model_not_found", param="model")
        return unavailable(f"no live engine serves the model {model!r}; try again")

    def limits(self, model: str) -> Limits:
        """Of the roomiest engine of a model that is served."""
        infos = self.serving(model)
        roomiest = max(infos, key=lambda info: (info.max_context, info.page_count * info.page_tokens))
        return Limits(
            context=roomiest.max_context,
            kv_tokens=roomiest.page_count * roomiest.page_tokens,
            vocab_size=min(info.vocab_size for info in infos),
        )

    def excluded(self, tried: Tried) -> list[str]:
        """Ids of engines that still are what was tried."""
        return [engine_id for engine_id, epoch in tried if self._epoch(engine_id) == epoch]

    def untried(self, model: str, tried: Tried) -> bool:
        """Whether an engine of the model lives that was not tried."""
        return any((info.engine_id, info.epoch) not in tried for info in self.serving(model))

    def in_turn(
        self, model: str, role: pb.Role, tokens: int, tried: Tried, usable: Callable[[pb.EngineInfo], bool]
    ) -> pb.EngineInfo | None:
        """Round robin over the usable engines of model and role that could hold `tokens`, without the scheduler."""
        ours = [info for info in self.engines.values() if info.model == model and info.role == role]
        able = [info for info in ours if usable(info) and self._able(info, tokens, tried)]
        if not able:
            return None
        self._turn += 1
        return able[self._turn % len(able)]

    def _able(self, info: pb.EngineInfo, tokens: int, tried: Tried) -> bool:
        fits = tokens <= info.max_context and tokens <= info.page_count * info.page_tokens + 1
        return fits and (info.engine_id, info.epoch) not in tried

    def _epoch(self, engine_id: str) -> int | None:
        info = self.engines.get(engine_id)
        return info.epoch if info else None
