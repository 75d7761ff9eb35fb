"""How a model's makers want its tokens drawn (generation_config.json), for requests that don't say."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.encoder import UnsupportedTokenizer
from services.tokenizer.tokenizer_json import read_json

FILE = "generation_config.json"


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Without a word from the model: all tokens, as likely as it has them."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def fill(self, sampling: pb.Sampling) -> None:
        """Sets what the request leaves open."""
        for field in dataclasses.fields(self):
            if not sampling.HasField(field.name):
                setattr(sampling, field.name, getattr(self, field.name))


def of_folder(folder: Path) -> SamplingDefaults:
    """From the model's generation_config.json, if it has one. Raises UnsupportedTokenizer for values that are none."""
    config = read_json(folder / FILE)
    given = {name: config[name] for name in ("temperature", "top_p", "top_k") if config.get(name) is not None}
    for name, value in given.items():
        if not _VALID[name](value):
            raise UnsupportedTokenizer(f"{folder / FILE}: {name} can't be {value!r}")
    if "top_k" in given:
        given["top_k"] = max(given["top_k"], 0)  # -1 is off, too
    return SamplingDefaults(**given)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Travelling in 32 bits, a smaller top_p would be 0 and a huge temperature infinite; both are false for NaN.
_VALID: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda value: _number(value) and 0 <= value <= 100,
    "top_p": lambda value: _number(value) and 1e-6 <= value <= 1,
    "top_k": lambda value: _number(value) and isinstance(value, int) and -1 <= value < 1 << 32,
}
