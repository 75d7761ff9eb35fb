"""Sizes in bytes, as people write them."""

EXAMPLES = "4096, 512k, 200MiB, 1.5g"
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_size(text: str) -> int:
    """'1.5GiB', '200m' or '4096' -> bytes; every unit is a power of 1,024. Raises ValueError."""
    digits = text.strip().rstrip("iIbB ")
    unit = digits[-1:].lower() if digits[-1:].isalpha() else ""
    try:
        count = int(float(digits.removesuffix(digits[-1:]) if unit else digits) * UNITS[unit])
        if count < 0:
            raise ValueError
    except (KeyError, ValueError, OverflowError):
        raise ValueError(f"{text!r} is no size") from None
    return count
