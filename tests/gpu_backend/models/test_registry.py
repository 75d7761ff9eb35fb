"""Folders: what is found, what is refused, and when two models have one identity."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PretrainedConfig

from services.gpu_backend.models.config import ModelError
from services.gpu_backend.models.registry import load
from services.gpu_backend.models.variants import VARIANTS

READ = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
    "rope_parameters", "attention_bias", "mlp_bias", "use_sliding_window", "sliding_window", "max_window_layers",
    "layer_types",
}  # fmt: skip
WITHOUT_EFFECT = {
    "attention_dropout", "embd_pdrop", "initializer_range", "pretraining_tp", "resid_pdrop", "use_cache",
    "original_max_position_embeddings",  # of a scaling that is refused
    "pad_token_id", "bos_token_id", "eos_token_id",  # of prompts and ends, which the front end minds
}  # fmt: skip

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def edit_config(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    file = folder / "model.safetensors"
    weights = {**load_file(file), **{name.replace("__", "."): value for name, value in changes.items()}}
    save_file({name: value for name, value in weights.items() if value is not None}, file)


def test_shards_equal_one_file(tiny: Any, saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    tiny.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    whole: Any = load(saved).model
    sharded: Any = load(folder).model
    assert all(torch.equal(a.qkv, b.qkv) for a, b in zip(whole.layers, sharded.layers, strict=True))
    next(iter(sorted(folder.glob("*.safetensors")))).unlink()
    with pytest.raises(ModelError, match=r"model-00001-of-\d+\.safetensors: missing"):
        load(folder)


def test_a_config_of_transformers_4_is_read(saved: Path) -> None:
    edit_config(saved, rope_parameters=None, rope_theta=123.0, rope_scaling=None)
    assert load(saved).model.config.rope_theta == 123.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, r"architecture 'gemma3' is not supported \(llama, phi3, qwen2, qwen3\)"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "RoPE scaling 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "'factor' is None"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "RoPE of its own for full_attention"),
        ({"rope_parameters": {"rope_theta": 1.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"model_type": "qwen3", "head_dim": None}, "head_dim missing"),
        ({"model_type": "qwen2", "layer_types": ["chunked_attention"]}, r"layer_types \['chunked_attention'\]"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"]}, "sliding_window is None"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized by 'awq'"),
        ({"num_hidden_layers": None}, "'num_hidden_layers' is None"),
        ({"num_key_value_heads": 3}, "4 heads can't share 3 KV heads"),
        ({"hidden_size": "64"}, "'hidden_size' is '64'"),
        ({"num_hidden_layers": 2.5}, "'num_hidden_layers' is 2.5; a whole number"),
        ({"max_position_embeddings": 1e300}, "'max_position_embeddings' is 1e\\+300; a whole number"),
        ({"rms_norm_eps": float("inf")}, "'rms_norm_eps' is inf"),
        ({"rope_parameters": [1]}, r"'rope_parameters' is \[1\]; an object"),
        ({"rope_parameters": None, "rope_scaling": "yarn"}, "'rope_scaling' is 'yarn'; an object"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "the low one below the high one"),
        ({"quantization_config": "awq"}, "'quantization_config' is 'awq'; an object"),
        ({"tie_word_embeddings": "false"}, "'tie_word_embeddings' is 'false'; true or false"),
        ({"model_type": "qwen2", "layer_types": 3}, "layer_types 3 are not supported"),
        ({"model_type": "qwen2", "layer_types": [["full_attention"]]}, "layer_types .* are not supported"),
        ({"model_type": "qwen2", "sliding_window": "8"}, "'sliding_window' is '8'"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": "1"}, "'max_window_layers' is '1'"),
    ],
)
def test_a_config_that_asks_for_more_is_refused(changes: dict[str, Any], message: str, saved: Path) -> None:
    edit_config(saved, **changes)
    with pytest.raises(ModelError, match=rf"config\.json: .*{message}"):
        load(saved)


@pytest.mark.parametrize(
    ("architecture", "changes", "context"),
    [
        ("llama", {"sliding_window": 64}, 512),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, 512),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 2}, 512),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 1}, 64),
        ("qwen3", {"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0}, 64),
        ("qwen3", {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0}, 512),
        ("phi3", {"sliding_window": 100}, 100),
        ("phi3", {"sliding_window": None}, 512),
    ],
)
def test_the_context_ends_where_a_window_would_matter(
    architecture: str, changes: dict[str, Any], context: int, make_model: Callable[..., Any], tmp_path: Path
) -> None:
    model = make_model(architecture)
    model.save_pretrained(tmp_path)
    edit_config(tmp_path, layer_types=None, **changes)
    if architecture != "llama":
        kinds = getattr(AutoConfig.from_pretrained(tmp_path), "layer_types", ["sliding_attention"])
        assert (context < 512) <= ("sliding_attention" in kinds)
    assert load(tmp_path).model.config.max_context == context


def test_every_field_of_transformers_configs_is_known(make_model: Callable[..., Any]) -> None:
    """A new one may change what is computed: then it must be read, or refused; or else named here."""
    base = PretrainedConfig().to_dict().keys() - {"tie_word_embeddings"}
    for architecture in VARIANTS:
        own = make_model(architecture).config.to_dict().keys() - base
        assert own <= READ | WITHOUT_EFFECT, architecture


def test_a_head_that_should_be_there_is_missed(make_model: Callable[..., Any], tmp_path: Path) -> None:
    make_model(tie_word_embeddings=True).save_pretrained(tmp_path)
    load(tmp_path)
    edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"'lm_head\.weight' is in none"):
        load(tmp_path)


def test_a_tensor_that_nothing_reads_is_named(saved: Path) -> None:
    edit_weights(saved, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    load(saved)
    edit_weights(saved, model__layers__1__self_attn__q_proj__bias=torch.ones(64))
    with pytest.raises(ModelError, match=r"'llama' don't have, .*: model\.layers\.1\.self_attn\.q_proj\.bias"):
        load(saved)


def test_the_same_weights_in_another_layout_lie_beside(saved: Path) -> None:
    save_file({"layers.0.attention.wq.weight": torch.ones(64, 64)}, saved / "consolidated.safetensors")
    load(saved)


def test_damaged_weights_are_named(saved: Path) -> None:
    edit_weights(saved, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(ModelError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' is in none"):
        load(saved)
    edit_weights(saved, model__layers__1__mlp__up_proj__weight=torch.zeros(96, 63))
    with pytest.raises(ModelError, match=r"model\.safetensors: tensor .* shape \[96, 63\]; the model needs \[96, 64\]"):
        load(saved)
    edit_weights(saved, model__layers__1__mlp__up_proj__weight=torch.zeros(96, 64, dtype=torch.int8))
    with pytest.raises(ModelError, match=r"is torch\.int8"):
        load(saved)
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: not a whole safetensors file"):
        load(saved)


@pytest.mark.parametrize("named", ["x", None, {"model.norm.weight": 5}, {"model.norm.weight": ["a"]}])
def test_an_index_that_is_none_is_named(named: Any, saved: Path) -> None:
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    with pytest.raises(ModelError, match=r"index\.json: 'weight_map' must be an object"):
        load(saved)


def test_what_is_no_file_is_named(saved: Path) -> None:
    index, weights = saved / "model.safetensors.index.json", saved / "model.safetensors"
    for shard in ("", ".", "gone.safetensors"):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": shard}}))
        with pytest.raises(ModelError, match=r"missing; model\.safetensors\.index\.json names it"):
            load(saved)
    index.unlink()
    weights.unlink()
    weights.symlink_to(saved / "gone")
    with pytest.raises(ModelError, match=r"model\.safetensors: not a whole safetensors file"):
        load(saved)
    (saved / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"config\.json: can't be read as JSON"):
        load(saved)


def test_folders_without_one_model_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        load(tmp_path / "nothing")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match=r"neither a \*\.gguf nor a config\.json"):
        load(empty)
    for name in "ab":
        (empty / f"{name}.gguf").touch()
    with pytest.raises(ModelError, match=r"several GGUF files \(a\.gguf, b\.gguf\)"):
        load(empty)
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"a config\.json but no \*\.safetensors"):
        load(saved)
    with pytest.raises(ModelError, match="dtype 'int4'"):
        load(saved, "int4")


def test_identity_is_of_content(saved: Path, make_model: Callable[..., Any], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy, ignore=shutil.ignore_patterns("copy"))
    first = load(saved).identity
    assert load(copy).identity == first
    edit_config(copy, rms_norm_eps=1e-4)
    assert load(copy).identity != first
    tuned = load_file(saved / "model.safetensors")
    tuned["model.norm.weight"][0] += 0.001
    save_file(tuned, saved / "model.safetensors")
    assert load(saved).identity != first


def test_loading_reports_progress(saved: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    load(saved, progress=lambda *event: seen.append(event))
    assert {what for what, _, _ in seen} >= {"hashing", "model.layers.1.mlp.down_proj.weight", "loaded"}
    assert all(0 < done <= total for _, done, total in seen)
    loading = [done for what, done, _ in seen if what != "hashing"]
    assert loading == sorted(loading)


def test_weights_may_be_drawn_for_a_shape(saved: Path) -> None:
    """A folder with a config.json and nothing else serves, the same each time."""
    from_files = load(saved)
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no \*.safetensors"):
        load(saved)
    once, again = (load(saved, "bfloat16", weights="random") for _ in range(2))
    assert once.model.config == from_files.model.config
    tokens, positions = torch.tensor([3, 1, 4]), torch.arange(3)

    def attention(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return query

    first, second = (each.model.logits(each.model.forward(tokens, positions, attention)) for each in (once, again))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    assert len(set(first.argmax(-1).tolist())) > 1
    assert once.identity == again.identity != from_files.identity
    edit_config(saved, rms_norm_eps=1e-4)
    assert load(saved, weights="random").identity != once.identity
    (saved / "config.json").unlink()
    with pytest.raises(ModelError, match="take the model's shape from"):
        load(saved, weights="random")
