"""What the agent has done since its start."""

from dataclasses import dataclass, field

from services.gpu_backend.kv_agent.links import KvLink


@dataclass(slots=True)
class AgentCounters:
    loads: int = 0
    """Load orders taken."""
    loads_short: int = 0
    """Loads answered with fewer blocks than asked."""
    blocks_loaded: int = 0
    bytes_loaded: int = 0
    blocks_reused: int = 0
    """That were held, and brought from there instead."""
    blocks_stored: int = 0
    bytes_stored: int = 0
    blocks_existing: int = 0
    """Offered blocks that the store had, or was being given by somebody else."""
    blocks_dropped: int = 0
    """Offered blocks that were not stored: later misses."""
    prompts_sent: int = 0
    """Prompts handed over to a decode engine."""
    prompts_received: int = 0
    """Prompts whose KV has come from a prefill engine."""
    links: dict[KvLink, int] = field(default_factory=lambda: dict.fromkeys(KvLink, 0))
    """Bytes moved over each link."""

    def count(self, link: KvLink, moved: int) -> None:
        self.links[link] += moved
