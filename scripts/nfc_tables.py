"""Writes services/tokenizer/native/nfc_tables.hpp: what must be known of characters to bring text to NFC.

As the `tokenizers` library does it, whose Unicode is older than Python's: it is asked about every character.
"""

import importlib.metadata
import sys
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from tokenizers import normalizers

TARGET = Path(__file__).resolve().parent.parent / "services/tokenizer/native/nfc_tables.hpp"
HANGUL = range(0xAC00, 0xAC00 + 11172)
JAMO = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
"""Vowels and final consonants, which compose by a rule and not by a table."""
HEAD = """// Written by scripts/nfc_tables.py from tokenizers {version}; don't edit.
#pragma once

#include <cstdint>

namespace hostless::bpe::nfc {{

struct Range {{
  std::uint32_t first, last;
  std::uint8_t order;  // canonical combining class
  bool unsure;         // may compose with a character before it, or NFC rewrites it
}};

struct Whole {{
  std::uint32_t point, first, second;  // second is 0: another way to write `first`
  bool composes;                       // of its parts
}};

// clang-format off
inline constexpr Range kRanges[] = {{
"""
BETWEEN = """};

inline constexpr Whole kWholes[] = {  // by point
"""
TAIL = """};
// clang-format on

}  // namespace hostless::bpe::nfc
"""

nfc, nfd = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def order(letter: str) -> int:
    """Its combining class; 0 if the library does not know the character yet: a mark of class 1 stays behind it."""
    known = unicodedata.combining(letter)
    return known if known <= 1 or nfd(f"x{letter}\u0334") != f"x{letter}\u0334" else 0


def wholes() -> list[tuple[int, int, int, bool]]:
    """One level of each canonical decomposition, Hangul's aside."""
    found = []
    for point in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(point)).split()
        if not parts or parts[0].startswith("<") or point in HANGUL or nfd(chr(point)) == chr(point):
            continue
        first, second = (*(int(part, 16) for part in parts), 0)[:2]
        pair = chr(first) + (chr(second) if second else "")
        found.append((point, first, second, bool(second) and nfc(pair) == chr(point)))
    return found


def ranges(seconds: set[int]) -> list[tuple[int, int, int, bool]]:
    found = list[tuple[int, int, int, bool]]()
    for point in range(sys.maxunicode + 1):
        if 0xD800 <= point < 0xE000:
            continue
        letter = chr(point)
        value = (order(letter), point in seconds or nfc(letter) != letter)
        if value == (0, False):
            continue
        if found and found[-1][1:] == (point - 1, *value):
            found[-1] = (found[-1][0], point, *value)
        else:
            found.append((point, point, *value))
    return found


def rows(items: Iterable[tuple[int, ...]]) -> str:
    lines, line = list[str](), "   "
    for *points, last in items:
        item = f" {{{', '.join(f'{point:#x}' for point in points)}, {str(bool(last)).lower()}}},"
        if len(line) + len(item) > 120:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join([*lines, line]) + "\n"


def main() -> None:
    whole = wholes()
    known = ranges(JAMO | {second for _, _, second, composes in whole if composes})
    head = HEAD.format(version=importlib.metadata.version("tokenizers"))
    TARGET.write_text(head + rows(known) + BETWEEN + rows(whole) + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
