"""Settings of an engine's process."""

import socket
from dataclasses import dataclass
from pathlib import Path

from services.common import paths
from services.common.settings import require, require_above, require_addresses, require_least, setting

ENGINES = ("torch", "synthetic")
DEFAULT_LANES = {"torch": 16, "synthetic": 256}


@dataclass(frozen=True)
class BackendSettings:
    address: str = setting("127.0.0.1:7040", "host:port of the gRPC service; port 0 picks a free one")
    advertise: str = setting("", "host:port by which others reach this service; empty: address")
    metrics_address: str = setting("127.0.0.1:7041", "host:port of Prometheus metrics; empty: none")
    scheduler: str = setting("127.0.0.1:7010", "host:port of the global scheduler")
    kvstore: str = setting("", "host:port of the KV store; empty: nothing is loaded or stored")
    engine_id: str = setting("", "name of this engine in the mesh, unique; empty: host name and port")

    engine: str = setting("torch", "torch computes a model; synthetic emits known tokens at a set rate")
    model: str = setting("SmolLM2-135M-Instruct", "model id, a folder under HOSTLESS_MODELS")
    dtype: str = setting("float32", "float32 or bfloat16; weights and KV")
    threads: int = setting(0, "CPU threads of a step; 0: torch's choice")
    max_context: int = setting(0, "most tokens of a request, prompt and completion; 0: the model's")
    lanes: int = setting(0, "most requests in a batch; 0: 16, or 256 for synthetic")
    step_tokens: int = setting(512, "most tokens in a step; longer prompts are prefilled in chunks")
    kv_pages: int = setting(0, "KV memory in pages of 64 tokens; 0: 1 GiB or less, by free memory and need")

    synthetic_tokens_per_s: float = setting(100.0, "decode rate of each request (synthetic)")
    synthetic_prefill_tokens_per_s: float = setting(20_000.0, "prefill rate (synthetic)")
    synthetic_words: tuple[str, ...] = setting(
        ("260", "2365", "6354", "16438", "27003", "690", "260", "23790", "2767", "30"),
        "token ids that repeat (synthetic)",
    )
    synthetic_vocab: int = setting(49_152, "size of the vocabulary (synthetic)")

    slots: int = setting(4096, "slots of the ring; each of 8 front ends gets an eighth")
    prompt_words: int = setting(1 << 22, "tokens of the ring's prompt arena")
    token_words: int = setting(1 << 22, "tokens of the ring's output arena")
    lease_ttl_ms: int = setting(5000, "a front end that has not renewed its lease for so long loses it")
    lease_grace_ms: int = setting(1000, "rest of a drained front-end place before another one gets it")

    report_ms: int = setting(250, "pause between reports while there are requests")
    idle_report_ms: int = setting(1000, "pause between reports while there are none")
    drain_s: float = setting(5.0, "time that running requests have after SIGTERM")
    patience_s: float = setting(30.0, "without progress for so long the engine takes no more requests")
    step_limit_s: float = setting(120.0, "a step that takes longer ends the process with an error; 0: never")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require(self.engine in ENGINES, f"engine: {self.engine!r} is not one of {', '.join(ENGINES)}")
        require_addresses(self, "address", "scheduler", or_empty=("advertise", "metrics_address", "kvstore"))
        require_least(self, 0, "threads", "max_context", "lanes", "kv_pages", "lease_grace_ms", "step_limit_s")
        require_least(self, 1, "step_tokens", "slots", "prompt_words", "token_words")
        require_above(self, 0, "lease_ttl_ms", "report_ms", "idle_report_ms", "drain_s", "patience_s")
        require(all(word.isdigit() for word in self.synthetic_words) and bool(self.synthetic_words),
                f"synthetic-words: {self.synthetic_words} are not token ids")  # fmt: skip
        require(self.batch <= self.slots, f"lanes: {self.batch} is more than the {self.slots} slots")
        require(self.step_tokens >= self.batch, f"step-tokens: {self.step_tokens} is less than lanes, {self.batch}")

    @property
    def batch(self) -> int:
        """Lanes, with the default filled in."""
        return self.lanes or min(DEFAULT_LANES[self.engine], self.slots)

    @property
    def model_folder(self) -> Path:
        return paths.models_dir() / self.model

    def advertised(self, port: int) -> str:
        """Where others reach the service that listens on `port`."""
        return self.advertise or f"{self.address.rpartition(':')[0]}:{port}"

    def name(self, port: int) -> str:
        """The engine's id; stable over restarts on the same port."""
        return self.engine_id or f"{socket.gethostname()}-{port}"
