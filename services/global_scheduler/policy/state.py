"""What a policy is told and what it answers (D9-D12, D15). Plain values: the same calls give the same answers."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol


class Role(Enum):
    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class ReadPath(Enum):
    """Who reads a request's stored KV."""

    UNIFIED = "unified"  # the one engine that serves it
    PREFILL = "prefill"  # D1
    DECODE = "decode"  # D2
    SPLIT = "split"  # D15: both, a part each


class RefusalReason(Enum):
    """The part of a refusal that programs read; its value starts the refusal's text."""

    UNKNOWN_MODEL = "unknown_model"  # no engine has offered it since the scheduler started
    NO_LIVE_ENGINE = "no_live_engine"  # for now
    TOO_LARGE = "too_large"  # for every live engine, even an idle one
    QUEUE_FULL = "queue_full"  # as many wait as may
    OVERLOADED = "overloaded"  # it waited too long; said by who withdraws it


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine that may be given work: its lease runs and it accepts. A policy never hears of another one."""

    engine_id: str
    group_id: str  # D9: engines that one leader speaks for
    node_id: str  # the machine whose storage NICs it reads through; a node's engines share a read queue
    role: Role
    model: str
    page_tokens: int
    page_count: int
    max_context: int  # most tokens of one request, prompt and completion together
    receive_tokens: int = 0  # longest prompt that it can take over from a prefill engine; 0: of any length


class Load(NamedTuple):
    """What an engine reports of itself (D9)."""

    requests: int  # seq_e: unfinished
    tokens: int  # tok_e: their tokens
    read_queue_tokens: int  # its own part of its node's read_q: the policy adds up the node's engines
    free_pages: int


class Held(NamedTuple):
    """An engine holds the first so many tokens of a request's hit in memory: it needs not read them."""

    engine_id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str  # unique among those that wait
    model: str
    prompt_tokens: int  # len_r
    cached_tokens: int  # its hit: the first so many tokens are in the store
    max_tokens: int
    exclude_engines: frozenset[str] = frozenset()  # tried and lost, for this request
    held: tuple[Held, ...] = ()  # looked at with Parameters.local_reuse only; at most one an engine

    @property
    def kv_tokens(self) -> int:
        """Most tokens whose KV it can need at once: the last token sampled is never written."""
        return self.prompt_tokens + max(self.max_tokens, 1) - 1

    def held_by(self, engine_id: str) -> int:
        """Tokens of the hit's start that the engine needs not read."""
        for held in self.held:
            if held.engine_id == engine_id:
                return min(held.tokens, self.cached_tokens)
        return 0


@dataclass(frozen=True, slots=True)
class Placement:
    """The engines of one request, and who reads how much of its hit. A unified engine is both."""

    request_id: str
    prefill: str
    decode: str
    path: ReadPath
    prefill_read_tokens: int = 0  # read from the store on the prefill engine's node
    decode_read_tokens: int = 0  # on the decode engine's node; both and `reused_tokens` make up the hit
    reused_tokens: int = 0  # of the hit's start: held by the engine that `path` names, where both read by prefill's


@dataclass(frozen=True, slots=True)
class Refusal:
    request_id: str
    reason: RefusalReason
    message: str  # names the bad thing and what would help


Decision = Placement | Refusal


class Policy(Protocol):
    """One way of placing requests, with its queue. Whoever drives it, the service or the simulator, brings the clock:
    says what engines report, ends those whose leases ran out, and withdraws what has waited long enough.

    Between two reports of an engine, what is placed on it counts as its load; a report replaces that.
    """

    name: str

    @property
    def waiting(self) -> int:
        """Requests submitted, and neither decided nor withdrawn."""
        ...

    def know(self, model: str) -> None:
        """A model that exists, with or without a live engine: it is refused as such, not as unknown."""
        ...

    def add(self, engine: Engine, load: Load) -> None:
        """The engine takes work from now on. Raises ValueError if it does already."""
        ...

    def report(self, engine_id: str, load: Load) -> None:
        """Raises KeyError for an engine that was not added, or was removed."""
        ...

    def remove(self, engine_id: str) -> None:
        """The engine takes no more work; requests that wait for it or its group go back to the queue, in the order
        in which they came. Idempotent."""
        ...

    def submit(self, request: Request) -> None:
        """Joins the queue; what comes of it, `decide` says. Raises ValueError if one of that id waits."""
        ...

    def withdraw(self, request_id: str) -> bool:
        """Leaves the queue: no decision on it follows. False if it doesn't wait (any more)."""
        ...

    def decide(self) -> list[Decision]:
        """One round: all that can be decided now. Those for unified engines always can, in their order."""
        ...
