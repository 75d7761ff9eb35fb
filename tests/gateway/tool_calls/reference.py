"""Calls in a whole text, read the slow and obvious way: what the parsers must give for any cut of it."""

import json
from dataclasses import dataclass, field

SPACE = " \t\r\n"
MOST_SPACE = 64
KEYS = ("name", "type", "id", "arguments", "parameters")


@dataclass
class Read:
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)


def hermes(text: str) -> Read:
    read, behind_call = Read(), False
    while "<tool_call>" in text:
        before, rest = text.split("<tool_call>", 1)
        space = trailing_space(before)
        inner = rest[leading_space(rest) :]
        body = one_call(inner) if leading_space(rest) <= MOST_SPACE and inner[:1] == "{" else None
        if body is None:  # the mark is content, and what follows may hold another one
            read.content += before + "<tool_call>"
            text, behind_call = rest, False
            continue
        if isinstance(body, int):
            read.content += before + "<tool_call>" + rest[: leading_space(rest)] + inner[:body]
            text, behind_call = inner[body:], False
            continue
        read.content += before[: len(before) - space]
        name, arguments, after = body
        read.calls.append((name, arguments))
        text, behind_call = closed(after, "}", "</tool_call>"), True
    if not (behind_call and not text.strip(SPACE) and len(text) <= MOST_SPACE):
        read.content += text
    return read


def llama3_json(text: str) -> Read:
    read, start, first = Read(), text, True
    while True:
        at = leading_space(start)
        if at > MOST_SPACE:
            break
        if first and start.startswith("<|python_tag|>", at):
            at += len("<|python_tag|>")
            if leading_space(start[at:]) > MOST_SPACE:
                break
            at += leading_space(start[at:])
        body = one_call(start[at:]) if start[at : at + 1] == "{" else None
        if not isinstance(body, tuple):
            break
        read.calls.append(body[:2])
        start, first = closed(body[2], "}", ";"), False
    if first or start.strip(SPACE) or len(start) > MOST_SPACE:
        read.content = start
    return read


def one_call(text: str) -> tuple[str, str, str] | int:
    """Name, arguments, and what follows these; or how much of the text is no call for sure."""
    end = end_of(text)
    inside = text[1:1024].lstrip(SPACE)
    if inside[:1] not in ('"', ""):
        return 1
    if not inside:
        return 1 if len(text) >= 1024 else len(text)
    key, quote, _ = inside[1:12].partition('"')
    if (quote and key not in KEYS) or (not quote and len(key) > 10):
        return 1
    if (head := in_order(text)) is not None:
        name, at = head
        return name, text[at : at + end_of(text[at:])], text[at + end_of(text[at:]) :]
    try:
        value = json.loads(text[:end])
        name, arguments = value["name"], value.get("arguments", value.get("parameters"))
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments, ensure_ascii=False)
        assert isinstance(name, str)
        assert isinstance(arguments, str)
        assert 1 <= len(name) <= 256
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        return end
    return name, arguments, text[end:]


def in_order(text: str) -> tuple[str, int] | None:
    """`{"name": "...", "arguments": {`: the name, and where the arguments begin."""
    at, name = 1, None
    try:
        while True:
            at += leading_space(text[at:])
            key, at = member(text, at)
            if text[at] == "{" and key in ("arguments", "parameters") and name:
                return (name, at) if at < 1024 else None
            if name is not None or text[at] != '"':
                return None
            begin = at
            value, at = json.JSONDecoder().raw_decode(text, at)
            if key == "name" and 1 <= raw_length(text[begin + 1 : at - 1]) <= 256:
                name = value
            elif (key, value) != ("type", "function") or "".join(text[1:begin].split()) != '"type":':
                return None
            at += leading_space(text[at:])
            if text[at] != ",":
                return None
            at += 1
    except (ValueError, IndexError):
        return None


def member(text: str, at: int) -> tuple[str, int]:
    if text[at] != '"':
        raise ValueError
    end = text.index('"', at + 1)
    key, at = text[at + 1 : end], end + 1
    at += leading_space(text[at:])
    if text[at] != ":":
        raise ValueError
    at += 1
    return key, at + leading_space(text[at:])


def raw_length(text: str) -> int:
    """Characters of a JSON string as written, an escape counting as one that is followed by the rest of it."""
    count = at = 0
    while at < len(text):
        at += 2 if text[at] == "\\" else 1
        count += 1
    return count


def end_of(text: str) -> int:
    """Where the object ends that the text begins with; the text's length if it doesn't."""
    depth, in_string, at = 0, False, 0
    while at < len(text):
        letter = text[at]
        if in_string and letter == "\\":
            at += 2
            continue
        if letter == '"':
            in_string = not in_string
        elif not in_string and letter in "{[":
            depth += 1
        elif not in_string and letter in "}]":
            depth -= 1
            if depth <= 0:
                return at + 1
        at += 1
    return len(text)


def closed(text: str, *tokens: str) -> str:
    """What is left behind the tokens; nothing if it ends within one."""
    for token in tokens:
        rest = text.lstrip(SPACE)
        if len(text) - len(rest) > MOST_SPACE:
            break
        if rest.startswith(token):
            text = rest[len(token) :]
        elif token.startswith(rest):
            return ""
    return text


def leading_space(text: str) -> int:
    return len(text) - len(text.lstrip(SPACE))


def trailing_space(text: str) -> int:
    return min(len(text) - len(text.rstrip(SPACE)), MOST_SPACE)
