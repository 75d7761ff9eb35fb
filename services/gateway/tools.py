"""The `tools` of a chat, and which of them the answer may call: checked, and put into the form that templates know."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from services.gateway.body import json_type
from services.gateway.errors import invalid, not_supported
from services.gateway.fields import Fields, check_unicode

MAX_TOOLS = 1024
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
NAME_FORM = "1 to 64 of letters, digits, _ and -"
MAX_DESCRIPTION_CHARS = 1 << 20
_SCHEMA_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")

_Place = tuple[Any, str]
"""Of a schema: the place of the one it is in, or None, and its name there. Whole names of all would fill memory."""


@dataclass(frozen=True)
class Tools:
    """What a chat offers its model."""

    json: str
    """An array of {"type": "function", "function": {"name", "description", "parameters"}}."""
    parallel: bool
    """More than one call may be given back."""
    call: str | None
    """The answer begins with a call: of this function, or where empty of any."""


def read_tools(values: dict[str, Any]) -> Tools | None:
    """None: there are no tools, or none may be called. Raises ApiError(400)."""
    fields = Fields(values)
    parallel = fields.boolean("parallel_tool_calls", True)
    tools = values.get("tools") or []
    if not isinstance(tools, list):
        raise invalid("tools", f"tools must be an array of functions, not {json_type(tools)}")
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"tools holds {len(tools)} functions; at most {MAX_TOOLS} are accepted")
    read: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        function = _tool(f"tools[{index}]", tool)
        if function["name"] in read:
            raise invalid(f"tools[{index}].function.name", f"tools holds two functions named {function['name']}")
        read[function["name"]] = function
    choice = values.get("tool_choice")
    call = _choice(choice, read)
    if not read or choice == "none":
        return None
    try:
        text = json.dumps(
            [{"type": "function", "function": function} for function in read.values()],
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
        )
    except ValueError:
        raise invalid("tools", "tools holds a number too large for JSON") from None
    return Tools(check_unicode("tools", text), parallel, call)


def _choice(choice: Any, functions: dict[str, Any]) -> str | None:
    if choice is None or choice in ("none", "auto"):
        return None
    if choice == "required":
        if not functions:
            raise invalid("tool_choice", "tool_choice is required, but there are no tools")
        return next(iter(functions)) if len(functions) == 1 else ""
    forms = '"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'
    if not isinstance(choice, dict):
        raise invalid("tool_choice", f"tool_choice must be {forms}")
    if choice.get("type") != "function":
        raise not_supported("tool_choice.type", f"tool_choice of other types is not supported yet; send {forms}")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice.function.name", f"tool_choice must name a function: {forms}")
    if name not in functions:
        raise invalid("tool_choice.function.name", f"tool_choice names {name[:64]!r}, which is not among the tools")
    return name


def _tool(name: str, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(name, f'{name} must be {{"type": "function", "function": ...}}, not {json_type(tool)}')
    if tool.get("type") != "function":
        raise invalid(f"{name}.type", f'{name}.type must be "function"; other kinds of tools are not supported')
    _known(name, tool, ("type", "function"))
    function = Fields(tool, name).nested("function")
    if function is None:
        raise invalid(f"{name}.function", f"{name}.function is missing: an object with a name")
    _known(f"{name}.function", function.values, ("name", "description", "parameters", "strict"))
    called = function.get("name")
    if not isinstance(called, str) or not NAME.fullmatch(called):
        raise invalid(f"{name}.function.name", f"{name}.function.name must be a string of {NAME_FORM}")
    function.boolean("strict")
    read: dict[str, Any] = {"name": called}
    if (description := function.text("description", MAX_DESCRIPTION_CHARS)) is not None:
        read["description"] = description
    if (parameters := function.nested("parameters")) is not None:
        _check_schema(f"{name}.function.parameters", parameters.values)
        read["parameters"] = parameters.values
    return read


def _known(name: str, values: dict[str, Any], known: tuple[str, ...]) -> None:
    for key, value in values.items():
        if key not in known and value is not None:
            raise invalid(name, f"{name} has a field {key[:64]!r}, which is not known; known: {', '.join(known)}")


def _check_schema(name: str, schema: dict[str, Any]) -> None:
    """Of JSON Schema only what tells a mistake from a schema: `type`, here and in what is nested."""
    if schema and schema.get("type", "object") != "object":
        raise invalid(f"{name}.type", f'{name}.type must be "object": arguments are given by name')
    waiting: list[tuple[_Place, dict[str, Any]]] = [((None, name), schema)]
    while waiting:
        place, schema = waiting.pop()
        kind = schema.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        if kind is not None and not all(isinstance(one, str) and one in _SCHEMA_TYPES for one in kinds):
            name = f"{_name(place)}.type"
            raise invalid(name, f"{name} must be one or more of {', '.join(_SCHEMA_TYPES)}")
        waiting += _schemas_in(place, schema)


def _schemas_in(place: _Place, schema: dict[str, Any]) -> Iterator[tuple[_Place, dict[str, Any]]]:
    for key in ("properties", "$defs", "definitions"):
        held = schema.get(key)
        if held is not None and not isinstance(held, dict):
            name = f"{_name(place)}.{key}"
            raise invalid(name, f"{name} must be an object of schemas, not {json_type(held)}")
        yield from (
            ((place, f".{key}.{one[:64]}"), value) for one, value in (held or {}).items() if isinstance(value, dict)
        )
    for key in ("items", "additionalProperties", "not"):
        if isinstance(held := schema.get(key), dict):
            yield (place, f".{key}"), held
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(held := schema.get(key), list):
            yield from (((place, f".{key}[{at}]"), value) for at, value in enumerate(held) if isinstance(value, dict))


def _name(place: _Place) -> str:
    parts = []
    at: _Place | None = place
    while at is not None:
        at, part = at
        parts.append(part)
    return "".join(reversed(parts))
