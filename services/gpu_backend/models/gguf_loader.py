"""Weights and config from one GGUF file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.quants import dequantize

from services.gpu_backend.models.config import ModelConfig, ModelError
from services.gpu_backend.models.gguf_header import GgufHeader, read_header
from services.gpu_backend.models.weights import check_shape


@dataclass(frozen=True)
class GgufNames:
    """How one architecture's tensors are called in GGUF.

    `names` maps HuggingFace names to GGUF's, with {i} for the layer. Tensors in `interleaved` have their
    rows permuted within each head: GGUF's Llama rotates neighbouring rows (0,1),(2,3).. where
    HuggingFace's rotates row j with row j + head_dim/2.
    """

    names: Mapping[str, str]
    interleaved: frozenset[str] = frozenset()

    def table(self, layers: int) -> dict[str, tuple[str, bool]]:
        """HuggingFace name -> (GGUF name, interleaved), for every layer."""
        return {
            name.format(i=i): (gguf.format(i=i), name in self.interleaved)
            for name, gguf in self.names.items()
            for i in (range(layers) if "{i}" in name else range(1))
        }


def _number(file: Path, metadata: dict[str, Any], key: str, default: float | None = None) -> Any:
    value = metadata.get(key, default)
    if value is None:
        raise ModelError(f"{file}: metadata {key!r} is missing")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{file}: metadata {key!r} is {type(value).__name__}; one number is needed")
    return value


_READ = frozenset({
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "attention.sliding_window", "attention.value_length", "block_count", "context_length", "embedding_length",
    "feed_forward_length", "rope.dimension_count", "rope.freq_base", "vocab_size",
})  # fmt: skip
_HARMLESS_VALUES: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "rope.scale_linear": (1.0,),
    "rope.scaling.factor": (1.0,),
    "rope.scaling.type": ("none",),
}
"""Of keys that may change what is computed, the values by which they don't."""
_HARMLESS = frozenset({"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"})


def _check_keys(file: Path, arch: str, header: GgufHeader) -> None:
    """Every key of the architecture may change what the model computes, so none is passed over."""
    for key, value in header.metadata.items():
        name = key.removeprefix(f"{arch}.")
        if name == key or name in _READ or name in _HARMLESS or value in _HARMLESS_VALUES.get(name, ()):
            continue
        if name == "rope.scaling.type":
            raise ModelError(f"{file}: RoPE scaling {value!r} is not supported (none, or Llama 3's factors)")
        raise ModelError(f"{file}: metadata {key!r} is {value!r}: not supported, and it may change every answer")
    for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
        if name in header.tensors:
            raise ModelError(f"{file}: RoPE scaling 'longrope' (tensor {name!r}) is not supported")


def gguf_config(file: Path, header: GgufHeader) -> ModelConfig:
    """Raises ModelError naming the metadata key that is missing or not supported."""
    data = header.metadata
    arch = data.get("general.architecture")
    if not isinstance(arch, str):
        raise ModelError(f"{file}: metadata 'general.architecture' is missing")
    if data.get("split.count", 1) > 1:
        raise ModelError(f"{file}: one of {data['split.count']} parts; merge them into one GGUF file first")
    _check_keys(file, arch, header)
    hidden = _number(file, data, f"{arch}.embedding_length")
    heads = _number(file, data, f"{arch}.attention.head_count")
    head_dim = _number(file, data, f"{arch}.attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        other = _number(file, data, f"{arch}.{key}", head_dim)
        if other != head_dim:
            raise ModelError(f"{file}: {arch}.{key} is {other}, not head_dim {head_dim}: not supported")
    tokens = data.get("tokenizer.ggml.tokens", [])
    context = _number(file, data, f"{arch}.context_length")
    window = _number(file, data, f"{arch}.attention.sliding_window", 0)
    try:
        return ModelConfig(
            architecture=arch,
            layers=_number(file, data, f"{arch}.block_count"),
            hidden=hidden,
            intermediate=_number(file, data, f"{arch}.feed_forward_length"),
            heads=heads,
            kv_heads=_number(file, data, f"{arch}.attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab=_number(file, data, f"{arch}.vocab_size", len(tokens)),
            max_context=min(context, window) if window else context,
            rms_epsilon=_number(file, data, f"{arch}.attention.layer_norm_rms_epsilon"),
            rope_theta=_number(file, data, f"{arch}.rope.freq_base", 10000.0),
        )
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from error


class GgufSource:
    """A WeightSource over one GGUF file; tensors are dequantized to float32 as they are read."""

    def __init__(self, file: Path, names: GgufNames, header: GgufHeader) -> None:
        self.file = file
        self.config = gguf_config(file, header)
        self._header = header
        self._table = names.table(self.config.layers)
        self._bytes = np.memmap(file, dtype=np.uint8, mode="r")
        self._unread = set(header.tensors)

    def unread(self) -> set[str]:
        return self._unread

    def has(self, name: str) -> bool:
        return name in self._table and self._table[name][0] in self._header.tensors

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if not self.has(name):
            gguf_name = self._table[name][0] if name in self._table else "no name in GGUF"
            raise ModelError(f"{self.file}: tensor {name!r} ({gguf_name}) is missing")
        gguf_name, interleaved = self._table[name]
        tensor = self._header.tensors[gguf_name]
        self._unread.discard(gguf_name)
        check_shape(self.file, gguf_name, tensor.shape, shape)
        raw = self._bytes[tensor.begin : tensor.begin + tensor.size_bytes]
        try:
            values = np.array(dequantize(raw, tensor.type).reshape(shape), dtype=np.float32)
        except NotImplementedError as error:
            raise ModelError(
                f"{self.file}: tensor {gguf_name!r} is {tensor.type.name}, which can't be dequantized"
            ) from error
        weight = torch.from_numpy(values)
        return _undo_interleave(weight, self.config.head_dim) if interleaved else weight


def _undo_interleave(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Row 2j+s of each head becomes row j + s*head_dim/2."""
    heads = weight.shape[0] // head_dim
    pairs = weight.view(heads, head_dim // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape).contiguous()


def open_gguf(file: Path, names: Mapping[str, GgufNames]) -> GgufSource:
    """`names` by architecture. Raises ModelError if the file's architecture isn't among them."""
    header = read_header(file)
    arch = header.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in names:
        raise ModelError(f"{file}: architecture {arch!r} is not supported ({', '.join(sorted(names))})")
    return GgufSource(file, names[arch], header)
