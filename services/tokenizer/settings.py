"""Settings of the tokenizer."""

import os
import socket
from dataclasses import dataclass

from hostless.v1 import frontend_pb2 as pb
from services.common.settings import require, require_above, require_addresses, require_least, setting
from services.tokenizer.tool_formats import NAMES

_PARSERS = ", ".join(NAMES)


@dataclass(frozen=True)
class TokenizerSettings:
    address: str = setting("127.0.0.1:7020", "host:port of the gRPC service; port 0 picks a free one")
    metrics_address: str = setting("127.0.0.1:7021", "host:port of Prometheus metrics; empty: none")
    scheduler: str = setting("127.0.0.1:7010", "host:port of the global scheduler")
    kvstore: str = setting("", "host:port of the KV store; empty: prompts are computed whole")
    name: str = setting("", "how engines' logs name this front end; empty: host and process id")
    tool_parser: str = setting("auto", "how models write calls of tools: auto, as their templates do; or " + _PARSERS)
    model_sampling: bool = setting(
        True, "a model's generation_config.json says how requests are sampled that name no temperature, top_p or "
        "top_k; false: 1, 1 and off"
    )  # fmt: skip
    encode_threads: int = setting(2, "threads that tokenize prompts of usual length; one more takes the long ones")
    max_requests: int = setting(4096, "requests under way at once, all sessions together; more are answered with 429")
    max_unsent_deltas: int = setting(65536, "a gateway that has not taken so many is cut off")
    engine_wait_s: float = setting(10.0, "time a request waits for a live engine before it is answered with 503")
    schedule_s: float = setting(
        1.0, "time the global scheduler has for a call; longer than its wait-ms, or requests lose their turn"
    )
    kv_lookup_s: float = setting(0.05, "time the KV store has to answer; later is a miss")
    kv_lease_s: float = setting(60.0, "time that found KV blocks are asked to be kept for a request")
    stall_s: float = setting(15.0, "an engine whose scheduler stands still so long with requests in it counts as lost")
    poll_busy_s: float = setting(0.001, "least time between two looks at a ring")
    poll_idle_s: float = setting(0.01, "most time between two looks at a ring with requests in flight")
    grace_s: float = setting(30.0, "time that running requests have to finish after SIGTERM")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require_addresses(self, "address", "scheduler", or_empty=("metrics_address", "kvstore"))
        require(
            self.tool_parser == "auto" or self.tool_parser in NAMES,
            f"tool-parser: {self.tool_parser} is not one of auto, {_PARSERS}",
        )
        require_least(self, 1, "encode_threads", "max_requests", "max_unsent_deltas")
        require_least(self, 0, "grace_s")
        require_above(self, 0, "engine_wait_s", "schedule_s", "kv_lookup_s", "kv_lease_s", "stall_s")
        # uvloop counts in milliseconds; a shorter pause would be none, and the loop would spin.
        require(
            0.001 <= self.poll_busy_s <= self.poll_idle_s,
            f"poll-busy-s: {self.poll_busy_s} is not between 0.001 and poll-idle-s ({self.poll_idle_s})",
        )

    @property
    def tool_format(self) -> pb.ToolFormat:
        return NAMES.get(self.tool_parser, pb.TOOL_FORMAT_NONE)

    @property
    def front_end_id(self) -> str:
        return self.name or f"{socket.gethostname()}-{os.getpid()}"
