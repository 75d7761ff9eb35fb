"""What a chat template does with tools, found by having it write a call and its result."""

import json
from dataclasses import dataclass
from typing import Any

from hostless.v1 import frontend_pb2 as pb
from services.tokenizer.chat_template import ChatTemplate
from services.tokenizer.errors import RequestError, invalid
from services.tokenizer.tool_formats import NAMES, format_of

_NAME, _KEY, _VALUE, _RESULT = "probe_function", "probe_key", "probe_value", "probe_result"
_ID = "probe1234"  # some templates want nine letters and digits
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}}},
}


@dataclass(frozen=True, slots=True)
class CallForm:
    """How the template wants messages with calls."""

    text: bool
    """Arguments as they were written, which keeps a conversation's prefix; otherwise as a mapping."""
    content: str | None
    """Of a message that has none."""


FORMS = tuple(CallForm(text, content) for text in (True, False) for content in ("", None))


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Of one chat template."""

    takes_tools: bool
    form: CallForm | None
    """None: calls are not in what it writes."""
    writes_results: bool
    tool_format: pb.ToolFormat
    """In which it writes calls, so the model does. None of those known: TOOL_FORMAT_NONE."""

    def check_tools(self, model: str) -> None:
        """Raises RequestError where tools can't be given to the model."""
        if not self.takes_tools:
            raise invalid(
                f"the chat template of the model {model!r} doesn't use tools; omit them, or ask a model that does",
                "tools",
                "unsupported_parameter",
            )
        if not self.tool_format:
            raise invalid(
                f"the chat template of the model {model!r} writes calls in no form that can be read here "
                f"({', '.join(NAMES)}); if the model does write one of these, name it by the tokenizer's --tool-parser",
                "tools",
                "unsupported_parameter",
            )

    def prepare(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages, with calls as the template wants them. Raises RequestError for what it wouldn't write."""
        return [self._prepare(message, f"messages[{index}]") for index, message in enumerate(messages)]

    def _prepare(self, message: dict[str, Any], where: str) -> dict[str, Any]:
        if message["role"] == "tool" and not self.writes_results:
            raise invalid(f"{where}: the model's chat template has no place for results of tools", f"{where}.role")
        if "tool_calls" not in message:
            return message
        if self.form is None:
            raise invalid(f"{where}: the model's chat template has no place for calls of tools", f"{where}.tool_calls")
        return _formed(message, self.form)


def probe(template: ChatTemplate, tool_format: pb.ToolFormat) -> ToolUse:
    """`tool_format`: in place of what the template writes, unless it is none."""
    takes_tools = template.uses("tools")
    results = False
    for form in FORMS:
        try:
            written = template.render(_conversation(form), [_TOOL] if takes_tools else None)
        except RequestError:  # not in this form
            continue
        results = results or _RESULT in written
        if _VALUE in written and not any(wrong in written for wrong in (f'\\"{_VALUE}', f"'{_KEY}'")):
            found = tool_format or format_of(written, _NAME, {_KEY: _VALUE})
            return ToolUse(takes_tools, form, results, found)
    return ToolUse(takes_tools, None, results, tool_format)


def _conversation(form: CallForm) -> list[dict[str, Any]]:
    function = {"name": _NAME, "arguments": json.dumps({_KEY: _VALUE})}
    calls = [{"id": _ID, "type": "function", "function": function}]
    return [
        {"role": "user", "content": "Hi"},
        _formed({"role": "assistant", "content": None, "tool_calls": calls}, form),
        {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": _RESULT},
    ]


def _formed(message: dict[str, Any], form: CallForm) -> dict[str, Any]:
    content = form.content if message["content"] is None else message["content"]
    calls = [{**call, "function": _function(call["function"], form.text)} for call in message["tool_calls"]]
    return {**message, "content": content, "tool_calls": calls}


def _function(function: dict[str, Any], text: bool) -> dict[str, Any]:
    """Arguments that are no JSON object stay text: they are the model's own."""
    arguments: Any = function["arguments"] or "{}"
    if not text:
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = None
        arguments = value if isinstance(value, dict) else arguments
    return {**function, "arguments": arguments}
