"""First come, first served, each request to the live unified engine with the fewest tokens on it."""

from collections.abc import Iterable, Sequence

from services.global_scheduler.policy.state import (
    Decision,
    EngineView,
    MeshView,
    Placement,
    ReadPath,
    Refusal,
    RefusalReason,
    Request,
    Role,
)


class LeastTokens:
    """Ties go to the engine with fewer requests, then to the smaller id, so that equal inputs are placed alike."""

    name = "least_tokens"

    def place(self, state: MeshView, requests: Sequence[Request]) -> list[Decision]:
        by_model: dict[str, list[_Load]] = {}
        for engine in state.engines:
            if engine.role is Role.UNIFIED:
                by_model.setdefault(engine.model, []).append(_Load(engine))
        return [self._place_one(by_model.get(request.model, ()), state.models, request) for request in requests]

    def _place_one(self, loads: Iterable["_Load"], models: frozenset[str], request: Request) -> Decision:
        candidates = [load for load in loads if load.engine.engine_id not in request.exclude_engines]
        fitting = [load for load in candidates if fits(load.engine, request)]
        if not fitting:
            return _refuse(models, [load.engine for load in candidates], request)
        chosen = min(fitting, key=_Load.order)
        chosen.add(request)
        engine_id = chosen.engine.engine_id
        return Placement(request.request_id, engine_id, engine_id, ReadPath.UNIFIED)


def fits(engine: EngineView, request: Request) -> bool:
    """Whether the engine could hold the request if it had nothing else to do."""
    if request.prompt_tokens + request.max_tokens > engine.max_context:
        return False
    return -(-request.kv_tokens // engine.page_tokens) <= engine.page_count


class _Load:
    """An engine and what this round has put on it."""

    __slots__ = ("engine", "requests", "tokens")

    def __init__(self, engine: EngineView) -> None:
        self.engine = engine
        self.requests = engine.requests
        self.tokens = engine.tokens

    def add(self, request: Request) -> None:
        self.requests += 1
        self.tokens += request.prompt_tokens

    def order(self) -> tuple[int, int, str]:
        return self.tokens, self.requests, self.engine.engine_id


def _refuse(models: frozenset[str], engines: Sequence[EngineView], request: Request) -> Refusal:
    if request.model not in models:
        known = ", ".join(sorted(models)) or "none yet"
        message = f"no engine serves model {request.model!r}; served: {known}"
        return Refusal(request.request_id, RefusalReason.UNKNOWN_MODEL, message)
    if not engines:
        message = f"no live engine serves model {request.model!r}"
        if request.exclude_engines:
            message += f" beside those already tried ({', '.join(sorted(request.exclude_engines))})"
        return Refusal(request.request_id, RefusalReason.NO_LIVE_ENGINE, message + "; try again")
    pages = max(engine.page_count * engine.page_tokens for engine in engines)
    context = max(engine.max_context for engine in engines)
    message = (
        f"prompt of {request.prompt_tokens} and up to {request.max_tokens} new tokens fit no engine of model "
        f"{request.model!r}: the longest context is {context} tokens, the largest KV memory {pages}"
    )
    return Refusal(request.request_id, RefusalReason.TOO_LARGE, message)
