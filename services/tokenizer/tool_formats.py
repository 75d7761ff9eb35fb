"""How models write calls of tools: the name of each format, how a call begins, and how one is known in a text."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hostless.v1 import frontend_pb2 as pb

NAMES: Mapping[str, pb.ToolFormat] = {
    "hermes": pb.TOOL_FORMAT_HERMES,
    "llama3_json": pb.TOOL_FORMAT_LLAMA3_JSON,
}
"""As settings have them."""

_BEGINNINGS: Mapping[int, tuple[str, str]] = {
    pb.TOOL_FORMAT_HERMES: ('<tool_call>\n{"name": "', '", "arguments":'),
    pb.TOOL_FORMAT_LLAMA3_JSON: ('{"name": "', '", "parameters":'),
}


@dataclass(frozen=True, slots=True)
class Opening:
    """What a gateway needs to know of an answer before its first token."""

    tool_format: pb.ToolFormat
    text: str
    """How the prompt has the answer begin; empty unless a call was asked for."""


def opening(tool_format: pb.ToolFormat, call: str | None) -> Opening:
    """`call`: the answer begins with a call, of this function, or where empty of any."""
    if call is None:
        return Opening(tool_format, "")
    before, behind = _BEGINNINGS[tool_format]
    return Opening(tool_format, before + call + behind if call else before)


def format_of(text: str, name: str, arguments: Mapping[str, Any]) -> pb.ToolFormat:
    """The format in which `text` holds a call of `name`; none if it is a form that is not known."""
    for before, value in _objects(text):
        if value.get("name") != name:
            continue
        if value.get("arguments") == arguments and before.rstrip().endswith("<tool_call>"):
            return pb.TOOL_FORMAT_HERMES
        if value.get("parameters") == arguments:
            return pb.TOOL_FORMAT_LLAMA3_JSON
    return pb.TOOL_FORMAT_NONE


def _objects(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """JSON objects in a text, inner ones too, each with the text before it."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            value, _ = decoder.raw_decode(text, at)
        except ValueError:
            pass
        else:
            yield text[:at], value
        at = text.find("{", at + 1)
