"""Types of the native module `_scan` (native/scan/scan_module.cpp): the scanners that cut text for BPE (B15).

For tests and benchmarks; the encoder has the scanners inside.
"""

PATTERNS: tuple[str, ...]
INSTRUCTION_SETS: tuple[str, ...]
"""Those of this CPU, best first; the last is "scalar"."""

def cut(pattern: str, text: bytes, instructions: str = ..., capacity: int = ...) -> list[int]:
    """Ends of the pieces of UTF-8 text, in bytes; asked of the scanner so many at a time.

    ValueError: no such pattern, no such instruction set here, or the text is not UTF-8.
    """

def valid_utf8(text: bytes) -> bool: ...
