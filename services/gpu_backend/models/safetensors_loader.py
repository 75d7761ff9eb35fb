"""Weights and config from a HuggingFace folder: config.json and *.safetensors, sharded or not."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from services.gpu_backend.models.config import Llama3Scaling, ModelConfig, ModelError
from services.gpu_backend.models.weights import check_shape

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_INDEX = "model.safetensors.index.json"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: holds a {type(value).__name__}; an object is needed")
    return value


def _get(file: Path, data: dict[str, Any], key: str, default: Any = None) -> Any:
    value = data.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelError(f"{file}: {key!r} is {value!r}; a number is needed")
    return value


def _rope(file: Path, data: dict[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """transformers 5 keeps all of RoPE in rope_parameters; before, theta stood beside rope_scaling."""
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    theta = float(_get(file, {**data, **rope}, "rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ModelError(f"{file}: RoPE scaling {kind!r} is not supported (default, llama3)")
    return theta, Llama3Scaling(
        factor=_get(file, rope, "factor"),
        low_freq_factor=_get(file, rope, "low_freq_factor"),
        high_freq_factor=_get(file, rope, "high_freq_factor"),
        original_context=_get(file, rope, "original_max_position_embeddings"),
    )


def huggingface_config(file: Path) -> ModelConfig:
    """Reads config.json. Raises ModelError naming the key that is missing or asks for what we lack."""
    data = _read_json(file)
    for key, supported in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if data.get(key, supported) != supported:
            raise ModelError(f"{file}: {key} {data[key]!r} is not supported (only {supported!r})")
    if data.get("quantization_config"):
        method = data["quantization_config"].get("quant_method")
        raise ModelError(f"{file}: weights quantized by {method!r} are not supported; use plain ones or GGUF")
    theta, scaling = _rope(file, data)
    hidden, heads = _get(file, data, "hidden_size"), _get(file, data, "num_attention_heads")
    try:
        return ModelConfig(
            architecture=str(data.get("model_type")),
            layers=_get(file, data, "num_hidden_layers"),
            hidden=hidden,
            intermediate=_get(file, data, "intermediate_size"),
            heads=heads,
            kv_heads=_get(file, data, "num_key_value_heads", heads),
            head_dim=_get(file, data, "head_dim", hidden // max(heads, 1)),
            vocab=_get(file, data, "vocab_size"),
            max_context=_get(file, data, "max_position_embeddings"),
            rms_epsilon=_get(file, data, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
        )
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from error


def weight_files(folder: Path) -> dict[str, Path]:
    """Tensor name -> file. Raises ModelError for a shard that the index names and the folder lacks."""
    index = folder / _INDEX
    if index.exists():
        named = _read_json(index).get("weight_map", {})
        for shard in sorted(set(named.values())):
            if not (folder / shard).exists():
                raise ModelError(f"{folder / shard}: missing; {_INDEX} names it: fetch the model again")
        return {name: folder / shard for name, shard in named.items()}
    found: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as weights:
                found.update(dict.fromkeys(weights.keys(), file))
        except SafetensorError as error:
            raise ModelError(f"{file}: not a whole safetensors file: {error}") from error
    return found


class SafetensorsSource:
    """A WeightSource over a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = huggingface_config(folder / "config.json")
        self._files = weight_files(folder)

    @property
    def files(self) -> set[Path]:
        return set(self._files.values())

    def has(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._files:
            raise ModelError(f"{self.folder}: tensor {name!r} is in none of its safetensors files")
        file = self._files[name]
        try:
            with safe_open(file, framework="pt") as weights:
                check_shape(file, name, tuple(weights.get_slice(name).get_shape()), shape)
                tensor: torch.Tensor = weights.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"{file}: tensor {name!r} can't be read: {error}") from error
        if tensor.dtype not in _DTYPES:
            raise ModelError(f"{file}: tensor {name!r} is {tensor.dtype}; float32, bfloat16 or float16 needed")
        return tensor
