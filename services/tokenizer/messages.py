"""A chat's messages, from a gateway's JSON to what chat templates expect."""

import json
import re
from typing import Any

from services.tokenizer.errors import invalid

# A role is printed by most templates as it is, so it must not be able to hold anything but a name.
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


def parse_messages(text: str) -> list[dict[str, Any]]:
    """The messages, each with a role and a content that is a string: what OpenAI's API takes beyond that is the
    gateway's to put into this form. Raises RequestError, which names the message and field."""
    try:
        messages = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise invalid(f"messages is not valid JSON: {error}", "messages") from error
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a non-empty array", "messages")
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    return messages


def _check(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise invalid(f"{where} must be an object", where)
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise invalid(f"{where}.role must be a role's name, such as user or assistant", f"{where}.role")
    if odd := [key for key in message if not key.isidentifier()]:
        raise invalid(f"{where} has a field with a name that can't be: {odd[0]!r}", where)
    if not isinstance(message.get("content"), str):
        raise invalid(f"{where}.content must be a string", f"{where}.content")
