"""How an engine's scheduler is set: shapes, bounds and policy (state.hpp's Settings)."""

from dataclasses import dataclass, field

from services.gpu_backend.engine import PAGE_TOKENS


def graph_sizes(largest: int) -> tuple[int, ...]:
    """A grid of shapes, denser where small: powers of two and their one-and-a-halfs, up to the largest."""
    sizes = {largest}
    size = 1
    while size < largest:
        sizes |= {size, min(size + size // 2, largest)}
        size *= 2
    return tuple(sorted(sizes))


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Raises ValueError where a value can't be; the native side checks again what memory depends on."""

    lanes: int
    """Most sequences in a step."""
    step_tokens: int
    """Most tokens in a step; at least `lanes`."""
    pages: int
    """KV pages of 64 tokens."""
    prefill_chunk: int = 0
    """Most prompt tokens of a step; 0: whole prompts as far as `step_tokens` goes (B6)."""
    decode_between_chunks: bool = True
    """Running decodes get a step between two chunks of a prompt."""
    mixed_tokens: int = 0
    """Most tokens of a step in which prompts and all running decodes share; at least `lanes`, at most `step_tokens`.
    0: they take turns (B6)."""
    attention_time: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Seconds of attention for a request, for each new token, and for each pair of one and a token that it attends
    to, as a fit to a profile has them."""
    attention_quota_s: float = 0.0
    """What the attention of a step's prompts may take by that; the prompt that overflows it is cut where it fits
    (D13). 0: no bound."""
    kv_orders: bool = False
    """Whether a KV agent takes orders; without one nothing is loaded or stored."""
    order_capacity: int = 1024
    """Orders in flight to the agent; a power of two. Blocks that find no room are not stored."""
    store_limit: int | None = None
    """Most pages that unanswered store orders may hold; None: an eighth of all, at least one."""
    sweep_s: float = 200e-6
    """Between two looks at cancel flags of requests that wait, and at ended leases."""
    watchdog_s: float = 0.0
    """A step that takes longer fails the engine for good; 0: never."""
    agent_patience_s: float = 1.0
    """Free pages are awaited from the agent, rather than evicting, only while it moves this often."""
    decode_graphs: tuple[int, ...] = field(default=())
    """Captured decode shapes (sequences), ascending to `lanes`; empty: `graph_sizes`."""
    prefill_graphs: tuple[int, ...] = field(default=())
    """Captured prefill shapes (tokens), ascending to `step_tokens`; empty: `graph_sizes`."""

    def __post_init__(self) -> None:
        for name in ("lanes", "step_tokens", "pages", "order_capacity"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("prefill_chunk", "attention_quota_s", "sweep_s", "watchdog_s", "agent_patience_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be negative")
        if self.step_tokens < self.lanes:
            raise ValueError(f"step_tokens is {self.step_tokens}; it must be at least lanes, {self.lanes}")
        if self.mixed_tokens and not self.lanes <= self.mixed_tokens <= self.step_tokens:
            raise ValueError(
                f"mixed_tokens is {self.mixed_tokens}; it must be 0, or between lanes, {self.lanes}, "
                f"and step_tokens, {self.step_tokens}"
            )
        if not all(seconds >= 0 for seconds in self.attention_time):
            raise ValueError(f"attention_time is {self.attention_time}; no part of it may be negative")
        if self.order_capacity & (self.order_capacity - 1):
            raise ValueError(f"order_capacity is {self.order_capacity}; it must be a power of two")

    @property
    def most_stored_pages(self) -> int:
        return max(1, self.pages // 8) if self.store_limit is None else self.store_limit

    @property
    def decode_shapes(self) -> tuple[int, ...]:
        return self.decode_graphs or graph_sizes(self.lanes)

    @property
    def prefill_shapes(self) -> tuple[int, ...]:
        return self.prefill_graphs or graph_sizes(self.step_tokens)

    def core(self, max_context: int, vocab_size: int) -> dict[str, int]:
        """By the names of state.hpp's Settings, for the native side; the ring's geometry is its own to read."""
        request_s, token_s, pair_s = self.attention_time
        return {
            "lanes": self.lanes,
            "step_tokens": self.step_tokens,
            "pages": self.pages,
            "order_capacity": self.order_capacity,
            "max_context": max_context,
            "vocab_size": vocab_size,
            "prefill_chunk": self.prefill_chunk,
            "decode_between_chunks": int(self.decode_between_chunks),
            "mixed_tokens": self.mixed_tokens,
            "attention_quota_fs": round(self.attention_quota_s * 1e15),
            "attention_request_fs": round(request_s * 1e15),
            "attention_token_fs": round(token_s * 1e15),
            "attention_pair_fs": round(pair_s * 1e15),
            "kv_orders": int(self.kv_orders),
            "store_limit": self.most_stored_pages,
            "sweep_ns": round(self.sweep_s * 1e9),
            "watchdog_ns": round(self.watchdog_s * 1e9),
            "agent_patience_ns": round(self.agent_patience_s * 1e9),
        }

    @property
    def capacity_tokens(self) -> int:
        """Tokens whose KV fits."""
        return self.pages * PAGE_TOKENS
