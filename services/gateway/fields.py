"""Reading typed values out of a client's JSON object. null means absent, as OpenAI's clients send it."""

import math
from typing import Any

from services.gateway.body import json_type
from services.gateway.errors import invalid


class Fields:
    """One JSON object. Every reader returns the default if the field is absent or null, else raises ApiError(400)
    unless the value is of the right kind and in bounds; the message names the field and what would be right."""

    def __init__(self, values: dict[str, Any], path: str = "") -> None:
        self.values = values
        self._path = path

    def name(self, key: str) -> str:
        """How messages call the field, e.g. `stream_options.include_usage`."""
        return f"{self._path}.{key}" if self._path else key

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, max_chars: int) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        if len(value) > max_chars:
            raise invalid(
                self.name(key), f"{self.name(key)} must have at most {max_chars} characters, not {len(value)}"
            )
        return check_unicode(self.name(key), value)

    def number(self, key: str, low: float, high: float) -> float | None:
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, f"a number from {low:g} to {high:g}", value)
        if not low <= value <= high:  # false for NaN; exact for integers too large for a float
            shown = value if isinstance(value, float) or abs(value) < 2**64 else "a huge integer"
            raise invalid(self.name(key), f"{self.name(key)} must be a number from {low:g} to {high:g}, not {shown}")
        return float(value)

    def integer(self, key: str, low: int, high: int, *, clamp: bool = False) -> int | None:
        """16.0 counts as 16. With `clamp`, larger values than `high` are read as `high`."""
        value = self.values.get(key)
        if value is None:
            return None
        wanted = f"an integer of at least {low}" if clamp else f"an integer from {low} to {high}"
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, wanted, value)
        if clamp:
            value = min(value, high)
        if not low <= value <= high:
            shown = value if abs(value) < 2**64 else "a huge one"
            raise invalid(self.name(key), f"{self.name(key)} must be {wanted}, not {shown}")
        return value

    def nested(self, key: str) -> "Fields | None":
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return Fields(value, self.name(key))

    def _wrong(self, key: str, wanted: str, value: object) -> Exception:
        return invalid(self.name(key), f"{self.name(key)} must be {wanted}, not {json_type(value)}")


def check_unicode(name: str, text: str) -> str:
    """`text`, if it can travel as UTF-8: JSON can spell surrogates that have no pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise invalid(
            name, f"{name} is not valid Unicode: a surrogate without its pair at character {error.start}"
        ) from None
    return text
