"""The engine's own picture of engine memory against step.hpp's, on any machine."""

import numpy as np
import torch

from services.gpu_backend.engine import STEP_SEQUENCE
from services.gpu_backend.engines.cuda.memory_views import tensors_of
from services.gpu_backend.engines.cuda.own_memory import OwnMemory, sources_offset
from services.gpu_backend.engines.cuda.settings import decode_sizes, prefill_sizes


def test_sequences_are_the_words_that_the_kernels_read() -> None:
    """step_kernels.py's field numbers, and sampling.cu's struct."""
    words = ["lane", "token_begin", "token_count", "position", "sample", "temperature", "top_p", "top_k", "uniform"]
    assert [STEP_SEQUENCE.fields[name][1] // 4 for name in words] == list(range(9))  # type: ignore[index]
    assert STEP_SEQUENCE.itemsize == 12 * 4


def test_what_numpy_writes_tensors_read_and_back() -> None:
    own = OwnMemory(torch.device("cpu"), lanes=3, step_tokens=9, lane_pages=2, pages=5)
    own.header["step"], own.header["sequence_count"] = 41, 2
    own.sequences["position"], own.tokens[:], own.block_tables[:] = [7, 8, 9], np.arange(9), [[1, 2], [3, 4], [0, 1]]
    own.upload()
    step = tensors_of(own.memory, torch.device("cpu"))
    assert (int(step.step), int(step.sequence_count)) == (41, 2)
    assert step.sequences[:, 3].tolist() == [7, 8, 9]
    assert step.tokens.tolist() == list(range(9))
    assert step.block_tables.tolist() == [[1, 2], [3, 4], [0, 1]]
    step.done_step.fill_(41)
    step.error.fill_(1)
    step.out_tokens.copy_(torch.tensor([5, 6, 7]))
    own.download()
    assert (int(own.header["done_step"][0]), int(own.header["error"][0])) == (41, 1)
    assert own.out_tokens.tolist() == [5, 6, 7]
    at = own.memory
    assert all(offset % 64 == 0 for offset in (at.tokens_offset, sources_offset(at), at.out_tokens_offset))
    assert at.tokens_offset + 4 * 9 <= sources_offset(at)


def test_an_upload_leaves_the_last_steps_tokens_where_the_next_step_finds_them() -> None:
    own = OwnMemory(torch.device("cpu"), lanes=3, step_tokens=9, lane_pages=2, pages=5)
    step = tensors_of(own.memory, torch.device("cpu"))
    step.out_tokens.copy_(torch.tensor([5, 6, 7]))
    other = own.new_image()
    other.tokens[:2] = 3, 4
    own.upload(other)
    assert step.out_tokens.tolist() == [5, 6, 7]
    assert step.tokens.tolist()[:2] == [3, 4]


def test_shapes_ascend_and_end_with_the_largest() -> None:
    for lanes in (1, 3, 16, 64, 100, 256):
        sizes = decode_sizes(lanes)
        assert list(sizes) == sorted(set(sizes))
        assert sizes[-1] == lanes
    assert decode_sizes(256) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    assert prefill_sizes(2048) == (16, 64, *range(128, 1024, 128), *range(1024, 2048, 128), 2048)
    assert prefill_sizes(100) == (16, 64, 100)
