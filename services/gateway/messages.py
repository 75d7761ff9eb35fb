"""The `messages` of a chat: checked, and put into the one form that chat templates know."""

import json
from typing import Any

from services.gateway.body import json_type
from services.gateway.errors import invalid, not_supported
from services.gateway.fields import check_unicode
from services.gateway.tool_messages import CallsSoFar

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 10_000


def read_messages(value: Any) -> str:
    """The messages as a JSON array of {"role", "content": string, ...}, ready for a chat template.

    A content given in text parts becomes one string, its parts on lines of their own. An assistant's calls of tools
    may stand in place of a content, which is null then. Fields other than role and content go on as they are, unless
    null. Raises ApiError(400); roles in an order that a template doesn't take are the tokenizer's to refuse.
    """
    if value is None:
        raise invalid("messages", "messages is missing: an array of at least one {role, content}")
    if not isinstance(value, list):
        raise invalid("messages", f"messages must be an array of {{role, content}}, not {json_type(value)}")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise invalid("messages", f"messages must hold 1 to {MAX_MESSAGES} messages, not {len(value)}")
    calls = CallsSoFar()
    read = [_message(f"messages[{index}]", message, calls) for index, message in enumerate(value)]
    try:
        text = json.dumps(read, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise invalid("messages", "messages holds a number too large for JSON") from None
    return check_unicode("messages", text)


def _message(name: str, message: Any, calls: CallsSoFar) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(name, f"{name} must be an object with role and content, not {json_type(message)}")
    role = message.get("role")
    if role == "function" or message.get("function_call"):
        raise not_supported(name, f"{name}: functions of the old form are not supported; send tool_calls and role tool")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{name}.role", f"{name}.role must be one of {', '.join(ROLES)}")
    kept = {key: value for key, value in message.items() if value is not None}
    if role == "tool":
        calls.add_result(name, kept)
    if not kept.get("tool_calls"):
        kept.pop("tool_calls", None)
    elif role != "assistant":
        raise invalid(f"{name}.tool_calls", f"{name}.tool_calls goes only with role assistant")
    else:
        kept["tool_calls"] = calls.add_calls(f"{name}.tool_calls", kept["tool_calls"])
    calling = "tool_calls" in kept and message.get("content") is None
    kept["content"] = None if calling else _content(f"{name}.content", message.get("content"))
    return kept


def _content(name: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(name, f"{name} must be a string or an array of text parts, not {json_type(content)}")
    return "\n".join(_part(f"{name}[{index}]", part) for index, part in enumerate(content))


def _part(name: str, part: Any) -> str:
    if not isinstance(part, dict):
        raise invalid(name, f'{name} must be an object such as {{"type": "text", "text": ...}}, not {json_type(part)}')
    if part.get("type") != "text":
        raise not_supported(name, f'{name}: parts other than of type "text" are not supported yet')
    if not isinstance(text := part.get("text"), str):
        raise invalid(f"{name}.text", f"{name}.text must be a string, not {json_type(text)}")
    return text
