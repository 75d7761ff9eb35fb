"""A model's sizes and constants from HuggingFace's config.json; what is not supported is refused by name."""

import json
import math
from pathlib import Path
from typing import Any

from services.gpu_backend.models.config import Llama3Scaling, ModelConfig, ModelError
from services.gpu_backend.models.variants import VARIANTS

_ONLY: dict[str, Any] = {
    "attention_bias": False, "mlp_bias": False, "hidden_act": "silu", "partial_rotary_factor": 1.0,
}  # fmt: skip
"""Keys that change what is computed, with the one value that is supported."""
_NEEDED = {
    "llama": frozenset[str](),
    "qwen2": frozenset({"num_key_value_heads"}),
    "qwen3": frozenset({"num_key_value_heads", "head_dim"}),
    "phi3": frozenset({"rms_norm_eps"}),
}
"""Keys whose absence means something else than it does in Llama's."""


def read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file}: can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: holds a {type(value).__name__}; an object is needed")
    return value


def _get(file: Path, data: dict[str, Any], key: str, default: Any = None) -> Any:
    value = data.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ModelError(f"{file}: {key!r} is {value!r}; a number is needed")
    return value


def _size(file: Path, data: dict[str, Any], key: str, default: int | None = None) -> int:
    value = _get(file, data, key, default)
    if not isinstance(value, int) or value >= 1 << 31:
        raise ModelError(f"{file}: {key!r} is {value!r}; a whole number below 2^31 is needed")
    return value


def _flag(file: Path, data: dict[str, Any], key: str) -> bool:
    value = data.get(key)
    if value is not None and not isinstance(value, bool):
        raise ModelError(f"{file}: {key!r} is {value!r}; true or false is needed")
    return bool(value)


def _object(file: Path, data: dict[str, Any], key: str) -> dict[str, Any]:
    """Empty where there is none."""
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise ModelError(f"{file}: {key!r} is {value!r}; an object is needed")
    return value or {}


def _rope(file: Path, data: dict[str, Any]) -> tuple[float, Llama3Scaling | None]:
    """transformers 5 keeps all of RoPE in rope_parameters; before, theta stood beside rope_scaling."""
    rope = _object(file, data, "rope_scaling") or _object(file, data, "rope_parameters")
    if apart := [key for key, value in rope.items() if isinstance(value, dict)]:
        raise ModelError(f"{file}: RoPE of its own for {', '.join(apart)} is not supported (one for all layers)")
    theta = float(_get(file, {**data, **rope}, "rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ModelError(f"{file}: RoPE scaling {kind!r} is not supported (default, llama3)")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{file}: partial_rotary_factor {rope['partial_rotary_factor']!r} is not supported (only 1.0)")
    if kind == "default":
        return theta, None
    return theta, Llama3Scaling(
        factor=_get(file, rope, "factor"),
        low_freq_factor=_get(file, rope, "low_freq_factor"),
        high_freq_factor=_get(file, rope, "high_freq_factor"),
        original_context=_size(file, rope, "original_max_position_embeddings"),
    )


def _window(file: Path, data: dict[str, Any], architecture: str) -> int | None:
    """Tokens that the layers which see fewest see; None: each sees all."""
    if architecture == "llama":
        return None  # it has none, whatever its config says
    window = None if data.get("sliding_window") is None else _size(file, data, "sliding_window")
    if architecture != "phi3":
        layers = _size(file, data, "num_hidden_layers")
        some = _flag(file, data, "use_sliding_window") and _size(file, data, "max_window_layers", 0) < layers
        kinds = data.get("layer_types") or (["sliding_attention"] if some else [])
        if not isinstance(kinds, list) or any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
            raise ModelError(f"{file}: layer_types {kinds!r} are not supported (full_attention, sliding_attention)")
        if "sliding_attention" not in kinds:
            return None
        if window is None:
            raise ModelError(f"{file}: layer_types name sliding_attention, but sliding_window is {window!r}")
    return window


def huggingface_config(file: Path) -> tuple[ModelConfig, bool]:
    """Reads config.json; true: the head is the embedding. Raises ModelError naming the key that is missing or asks
    for what we lack.

    Where layers see a window of tokens only, the context is no longer than that: so far they see all.
    """
    data = read_json(file)
    architecture = str(data.get("model_type"))
    if architecture not in VARIANTS:
        raise ModelError(f"{file}: architecture {architecture!r} is not supported ({', '.join(sorted(VARIANTS))})")
    for key, supported in _ONLY.items():
        if data.get(key, supported) != supported:
            raise ModelError(f"{file}: {key} {data[key]!r} is not supported (only {supported!r})")
    if quantization := _object(file, data, "quantization_config"):
        method = quantization.get("quant_method")
        raise ModelError(f"{file}: weights quantized by {method!r} are not supported; use plain ones or GGUF")
    if missing := sorted(_NEEDED[architecture] - data.keys()):
        raise ModelError(f"{file}: {', '.join(missing)} missing; models of {architecture} differ in it")
    theta, scaling = _rope(file, data)
    hidden, heads = _size(file, data, "hidden_size"), _size(file, data, "num_attention_heads")
    context = _size(file, data, "max_position_embeddings")
    window = _window(file, data, architecture)
    try:
        config = ModelConfig(
            architecture=architecture,
            layers=_size(file, data, "num_hidden_layers"),
            hidden=hidden,
            intermediate=_size(file, data, "intermediate_size"),
            heads=heads,
            kv_heads=_size(file, data, "num_key_value_heads", heads),
            head_dim=_size(file, data, "head_dim", hidden // max(heads, 1)),
            vocab=_size(file, data, "vocab_size"),
            max_context=context if window is None else min(context, window),
            rms_epsilon=_get(file, data, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rope_scaling=scaling,
        )
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from error
    return config, _flag(file, data, "tie_word_embeddings")
