"""Encoding by several threads, into buffers of any size, and texts with what C strings and UTF-16 trip over."""

import random
import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.tokenizer import encoders
from services.tokenizer.bpe_encoder import BpeEncoder
from tests.tokenizer.bpe.texts import CORPUS
from tests.tokenizer.conftest import toy_metadata

MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def encoder() -> BpeEncoder:
    made = encoders.from_gguf(toy_metadata(**{"tokenizer.ggml.pre": "qwen2"}))
    assert isinstance(made, BpeEncoder)
    return made


def test_threads_do_not_disturb_each_other(encoder: BpeEncoder) -> None:
    samples = [*CORPUS.values(), "e\u0301" * 3000, "hello world " * 1000, ""]
    expected = [encoder.encode(text, add_special=False).tolist() for text in samples]

    def some(seed: int) -> bool:
        order = random.Random(seed).sample(range(len(samples)), len(samples)) * 5
        return all(encoder.encode(samples[i], add_special=False).tolist() == expected[i] for i in order)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(some, range(8)))
    for count in (1, 3, 8, 100):
        batch = encoder.encode_batch(samples * 4, add_special=False, threads=count)
        assert [ids.tolist() for ids in batch] == expected * 4


def test_a_batch_raises_what_one_of_its_texts_raises(encoder: BpeEncoder) -> None:
    with pytest.raises(UnicodeEncodeError):
        encoder.encode_batch(["a", "\udc00"], add_special=False, threads=2)
    assert encoder.encode_batch([], add_special=False, threads=8) == []


@pytest.mark.parametrize("text", ["", "hello", "hello world " * 500])
def test_buffers_that_are_too_small_are_not_written_to(encoder: BpeEncoder, text: str) -> None:
    ids = encoder.encode(text, add_special=False)
    buffer = np.full(len(ids) + 2, 0xABCD, dtype=np.uint32)
    assert encoder.encode_into(text, buffer[: len(ids)], add_special=False) == len(ids)
    assert buffer.tolist() == [*ids.tolist(), 0xABCD, 0xABCD]
    for room in {0, len(ids) // 2, len(ids) - 1} & set(range(len(ids))):
        buffer[:] = 0xABCD
        with pytest.raises(ValueError, match="smaller than"):
            encoder.encode_into(text, buffer[:room], add_special=False)
        assert set(buffer.tolist()) == {0xABCD}


@pytest.mark.parametrize("bad", [np.zeros((4, 4), dtype=np.uint32)[:, :2], b"1234567890"])
def test_buffers_that_can_not_be_written_to_in_one_piece(encoder: BpeEncoder, bad: Any) -> None:
    with pytest.raises((BufferError, ValueError)):
        encoder.encode_into("hello", bad, add_special=False)


@pytest.mark.parametrize(
    "letter", ["\0", "\x7f", "\x80", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\uffff", "\U00010000"]
)
def test_edges_of_utf8(encoder: BpeEncoder, letter: str) -> None:
    for text in (letter, f"a{letter}", f"{letter} b", letter * 1000, f"\U0010ffff{letter}\U0010ffff"):
        ids = encoder.encode(text, add_special=False)
        assert b"".join(encoder.vocabulary.token_bytes[i] for i in ids).decode() == text


@pytest.mark.parametrize("half", ["\ud800", "a\udc00b", "\ud83d" * 3000])
def test_half_of_a_surrogate_pair_is_refused_wherever(encoder: BpeEncoder, half: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        encoder.encode(half, add_special=False)
    with pytest.raises(UnicodeEncodeError):
        encoder.encode_into(half, np.zeros(10000, dtype=np.uint32), add_special=False)


def test_what_a_huge_text_took_is_given_back(encoder: BpeEncoder) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    text = "hello" * (10 * MEGABYTE // 5)
    assert len(encoder.encode(text, add_special=False)) == 2 * MEGABYTE
    before = resident()
    for _ in range(3):
        encoder.encode(text, add_special=False)
    assert resident() - before < 32 * MEGABYTE
