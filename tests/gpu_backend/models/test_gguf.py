"""GGUF files: what they hold is what was written; damaged ones are refused by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from services.gpu_backend.models.config import ModelError
from services.gpu_backend.models.gguf_header import read_header
from services.gpu_backend.models.gguf_loader import open_gguf
from services.gpu_backend.models.huggingface_config import huggingface_config
from services.gpu_backend.models.registry import load
from services.gpu_backend.models.rope import inverse_frequencies
from services.gpu_backend.models.variants import VARIANTS

NAMES = {name: each.gguf for name, each in VARIANTS.items()}


@pytest.fixture
def file(tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path) -> Path:
    write(tmp_path / "tiny.gguf", tiny, to_gguf_tensors(tiny))
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize("architecture", VARIANTS)
def test_weights_come_back_in_huggingface_order(
    architecture: str, make_model: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    model = make_model(architecture)
    write(tmp_path / "tiny.gguf", model, to_gguf_tensors(model))
    source = open_gguf(tmp_path / "tiny.gguf", NAMES)
    for name, weight in model.state_dict().items():
        assert torch.equal(source.read(name, tuple(weight.shape)), weight), name
    assert not source.unread()
    model.save_pretrained(tmp_path / "folder")
    expected = huggingface_config(tmp_path / "folder" / "config.json")[0]
    assert source.config.rms_epsilon == pytest.approx(expected.rms_epsilon)  # float32 in GGUF
    assert replace(source.config, rms_epsilon=expected.rms_epsilon) == expected


@pytest.mark.parametrize(
    ("kind", "tolerance"),
    [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 1e-2), ("Q4_1", 1e-1)],
)
def test_quantized_weights_are_near(
    kind: str, tolerance: float, tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    write(tmp_path / "q.gguf", tiny, to_gguf_tensors(tiny), gguf.GGMLQuantizationType[kind])
    source = open_gguf(tmp_path / "q.gguf", NAMES)
    for name, weight in tiny.state_dict().items():
        found = source.read(name, tuple(weight.shape))
        assert (found - weight).norm() <= tolerance * weight.norm(), name


def test_ready_made_rope_factors_are_used(
    tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    write(tmp_path / "scaled.gguf", tiny, {**to_gguf_tensors(tiny), "rope_freqs.weight": factors})
    plain = inverse_frequencies(16, 5000.0, None)
    model: Any = load(tmp_path).model
    torch.testing.assert_close(model.frequencies, plain / torch.from_numpy(factors))


def test_a_file_cut_anywhere_is_refused_by_name(file: Path) -> None:
    whole = file.read_bytes()
    header = read_header(file)
    data_begin = min(tensor.begin for tensor in header.tensors.values())
    cut = file.with_name("cut.gguf")
    for size in [0, 3, 23, 24, *range(25, data_begin, 97), data_begin, len(whole) // 2, len(whole) - 64]:
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_header(cut)
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=rf"tensor '.+' should end at byte \d+ but the file has {len(whole) // 2}"):
        read_header(cut)


def test_noise_is_refused_by_name(file: Path) -> None:
    noisy, whole = file.with_name("noisy.gguf"), bytearray(file.read_bytes())
    rng = np.random.default_rng(0)
    header_bytes = min(tensor.begin for tensor in read_header(file).tensors.values())
    for _ in range(200):
        damaged = whole.copy()
        damaged[int(rng.integers(0, header_bytes))] ^= 1 << int(rng.integers(0, 8))
        noisy.write_bytes(damaged)
        try:
            open_gguf(noisy, NAMES)  # a flip in a string or a number may go unnoticed here
        except ModelError as error:
            if "noisy.gguf" not in str(error):
                raise


@pytest.mark.parametrize("missing", ["blk.1.ffn_up.weight", "token_embd.weight", "output_norm.weight"])
def test_a_missing_tensor_is_named(
    missing: str, tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    tensors = to_gguf_tensors(tiny)
    del tensors[missing]
    write(tmp_path / "less.gguf", tiny, tensors)
    with pytest.raises(ModelError, match=rf"less\.gguf: tensor .*\({missing}\) is missing"):
        load(tmp_path)


def test_a_wrong_shape_is_named(tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path) -> None:
    tensors = to_gguf_tensors(tiny)
    tensors["blk.0.attn_v.weight"] = tensors["blk.0.attn_v.weight"][:16]
    write(tmp_path / "odd.gguf", tiny, tensors)
    with pytest.raises(ModelError, match=r"'blk\.0\.attn_v\.weight' has shape \[16, 64\]; the model needs \[32, 64\]"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.YARN), "RoPE scaling 'yarn' is not supported"),
        (lambda w: w.add_uint16("split.count", 3), "one of 3 parts"),
        (lambda w: w.add_rope_dimension_count(8), "rope.dimension_count is 8, not head_dim 16"),
        (lambda w: w.add_value_length(8), "attention.value_length is 8, not head_dim 16"),
        (lambda w: w.add_string("llama.vocab_size", "many"), "'llama.vocab_size' is str"),
        (lambda w: w.add_vocab_size(0), "vocab is 0"),
        (lambda w: w.add_expert_count(8), "'llama.expert_count' is 8: not supported"),
        (lambda w: w.add_logit_scale(0.5), "'llama.logit_scale' is 0.5: not supported"),
        (lambda w: w.add_rope_scaling_factor(4.0), "'llama.rope.scaling.factor' is 4.0: not supported"),
    ],
)
def test_unsupported_metadata_is_named(
    edit: Any, message: str, tiny: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    write(tmp_path / "other.gguf", tiny, {}, edit=edit)
    with pytest.raises(ModelError, match=rf"other\.gguf: .*{message}"):
        load(tmp_path)


def test_an_unsupported_architecture_is_named(tiny: Any, write: Callable[..., None], tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", tiny, {}, architecture="mamba")
    with pytest.raises(ModelError, match=r"m\.gguf: architecture 'mamba' is not supported \(llama, phi3"):
        load(tmp_path)


def test_a_tensor_that_nothing_reads_is_named(
    tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    bias = {"blk.1.attn_q.bias": np.ones(64, np.float32)}
    write(tmp_path / "more.gguf", tiny, {**to_gguf_tensors(tiny), **bias})
    with pytest.raises(ModelError, match=r"'llama' don't have, .*: blk\.1\.attn_q\.bias \(1 in all\)"):
        load(tmp_path)


def test_what_changes_nothing_is_passed_over(
    tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:
        writer.add_expert_count(0)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_tensor_data_layout("Meta AI original pth")

    write(tmp_path / "m.gguf", tiny, to_gguf_tensors(tiny), edit=edit)
    assert load(tmp_path).model.config.layers == 2


def test_phi3_s_window_bounds_the_context_and_its_longrope_is_refused(
    make_model: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path
) -> None:
    model = make_model("phi3")
    write(tmp_path / "m.gguf", model, to_gguf_tensors(model), edit=lambda writer: writer.add_sliding_window(100))
    assert load(tmp_path).model.config.max_context == 100
    factors = {f"rope_factors_{name}.weight": np.ones(8, np.float32) for name in ("long", "short")}
    write(tmp_path / "m.gguf", model, {**to_gguf_tensors(model), **factors})
    with pytest.raises(ModelError, match=r"m\.gguf: RoPE scaling 'longrope'"):
        load(tmp_path)
