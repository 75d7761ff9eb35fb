"""Writes services/tokenizer/native/nfc_ranges.hpp: what must be known of characters to see that a text is in NFC.

A character that may compose with one before it, or that NFC rewrites, is marked; others have their combining class.
"""

import sys
import unicodedata
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "services/tokenizer/native/nfc_ranges.hpp"
UNSURE = 255
HEAD = """// Written by scripts/nfc_ranges.py from Unicode {version}; don't edit.
#pragma once

#include <cstdint>

namespace hostless::bpe::nfc {{

struct Range {{
  std::uint32_t first, last;
  std::uint8_t order;  // canonical combining class, or kUnsure
}};

inline constexpr std::uint8_t kUnsure = {unsure};

// clang-format off
inline constexpr Range kRanges[] = {{
"""
TAIL = """};
// clang-format on

}  // namespace hostless::bpe::nfc
"""


def composing() -> set[int]:
    """Characters that may be the second of two that become one."""
    found = {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}  # vowels and final consonants of Hangul
    for point in range(sys.maxunicode + 1):
        parts = unicodedata.decomposition(chr(point)).split()
        if len(parts) == 2 and not parts[0].startswith("<"):
            first, second = (chr(int(part, 16)) for part in parts)
            if unicodedata.normalize("NFC", first + second) != first + second:
                found.add(ord(second))
    return found


def order(point: int, second: set[int]) -> int:
    letter = chr(point)
    if point in second or not (0xD800 <= point < 0xE000 or unicodedata.is_normalized("NFC", letter)):
        return UNSURE
    return unicodedata.combining(letter)


def ranges() -> list[tuple[int, int, int]]:
    second, found = composing(), list[tuple[int, int, int]]()
    for point in range(sys.maxunicode + 1):
        if value := order(point, second):
            if found and found[-1][1:] == (point - 1, value):
                found[-1] = (found[-1][0], point, value)
            else:
                found.append((point, point, value))
    return found


def main() -> None:
    lines, line = list[str](), "   "
    for first, last, value in ranges():
        item = f" {{{first:#x}, {last:#x}, {value}}},"
        if len(line) + len(item) > 120:
            lines.append(line)
            line = "   "
        line += item
    text = HEAD.format(version=unicodedata.unidata_version, unsure=UNSURE) + "\n".join([*lines, line]) + "\n" + TAIL
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
