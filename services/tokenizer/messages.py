"""A chat's messages, from a gateway's JSON to what chat templates expect."""

import json
import re
from typing import Any

from services.tokenizer.errors import invalid

# A role is printed by most templates as it is, so it must not be able to hold anything but a name.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


def parse_messages(text: str) -> list[dict[str, Any]]:
    """The messages, each with a role and a content that is a string, or null beside an assistant's calls: what OpenAI's
    API takes beyond that is the gateway's to put into this form. Raises RequestError, which names the message and
    field."""
    try:
        messages = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid(f"messages is not valid JSON: {error}", "messages") from error
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a non-empty array", "messages")
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    return messages


def parse_tools(text: str) -> list[dict[str, Any]] | None:
    """The tools that a gateway gives; an empty text gives none. Raises RequestError."""
    if not text:
        return None
    try:
        tools = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid(f"tools is not valid JSON: {error}", "tools") from error
    if not isinstance(tools, list) or not tools or not all(isinstance(tool, dict) for tool in tools):
        raise invalid("tools must be a non-empty array of objects", "tools")
    return tools


def parse_variables(text: str) -> dict[str, Any]:
    """What else a gateway gives to the chat template. Raises RequestError."""
    try:
        variables = json.loads(text or "{}")
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid(f"chat_template_kwargs is not valid JSON: {error}", "chat_template_kwargs") from error
    if not isinstance(variables, dict):
        raise invalid("chat_template_kwargs must be an object", "chat_template_kwargs")
    return variables


def _check(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise invalid(f"{where} must be an object", where)
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise invalid(f"{where}.role must be a role's name, such as user or assistant", f"{where}.role")
    if odd := [key for key in message if not key.isidentifier()]:
        raise invalid(f"{where} has a field with a name that can't be: {odd[0]!r}", where)
    if "tool_calls" in message:
        _check_calls(message["tool_calls"], f"{where}.tool_calls")
    if message.get("content") is None and "tool_calls" in message:
        message["content"] = None
    elif not isinstance(message.get("content"), str):
        raise invalid(f"{where}.content must be a string", f"{where}.content")


def _check_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list) or not calls:
        raise invalid(f"{where} must be a non-empty array", where)
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        fields = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None,)
        if not all(isinstance(one, str) for one in fields):
            raise invalid(f"{where}[{index}] must have a function with a name and arguments", f"{where}[{index}]")
