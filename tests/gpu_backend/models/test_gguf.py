"""GGUF files: what they hold is what was written; damaged ones are refused by name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from services.gpu_backend.models.config import ModelError
from services.gpu_backend.models.gguf_header import read_header
from services.gpu_backend.models.gguf_loader import open_gguf
from services.gpu_backend.models.llama import GGUF_NAMES
from services.gpu_backend.models.registry import load
from services.gpu_backend.models.rope import inverse_frequencies

NAMES = {"llama": GGUF_NAMES}


@pytest.fixture
def file(tiny: Any, to_gguf_tensors: Any, write: Callable[..., None], tmp_path: Path) -> Path:
    write(tmp_path / "tiny.gguf", tiny, to_gguf_tensors(tiny))
    return tmp_path / "tiny.gguf"


def test_weights_come_back_in_huggingface_order(file: Path, tiny: Any) -> None:
    source = open_gguf(file, NAMES)
    for name, weight in tiny.state_dict().items():
        assert torch.equal(source.read(name, tuple(weight.shape)), weight), name
    config = source.config
    assert (config.layers, config.heads, config.kv_heads, config.head_dim, config.vocab) == (2, 4, 2, 16, 200)
    assert config.rope_theta == 5000.0


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
    with pytest.raises(ModelError, match=r"m\.gguf: architecture 'mamba' is not supported \(llama\)"):
        load(tmp_path)
