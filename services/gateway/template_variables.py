"""`chat_template_kwargs` of a chat, as vLLM has it: what a client gives to the model's chat template itself."""

import json
from typing import Any

from services.gateway.errors import invalid
from services.gateway.fields import Fields, check_unicode

NAME = "chat_template_kwargs"
_OURS = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


def read_variables(values: dict[str, Any]) -> str:
    """As a JSON object; empty where there are none. What a template doesn't use has no effect. Raises ApiError(400)."""
    given = Fields(values).nested(NAME)
    if given is None or not given.values:
        return ""
    for key in given.values:
        if key in _OURS or not key.isidentifier():
            text = f"{NAME} has {key[:64]!r}: names are those of a template's variables, but none of {', '.join(_OURS)}"
            raise invalid(NAME, text)
    try:
        text = json.dumps(given.values, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise invalid(NAME, f"{NAME} holds a number too large for JSON") from None
    return check_unicode(NAME, text)
