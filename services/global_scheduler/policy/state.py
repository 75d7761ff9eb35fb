"""What a policy sees and what it answers (D9-D12). Plain values: two equal inputs give two equal answers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Role(Enum):
    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class ReadPath(Enum):
    """Who reads a request's stored KV."""

    UNIFIED = "unified"  # the one engine that serves it
    PREFILL = "prefill"  # D1
    DECODE = "decode"  # D2


class RefusalReason(Enum):
    """The part of a refusal that programs read; its value starts the refusal's text."""

    UNKNOWN_MODEL = "unknown_model"  # no engine has offered it since the scheduler started
    NO_LIVE_ENGINE = "no_live_engine"  # for now
    TOO_LARGE = "too_large"  # for every live engine, even an idle one


@dataclass(frozen=True, slots=True)
class EngineView:
    """One engine that may be given work: its lease runs and it accepts. A policy never sees another one."""

    engine_id: str
    group_id: str
    role: Role
    model: str
    page_tokens: int
    page_count: int
    max_context: int  # most tokens of one request, prompt and completion together
    requests: int  # seq_e: unfinished, those placed since its last report included
    tokens: int  # tok_e: their tokens, likewise
    read_queue_tokens: int  # read_q
    free_pages: int  # as last reported


@dataclass(frozen=True, slots=True)
class MeshView:
    engines: tuple[EngineView, ...]
    models: frozenset[str]  # every model offered since the scheduler started, by live engines or not


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    exclude_engines: frozenset[str] = frozenset()  # tried and lost, for this request

    @property
    def kv_tokens(self) -> int:
        """Most tokens whose KV it can need at once: the last token sampled is never written."""
        return self.prompt_tokens + max(self.max_tokens, 1) - 1


@dataclass(frozen=True, slots=True)
class Placement:
    """The engines of one request. A unified engine is both."""

    request_id: str
    prefill: str
    decode: str
    path: ReadPath


@dataclass(frozen=True, slots=True)
class Refusal:
    request_id: str
    reason: RefusalReason
    message: str  # names the bad thing and what would help


Decision = Placement | Refusal


class Policy(Protocol):
    """One way of placing requests."""

    name: str

    def place(self, state: MeshView, requests: Sequence[Request]) -> list[Decision]:
        """One decision a request, in the requests' order; each takes the ones before it into account."""
        ...
