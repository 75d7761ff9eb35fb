"""OpenAI's `messages`, from JSON to what chat templates expect."""

import json
import re
from typing import Any

from services.tokenizer.errors import invalid

# A role is printed by most templates as it is, so it must not be able to hold anything but a name.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


def parse_messages(text: str) -> list[dict[str, Any]]:
    """The messages with each content a string. Raises RequestError, which names the message and field."""
    try:
        messages = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid(f"messages is not valid JSON: {error}", "messages") from error
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a non-empty array", "messages")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(f"{where} must be an object", where)
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise invalid(f"{where}.role must be a role's name, such as user or assistant", f"{where}.role")
    if odd := [key for key in message if not key.isidentifier()]:
        raise invalid(f"{where} has a field with a name that can't be: {odd[0]!r}", where)
    return {**message, "content": _content(message, role, f"{where}.content")}


def _content(message: dict[str, Any], role: str, where: str) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":  # a turn that only called tools
        return ""
    if isinstance(content, list):
        return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))
    raise invalid(f"{where} must be a string or an array of text parts", where)


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise invalid(f"{where}: content parts of type {kind!r} are not supported by this model; send text", where)
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text must be a string", where)
    return text
