"""Calls of tools and their results in the `messages` of a chat."""

from typing import Any

from services.gateway.body import MAX_CONTAINERS, containers_in, json_type
from services.gateway.errors import invalid, not_supported

MAX_CALLS = 128
MAX_CHARS = 256
"""Of an id, and of a function's name: any that a model may have made up."""


class CallsSoFar:
    """Of one chat, in the messages' order. Raises ApiError(400) that names what is wrong."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # by the call's id
        self._containers = 0

    def add_calls(self, name: str, calls: Any) -> list[dict[str, Any]]:
        """An assistant's `tool_calls`, as OpenAI's API has them. Arguments that are no JSON stay as they are: they may
        be what the model wrote."""
        if not isinstance(calls, list):
            raise invalid(name, f"{name} must be an array of calls, not {json_type(calls)}")
        if len(calls) > MAX_CALLS:
            raise invalid(name, f"{name} holds {len(calls)} calls; at most {MAX_CALLS} are accepted")
        read = [self._call(f"{name}[{index}]", call) for index, call in enumerate(calls)]
        ids = [call["id"] for call in read]
        if len(set(ids)) < len(ids):
            raise invalid(name, f"{name} holds two calls with one id")
        self._names |= {call["id"]: call["function"]["name"] for call in read}
        return read

    def add_result(self, name: str, message: dict[str, Any]) -> None:
        """A message of role tool. Gets the `name` of the function called unless it has one."""
        call = message.get("tool_call_id")
        if not isinstance(call, str) or not call:
            raise invalid(f"{name}.tool_call_id", f"{name}.tool_call_id is missing: the id of the call it answers")
        if call not in self._names:
            text = (
                f"{name}.tool_call_id is {call[:64]!r}, but no earlier message has a call of that id in its tool_calls"
            )
            raise invalid(f"{name}.tool_call_id", text)
        message.setdefault("name", self._names[call])

    def _call(self, name: str, call: Any) -> dict[str, Any]:
        if not isinstance(call, dict):
            raise invalid(name, f"{name} must be an object with id, type and function, not {json_type(call)}")
        if call.get("type", "function") != "function":
            raise not_supported(f"{name}.type", f'{name}.type must be "function"; other kinds are not supported')
        identity, function = call.get("id"), call.get("function")
        if not isinstance(identity, str) or not 1 <= len(identity) <= MAX_CHARS:
            raise invalid(f"{name}.id", f"{name}.id must be a string of 1 to {MAX_CHARS} characters")
        if not isinstance(function, dict):
            raise invalid(f"{name}.function", f"{name}.function must be an object with name and arguments")
        called, arguments = function.get("name"), function.get("arguments")
        if not isinstance(called, str) or not 1 <= len(called) <= MAX_CHARS:
            text = f"{name}.function.name must be a string of 1 to {MAX_CHARS} characters"
            raise invalid(f"{name}.function.name", text)
        if not isinstance(arguments, str):
            kind = json_type(arguments)
            raise invalid(
                f"{name}.function.arguments", f"{name}.function.arguments must be a string of JSON, not {kind}"
            )
        self._containers += containers_in(arguments.encode(errors="replace"))
        if self._containers > MAX_CONTAINERS:
            text = f"the arguments of calls hold more than {MAX_CONTAINERS} arrays and objects"
            raise invalid(f"{name}.function.arguments", text)
        return {"id": identity, "type": "function", "function": {"name": called, "arguments": arguments}}
