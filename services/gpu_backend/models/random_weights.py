"""Weights that are drawn, to measure a model's shape without its files."""

import hashlib
from pathlib import Path

import torch

from services.gpu_backend.models.config import ModelConfig, ModelError
from services.gpu_backend.models.gguf_loader import GgufNames, open_gguf
from services.gpu_backend.models.huggingface_config import huggingface_config

SEED = 7


class RandomWeights:
    """A WeightSource whose values are drawn on `device`, the same each time; scaled so that activations neither
    grow nor vanish with depth. The head is no copy of the embedding."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self._dtype, self._device = dtype, device
        self._generator = torch.Generator(device=device).manual_seed(SEED)

    def has(self, name: str) -> bool:
        return name == "lm_head.weight"

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        drawn = torch.randn(shape, generator=self._generator, device=self._device, dtype=self._dtype)
        if len(shape) == 1:
            return drawn.mul_(0.1).add_(1)
        return drawn if name == "model.embed_tokens.weight" else drawn.mul_(0.7 * shape[1] ** -0.5)

    @property
    def identity(self) -> str:
        """Other draws, and other files, have others."""
        return hashlib.sha256(f"random {SEED} {self._device.type} {self.config}".encode()).hexdigest()[:32]


def shape_of(folder: Path, names: dict[str, GgufNames]) -> ModelConfig:
    """From config.json, or else the header of the folder's GGUF file. Raises ModelError."""
    if (folder / "config.json").exists():
        return huggingface_config(folder / "config.json")[0]
    if ggufs := sorted(folder.glob("*.gguf")):
        return open_gguf(ggufs[0], names).config
    raise ModelError(f"{folder}: holds neither a config.json nor a *.gguf to take the model's shape from")
