"""What the policies can be tuned by. Each reads what concerns it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Parameters:
    alpha_tokens: int = 65_536
    """D10: a node with at most so many tokens to read has a short read queue."""
    beta_tokens: int = 262_144
    """D10: a prefill engine with more tokens is overloaded."""
    split_reads: bool = False
    """D15: both sides read a part of each hit."""
    local_reuse: bool = False
    """What an engine holds of a request's hit counts as so many tokens less on it: of what it has to do (D10, D11) and
    to read (D10, D12)."""
    max_waiting: int = 65_536
    """Requests in the queue; further ones are refused."""

    def __post_init__(self) -> None:
        for name in ("alpha_tokens", "beta_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        if self.max_waiting < 1:
            raise ValueError(f"max_waiting: {self.max_waiting} is below 1")


DEFAULTS = Parameters()
