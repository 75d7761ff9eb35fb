"""The scanners of the instruction sets do what the plain one does, wherever a text begins and ends."""

import random

import pytest

from services.tokenizer import _scan
from tests.tokenizer.examples import examples
from tests.tokenizer.scan.texts import FRAGMENTS, SAMPLES

SETS = _scan.INSTRUCTION_SETS[:-1]
each_pattern = pytest.mark.parametrize("pattern", _scan.PATTERNS)
MEGABYTE = 1 << 20


def check(pattern: str, text: bytes, capacity: int = 4096) -> list[int]:
    plain = _scan.cut(pattern, text, "scalar")
    for instructions in SETS:
        assert _scan.cut(pattern, text, instructions, capacity) == plain, (instructions, text)
    return plain


def random_text(seed: int) -> str:
    chance = random.Random(seed)
    fragments = [*chance.sample(FRAGMENTS, chance.randint(2, 12)), "some", " words", " here", " "]
    return "".join(chance.choices(fragments, k=chance.randint(1, 150)))


@each_pattern
def test_every_begin_and_every_length(pattern: str) -> None:
    for name in ("prose", "code", "spaces", "russian", "chinese"):
        text = SAMPLES[name]
        for begin in range(70):
            check(pattern, text[begin:].encode())
        for size in range(200):
            check(pattern, text[:size].encode())


@each_pattern
@pytest.mark.parametrize("capacity", [1, 2, 63, 64, 65, 100])
def test_ends_come_in_any_portions(pattern: str, capacity: int) -> None:
    for text in SAMPLES.values():
        assert _scan.cut(pattern, text.encode(), capacity=capacity) == check(pattern, text.encode(), capacity)


@each_pattern
def test_random_texts(pattern: str) -> None:
    for seed in range(examples(500)):
        check(pattern, random_text(seed).encode())


@each_pattern
@pytest.mark.parametrize(
    "unit", ["a", "A", " ", "\n", "1", "!", "'", "\u0300", "\u4e2d", "\U0001f600", " \n", "aB", "\x00"]
)
def test_a_megabyte_of_one_thing(pattern: str, unit: str) -> None:
    text = (unit * (MEGABYTE // len(unit.encode()))).encode()
    assert check(pattern, text)[-1] == len(text)


def test_an_unknown_pattern_or_instruction_set_is_named() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        _scan.cut("nonsense", b"x")
    with pytest.raises(ValueError, match="sse9"):
        _scan.cut("gpt2", b"x", "sse9")


def decodes(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_utf8_is_told_from_other_bytes() -> None:
    edges = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED]
    edges += [0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
    chance = random.Random(0)
    for _ in range(40_000):
        data = bytes(chance.choices(edges, k=chance.randint(0, 6)))
        around = b"plain ASCII before"[: chance.randint(0, 18)], b"and after"[: chance.randint(0, 9)]
        assert _scan.valid_utf8(around[0] + data + around[1]) == decodes(data), data
    for text in SAMPLES.values():
        assert _scan.valid_utf8(text.encode())
    with pytest.raises(ValueError, match="UTF-8"):
        _scan.cut("gpt2", b"\xff")
