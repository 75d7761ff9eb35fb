"""Settings of the global scheduler."""

from dataclasses import dataclass

from services.common.settings import require, require_addresses, require_least, setting
from services.global_scheduler.policy.parameters import Parameters
from services.global_scheduler.policy.registry import POLICIES


@dataclass(frozen=True)
class SchedulerSettings:
    address: str = setting("127.0.0.1:7010", "host:port of the gRPC service; port 0 picks a free one")
    metrics_address: str = setting("127.0.0.1:7011", "host:port of Prometheus metrics; empty: none")
    lane_port: int = setting(0, "port of the lane, on which placing is fast; 0: a free one, -1: no lane")
    policy: str = setting("least_tokens", "how engines are chosen")
    alpha_tokens: int = setting(65_536, "a node with at most so many tokens to read has a short read queue (D10)")
    beta_tokens: int = setting(262_144, "a prefill engine with more tokens than that gets no more (D10)")
    split_reads: bool = setting(False, "hits are read on both sides at once (D15; by policies named dualpath...)")
    local_reuse: bool = setting(
        True, "what an engine holds of a hit in memory (gpu_backend's held-bytes) counts as so many tokens less on it, "
        "to do and to read"
    )  # fmt: skip
    wait_ms: int = setting(500, "a request waits so long at most while all engines that may take it are overloaded")
    max_waiting: int = setting(65_536, "requests that may wait at once; further ones are refused")
    lease_ms: int = setting(3000, "an engine that has not reported for so long gets no more requests")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require(self.policy in POLICIES, f"policy: {self.policy!r} is not known; known: {', '.join(sorted(POLICIES))}")
        require_least(self, 0, "alpha_tokens", "beta_tokens", "wait_ms")
        require_least(self, 1, "max_waiting")
        require(100 <= self.lease_ms <= 600_000, f"lease-ms: {self.lease_ms} is not between 100 and 600000")
        require(-1 <= self.lane_port <= 65535, f"lane-port: {self.lane_port} is no port, nor 0 or -1")
        require_addresses(self, "address", or_empty=("metrics_address",))

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000

    @property
    def wait_s(self) -> float:
        return self.wait_ms / 1000

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            alpha_tokens=self.alpha_tokens,
            beta_tokens=self.beta_tokens,
            split_reads=self.split_reads,
            local_reuse=self.local_reuse,
            max_waiting=self.max_waiting,
        )
