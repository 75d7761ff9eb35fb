"""Settings of an engine's process."""

import socket
from dataclasses import dataclass
from pathlib import Path

from services.common import paths
from services.common.settings import SettingError, require, require_above, require_addresses, require_least, setting
from services.fabric.hosting import FABRIC_ADDRESS_HELP, TRANSPORT_HELP, require_transport

ENGINES = ("torch", "cuda", "synthetic")
ROLES = ("unified", "prefill", "decode")
KV_COPIES = ("engine", "loopback")
BUFFER_MEMORY = ("host", "device")
SCHEDULER_KINDS = ("host", "host-overlap", "device")
WEIGHTS = ("files", "random")
DEFAULT_LANES = {"torch": 16, "cuda": 64, "synthetic": 256}
DEFAULT_STEP_TOKENS = {"torch": 512, "cuda": 2304, "synthetic": 512}
DEFAULT_MIXED_TOKENS = {"torch": 0, "cuda": 2304, "synthetic": 0}
DEFAULT_DTYPES = {"torch": "float32", "cuda": "bfloat16", "synthetic": "float32"}
LEAST_PATIENCE_S = 5.0
"""The host looks after its scheduler about once a second."""


@dataclass(frozen=True)
class BackendSettings:
    address: str = setting("127.0.0.1:7040", "host:port of the gRPC service; port 0 picks a free one")
    advertise: str = setting("", "host:port by which others reach this service; empty: address")
    metrics_address: str = setting("127.0.0.1:7041", "host:port of Prometheus metrics; empty: none")
    scheduler: str = setting("127.0.0.1:7010", "host:port of the global scheduler")
    kvstore: str = setting("", "host:port of the KV store; empty: nothing is loaded or stored")
    engine_id: str = setting("", "name of this engine in the mesh, unique; empty: host name and port")
    role: str = setting(
        "unified",
        "unified serves whole requests; prefill computes prompts, whose KV goes to decode engines; decode goes on",
    )
    group_id: str = setting("", "engines that are placed as one group (D9); empty: the engine alone, by its id")
    node_id: str = setting("", "the machine: its engines share storage links, hence a read queue; empty: host name")
    receive_buffer_bytes: int = setting(
        256 << 20, "memory for prompts that are prefilled elsewhere, until they are in KV pages (role decode)"
    )
    receive_buffer_memory: str = setting(
        "host", "where that memory is: host; device, the GPU's own, which prefill engines of the same machine reach "
        "from GPU to GPU, and others through host memory (cuda, role decode at the start)"
    )  # fmt: skip
    fill_bytes_s: int = setting(
        0, "most a second from there into KV pages, so that running decodes notice less; 0: as fast as it goes "
        "(receive-buffer-memory device)"
    )  # fmt: skip
    load_buffer_bytes: int = setting(
        64 << 20, "memory that the KV store writes hits to; one that fits half of it goes into KV pages by layers (D6)"
    )
    held_bytes: int = setting(
        0, "memory for KV blocks that were just loaded or stored: whoever asks for them again has them without the KV "
        "store's disks; 0: none is held"
    )  # fmt: skip
    load_deadline_s: float = setting(
        3.0, "time the KV store has to load a request's hit, waiting included; what is not there then is computed"
    )

    engine: str = setting("torch", "torch computes a model on the CPU, cuda on a GPU; synthetic emits known tokens")
    scheduler_kind: str = setting(
        "",
        "where steps are decided: device, on the GPU itself; host, a thread of this process; host-overlap, as host, "
        "each step launched before the last one is read; empty: device for cuda, else host",
    )
    model: str = setting("SmolLM2-135M-Instruct", "model id, a folder under HOSTLESS_MODELS")
    weights: str = setting(
        "files", "files: those of the model's folder; random: drawn, its config.json gives the shape"
    )
    dtype: str = setting("", "float32 or bfloat16; weights and KV; empty: bfloat16 for cuda, else float32")
    threads: int = setting(0, "CPU threads of a step; 0: torch's choice")
    max_context: int = setting(0, "most tokens of a request, prompt and completion; 0: the model's")
    lanes: int = setting(0, "most requests in a batch; 0: 16 for torch, 64 for cuda, 256 for synthetic")
    step_tokens: int = setting(
        0, "most tokens in a step; longer prompts are prefilled in chunks; 0: 512, 2304 for cuda"
    )
    prefill_chunk: int = setting(0, "most prompt tokens of a step, so that decodes wait less; 0: as step-tokens")
    mixed_tokens: int = setting(
        -1, "most tokens of a step in which prompts and running decodes share, at least lanes; 0: they take turns "
        "(B6); -1: 2304 for cuda where step-tokens and lanes allow, else 0"
    )  # fmt: skip
    attention_quota_ms: float = setting(
        0.0, "what the attention of a step's prompts may take, by attention-time; the prompt that overflows it is cut "
        "where it fits (D13); 0: no bound"
    )  # fmt: skip
    attention_time: tuple[str, ...] = setting(
        (), "seconds of attention for a request, for a new token, and for a pair of tokens: three numbers, from a fit"
    )
    kv_pages: int = setting(
        0, "KV memory in pages of 64 tokens; 0: by free memory and need, and 1 GiB or less on a CPU"
    )
    layerwise: bool = setting(
        True, "prompts for another engine are loaded, computed and handed over layer by layer (D6), with cuda by "
        "engines that start with role prefill; else by blocks"
    )  # fmt: skip
    kv_layers_resident: int = setting(
        0, "layers that a KV page holds at a time, so that prompts need that much less KV memory; 0: all "
        "(role prefill; torch and synthetic)"
    )  # fmt: skip

    gpu: int = setting(0, "which GPU (cuda)")
    gpu_memory: float = setting(
        0.9, "most of the GPU's free memory, once weights are loaded, that KV pages take (cuda)"
    )
    host_patience_s: float = setting(
        0.0, "the scheduler on the GPU ends when this process has stood still for so long; 0: never (device)"
    )
    device_deadline_s: float = setting(
        0.0, "the scheduler on the GPU ends so long after its start, for tests; 0: never (device)"
    )

    synthetic_model: str = setting(
        "", "JSON file of a model's KV size and step times (engines/synthetic_model.py); empty: tiny KV, the two rates"
    )
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

    transport: str = setting("shm", TRANSPORT_HELP)
    fabric_address: str = setting("127.0.0.1:0", FABRIC_ADDRESS_HELP)
    kv_copies: str = setting(
        "engine", "how blocks get in and out of KV pages: engine, by copies; loopback, through this process's own "
        "connection of the transport first (D7)"
    )  # fmt: skip

    report_ms: int = setting(250, "pause between reports while there are requests")
    idle_report_ms: int = setting(1000, "pause between reports while there are none")
    drain_s: float = setting(5.0, "time that running requests have after SIGTERM")
    patience_s: float = setting(30.0, "without progress for so long the engine takes no more requests")
    step_limit_s: float = setting(120.0, "a step that takes longer ends the process with an error; 0: never")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require(self.engine in ENGINES, f"engine: {self.engine!r} is not one of {', '.join(ENGINES)}")
        require_addresses(self, "address", "scheduler", or_empty=("advertise", "metrics_address", "kvstore"))
        require_least(self, 0, "threads", "max_context", "lanes", "step_tokens", "prefill_chunk", "kv_pages", "gpu")
        require_least(self, 0, "lease_grace_ms", "step_limit_s", "device_deadline_s", "host_patience_s")
        require_least(self, 0, "attention_quota_ms")
        require_least(self, 8, "slots")  # one for each front end
        require_least(self, 1, "prompt_words", "token_words")
        require_above(self, 0, "lease_ttl_ms", "report_ms", "idle_report_ms", "drain_s", "patience_s")
        require_above(self, 0, "load_deadline_s")
        require(all(word.isdigit() for word in self.synthetic_words) and bool(self.synthetic_words),
                f"synthetic-words: {self.synthetic_words} are not token ids")  # fmt: skip
        require(self.batch <= self.slots, f"lanes: {self.batch} is more than the {self.slots} slots")
        require(self.most_step_tokens >= self.batch,
                f"step-tokens: {self.most_step_tokens} is less than lanes, {self.batch}")  # fmt: skip
        self._check_steps()
        require_transport(self.transport, self.fabric_address)
        require(self.kv_copies in KV_COPIES, f"kv-copies: {self.kv_copies!r} is not one of {', '.join(KV_COPIES)}")
        require(self.kv_copies == "engine" or self.transport != "shm",
                "kv-copies: loopback takes transport tcp or verbs; shm has no connection")  # fmt: skip
        require(self.role in ROLES, f"role: {self.role!r} is not one of {', '.join(ROLES)}")
        require(self.role == "unified" or bool(self.kvstore),
                f"role: {self.role} needs a KV store: name one with --kvstore")  # fmt: skip
        require_least(self, 1, "receive_buffer_bytes", "load_buffer_bytes")
        self._check_receive_buffer()
        require_least(self, 0, "held_bytes")
        require(not self.held_bytes or bool(self.kvstore),
                "held-bytes: needs a KV store, which says what a prompt's hit is: name one with --kvstore")  # fmt: skip
        self._check_window()
        self._check_gpu()

    def _check_receive_buffer(self) -> None:
        known, kind = ", ".join(BUFFER_MEMORY), self.receive_buffer_memory
        require(kind in BUFFER_MEMORY, f"receive-buffer-memory: {kind!r} is not one of {known}")
        require(kind == "host" or (self.engine == "cuda" and self.kv_copies == "engine"),
                "receive-buffer-memory: device takes engine cuda and kv-copies engine")  # fmt: skip
        require_least(self, 0, "fill_bytes_s")
        require(not self.fill_bytes_s or kind == "device",
                "fill-bytes-s: takes receive-buffer-memory device")  # fmt: skip

    def _check_steps(self) -> None:
        require(self.mixed_tokens in (-1, 0) or self.batch <= self.mixed_tokens <= self.most_step_tokens,
                f"mixed-tokens: {self.mixed_tokens} is neither -1, 0, nor between lanes, {self.batch}, and "
                f"step-tokens, {self.most_step_tokens}")  # fmt: skip
        times = self.attention_seconds
        require(all(seconds >= 0 for seconds in times), f"attention-time: {self.attention_time} is no time")
        require(not self.attention_quota_ms or any(times),
                "attention-quota-ms: nothing is known of attention's time: set attention-time")  # fmt: skip

    def _check_window(self) -> None:
        require_least(self, 0, "kv_layers_resident")
        fits = self.role == "prefill" and self.engine != "cuda" and self.kv_copies == "engine" and self.layerwise
        require(not self.kv_layers_resident or fits,
                "kv-layers-resident: takes role prefill, layerwise, engine torch or synthetic, "
                "and kv-copies engine")  # fmt: skip

    def _check_gpu(self) -> None:
        kinds = ", ".join(SCHEDULER_KINDS)
        require(self.scheduling in SCHEDULER_KINDS, f"scheduler-kind: {self.scheduler_kind!r} is not one of {kinds}")
        require(self.scheduling == "host" or self.engine == "cuda",
                f"scheduler-kind: {self.scheduling} is for engine cuda, not {self.engine}")  # fmt: skip
        require(self.weights in WEIGHTS, f"weights: {self.weights!r} is not one of {', '.join(WEIGHTS)}")
        require(0 < self.gpu_memory < 1, f"gpu-memory: {self.gpu_memory:g} is not between 0 and 1")
        require(not 0 < self.host_patience_s < LEAST_PATIENCE_S,
                f"host-patience-s: {self.host_patience_s:g} is below {LEAST_PATIENCE_S:g}")  # fmt: skip
        require(not self.kvstore or self.scheduling != "host-overlap",
                "kvstore: none with scheduler-kind host-overlap: leave it empty, or up --no-kvstore")  # fmt: skip

    @property
    def receives_on_device(self) -> bool:
        """Buffers of prompts that are prefilled elsewhere lie in the GPU's memory."""
        return self.receive_buffer_memory == "device" and self.role == "decode"

    @property
    def batch(self) -> int:
        """Lanes, with the default filled in."""
        return self.lanes or min(DEFAULT_LANES[self.engine], self.slots)

    @property
    def most_step_tokens(self) -> int:
        """Tokens of the largest step, with the default filled in."""
        return self.step_tokens or max(DEFAULT_STEP_TOKENS[self.engine], self.batch)

    @property
    def most_mixed_tokens(self) -> int:
        """`mixed_tokens`, with the default filled in."""
        if self.mixed_tokens >= 0:
            return self.mixed_tokens
        usual = min(DEFAULT_MIXED_TOKENS[self.engine], self.most_step_tokens)
        return usual if usual >= self.batch else 0

    @property
    def attention_seconds(self) -> tuple[float, float, float]:
        """`attention_time` as numbers; 0 where it is empty."""
        try:
            request, token, pair = (float(part) for part in self.attention_time or ("0", "0", "0"))
        except ValueError:
            raise SettingError(f"attention-time: {self.attention_time} are not three numbers") from None
        return request, token, pair

    @property
    def scheduling(self) -> str:
        """One of SCHEDULER_KINDS: `scheduler_kind`, with the default filled in."""
        return self.scheduler_kind or ("device" if self.engine == "cuda" else "host")

    @property
    def number_type(self) -> str:
        """Of weights and KV: `dtype`, with the default filled in."""
        return self.dtype or DEFAULT_DTYPES[self.engine]

    @property
    def model_folder(self) -> Path:
        return paths.models_dir() / self.model

    def advertised(self, port: int) -> str:
        """Where others reach the service that listens on `port`."""
        return self.advertise or f"{self.address.rpartition(':')[0]}:{port}"

    @property
    def node(self) -> str:
        """The machine, with the default filled in."""
        return self.node_id or socket.gethostname()

    def name(self, port: int) -> str:
        """The engine's id; stable over restarts on the same port."""
        return self.engine_id or f"{socket.gethostname()}-{port}"
