"""Writes services/tokenizer/native/scan/classes.hpp: the classes of every code point that the scanners ask for.

    python scripts/unicode_classes.py

The classes are asked of the `tokenizers` library, since its regex engine decides where the reference cuts; so a
scanner and the reference can't disagree over a code point that one Unicode version assigns and another does not.
`tokenizers` 0.23.3: Oniguruma with Unicode 16.0 for the patterns, Rust with Unicode 17.0 for `Digits`.
"""

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

TABLE = Path(__file__).resolve().parent.parent / "services/tokenizer/native/scan/classes.hpp"
BLOCK = 128
CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
# The bits are named in text.hpp; `Digits` is the pre-tokenizer of that name, the others are regex classes.
CLASSES = (r"\p{L}", r"\p{N}", r"\p{M}", r"[\p{P}\p{S}]", r"\s", r"[\p{Lu}\p{Lt}]", r"\p{Ll}", "Digits")


def chunks() -> Iterator[list[int]]:
    return (CODES[i : i + 4096] for i in range(0, len(CODES), 4096))


def matching(pattern: str) -> set[int]:
    """Code points that the library's regex engine finds in a character class."""
    others = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    found: set[int] = set()
    for codes in chunks():
        text = "".join(map(chr, codes))
        found |= set(codes) - {ord(letter) for piece, _ in others.pre_tokenize_str(text) for letter in piece}
    return found


def numeric() -> set[int]:
    """Code points that `Digits` sets apart."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    found: set[int] = set()
    for codes in chunks():
        pieces = digits.pre_tokenize_str("a".join(map(chr, codes)) + "a")
        found |= {ord(piece) for piece, _ in pieces if len(piece) == 1}
    return found - {ord("a")}


def classes() -> bytearray:
    table = bytearray(0x110000)
    for bit, pattern in enumerate(CLASSES):
        for code in numeric() if pattern == "Digits" else matching(pattern):
            table[code] |= 1 << bit
    return table


def two_stage(table: bytearray) -> tuple[list[int], list[bytes]]:
    """Index of each block of code points, and the blocks, each once."""
    blocks: dict[bytes, int] = {}
    index = [blocks.setdefault(bytes(table[i : i + BLOCK]), len(blocks)) for i in range(0, len(table), BLOCK)]
    assert len(blocks) <= 256
    return index, list(blocks)


def lines(values: bytes | list[int]) -> str:
    rows = (values[i : i + 32] for i in range(0, len(values), 32))
    return "\n".join("    " + ", ".join(map(str, row)) + "," for row in rows)


def main() -> None:
    index, blocks = two_stage(classes())
    TABLE.write_text(f"""\
// Written by scripts/unicode_classes.py from `tokenizers` {version("tokenizers")}; don't edit.
#pragma once

#include <cstdint>

namespace hostless::scan {{

// clang-format off
alignas(64) inline constexpr std::uint8_t class_block[{len(index)}] = {{
{lines(index)}
}};

alignas(64) inline constexpr std::uint8_t class_of[{len(blocks) * BLOCK}] = {{
{lines(b"".join(blocks))}
}};
// clang-format on

}}  // namespace hostless::scan
""")


if __name__ == "__main__":
    main()
