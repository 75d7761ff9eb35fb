"""What a decoder model is, read from its files' metadata and checked once."""

from dataclasses import dataclass


class ModelError(ValueError):
    """A model folder can't be served; the message names the file and what in it is wrong."""


@dataclass(frozen=True)
class Llama3Scaling:
    """RoPE scaling of Llama 3.1 and later: long wavelengths are stretched by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a decoder-only transformer. Made only if they fit together."""

    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    rms_epsilon: float
    rope_theta: float
    rope_scaling: Llama3Scaling | None = None

    def __post_init__(self) -> None:
        for name in (
            "layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "vocab", "max_context",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ModelError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} heads can't share {self.kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; RoPE needs an even one")
        if not self.rms_epsilon > 0 or not self.rope_theta > 0:
            raise ModelError(f"rms_epsilon {self.rms_epsilon} and rope_theta {self.rope_theta} must be > 0")
        if (rope := self.rope_scaling) and not (rope.factor > 0 and 0 < rope.low_freq_factor < rope.high_freq_factor):
            raise ModelError(f"{rope}: the factor must be > 0, and the low one below the high one")
