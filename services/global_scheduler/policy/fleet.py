"""The live engines with what is on them: what they reported, and what was placed on them since (D9)."""

from typing import Protocol

from services.global_scheduler.policy.state import Engine, Load, Request, Role


class Node:
    """A machine: its engines read through the same storage NICs, so they share one read queue, read_q."""

    __slots__ = ("members", "node_id", "read_queue_tokens", "watchers")

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.members = 0
        self.read_queue_tokens = 0
        self.watchers: list[NodeWatcher] = []


class NodeWatcher(Protocol):
    def read_queue_changed(self, node: Node) -> None: ...


class Member:
    """A live engine. `requests`, `tokens`, `free_tokens` and the node's queue count what was placed since its
    last report as on it. Held requests wait here for a decode engine: no report can show them yet."""

    __slots__ = (
        "capacity_tokens",
        "counted_tokens",
        "engine",
        "engine_id",
        "free_tokens",
        "held_requests",
        "held_tokens",
        "longest_prompt",
        "max_context",
        "node",
        "page_tokens",
        "read_queue_tokens",
        "requests",
        "seat",
        "tokens",
    )

    def __init__(self, engine: Engine, node: Node) -> None:
        self.engine = engine
        self.engine_id = engine.engine_id
        self.node = node
        self.max_context = engine.max_context
        receives = engine.role is Role.DECODE and engine.receive_tokens > 0
        self.longest_prompt = engine.receive_tokens if receives else engine.max_context
        self.page_tokens = engine.page_tokens
        # D6: a prefill engine holds a few layers' KV at a time, so its pages bound no prompt.
        layerwise = engine.role is Role.PREFILL
        self.capacity_tokens = engine.max_context if layerwise else engine.page_count * engine.page_tokens
        self.requests = self.tokens = self.free_tokens = self.read_queue_tokens = 0
        self.held_requests = self.held_tokens = 0
        self.seat = self.counted_tokens = 0  # its chooser's own

    def hear(self, load: Load) -> None:
        self.requests = load.requests + self.held_requests
        self.tokens = load.tokens + self.held_tokens
        # What was placed takes its memory later (D3), so what is free is bounded by tok_e, too.
        self.free_tokens = min(load.free_pages * self.page_tokens, self.capacity_tokens - self.tokens)
        if load.read_queue_tokens != self.read_queue_tokens:
            self.read(load.read_queue_tokens - self.read_queue_tokens)

    def read(self, tokens: int) -> None:
        """So many more, or fewer, wait to be read by it."""
        self.read_queue_tokens += tokens
        node = self.node
        node.read_queue_tokens += tokens
        for watcher in node.watchers:
            watcher.read_queue_changed(node)

    def place(self, request: Request) -> None:
        self.requests += 1
        self.tokens += request.prompt_tokens
        self.free_tokens -= self.room(request)

    def hold(self, request: Request) -> None:
        self.place(request)
        self.held_requests += 1
        self.held_tokens += request.prompt_tokens

    def release(self, request: Request) -> None:
        """A held one is told to the engine now."""
        self.held_requests -= 1
        self.held_tokens -= request.prompt_tokens

    def take_back(self, request: Request) -> None:
        """A held one goes elsewhere."""
        self.release(request)
        self.requests -= 1
        self.tokens -= request.prompt_tokens

    def room(self, request: Request) -> int:
        """Tokens of KV memory, in whole pages, with which the request can start to decode."""
        return -(-(request.prompt_tokens + 1) // self.page_tokens) * self.page_tokens

    def fits(self, request: Request) -> bool:
        """Whether it could hold the request if it had nothing else to do; False if it was tried and lost."""
        return (
            request.prompt_tokens + request.max_tokens <= self.max_context
            and request.prompt_tokens <= self.longest_prompt
            and request.kv_tokens <= self.capacity_tokens
            and self.engine_id not in request.exclude_engines
        )


class Nodes:
    """Each node is there as long as one of its engines is."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def join(self, engine: Engine, load: Load) -> Member:
        node = self._nodes.setdefault(engine.node_id, Node(engine.node_id))
        node.members += 1
        member = Member(engine, node)
        member.hear(load)
        return member

    def leave(self, member: Member) -> None:
        member.read(-member.read_queue_tokens)
        member.node.members -= 1
        if not member.node.members:
            del self._nodes[member.node.node_id]
