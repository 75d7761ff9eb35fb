"""Settings of the global scheduler."""

from dataclasses import dataclass

from services.common.settings import require, require_addresses, setting
from services.global_scheduler.policy.registry import POLICIES


@dataclass(frozen=True)
class SchedulerSettings:
    address: str = setting("127.0.0.1:7010", "host:port of the gRPC service; port 0 picks a free one")
    metrics_address: str = setting("127.0.0.1:7011", "host:port of Prometheus metrics; empty: none")
    policy: str = setting("least_tokens", "how engines are chosen")
    lease_ms: int = setting(3000, "an engine that has not reported for so long gets no more requests")
    log_level: str = setting("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        require(self.policy in POLICIES, f"policy: {self.policy!r} is not known; known: {', '.join(sorted(POLICIES))}")
        require(100 <= self.lease_ms <= 600_000, f"lease-ms: {self.lease_ms} is not between 100 and 600000")
        require_addresses(self, "address", or_empty=("metrics_address",))

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000
