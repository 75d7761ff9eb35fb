"""Rotary position embedding, in float32 whatever the model's dtype."""

import math

import torch

from services.gpu_backend.models.config import Llama3Scaling


def inverse_frequencies(head_dim: int, theta: float, scaling: Llama3Scaling | None) -> torch.Tensor:
    """float32[head_dim / 2]: radians a position that pair (j, j + head_dim/2) turns by."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (theta**exponents)
    return frequencies if scaling is None else _stretch(frequencies, scaling)


def _stretch(frequencies: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Divides low frequencies by `factor`, keeps high ones, and blends those between."""
    wavelengths = 2 * math.pi / frequencies
    longest = scaling.original_context / scaling.low_freq_factor
    shortest = scaling.original_context / scaling.high_freq_factor
    blend = (scaling.original_context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(wavelengths > longest, frequencies / scaling.factor, frequencies)
    return torch.where((wavelengths <= longest) & (wavelengths >= shortest), between, stretched)


def rotations(positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, float32[N, 1, head_dim / 2], for `rotate_`."""
    angles = positions.to(torch.float32)[:, None, None] * frequencies
    return angles.cos(), angles.sin()


def rotate_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Turns [N, heads, head_dim] in place: pairs are (j, j + head_dim/2), as in HuggingFace."""
    first, second = heads.chunk(2, dim=-1)
    turned = first * cos - second * sin
    second.copy_(second * cos + first * sin)
    first.copy_(turned)
