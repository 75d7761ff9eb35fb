"""A request's body off the wire: bounded in size and time, JSON only, strict."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.datastructures import Headers
from starlette.types import Receive

from services.gateway.errors import ApiError, invalid

MAX_DEPTH = 64
MAX_CONTAINERS = 100_000
"""Arrays and objects in a body: three for each of the most messages that a chat takes, and room to spare. A few million
would take seconds, here and in the tokenizer."""
DISCARD_BYTES = 16 << 20
"""Of a body that is too long, so much is read and thrown away, so that the client gets to read the answer."""


_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # also one without an end: never tried twice


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


async def read_body(headers: Headers, receive: Receive, max_bytes: int, timeout_s: float) -> bytes:
    """What parse_json takes. Raises ApiError (400, 408, 413, 415) or ClientGone."""
    _check_type(headers)
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(receive, max_bytes)
    except TimeoutError:
        raise ApiError(
            408, f"the request body did not arrive within {timeout_s:g} s", headers={"Connection": "close"}
        ) from None


def parse_json(body: bytes) -> dict[str, Any]:
    """Strict JSON in UTF-8: an object, nested at most 64 deep, of at most 100,000 arrays and objects, no NaN or
    Infinity. Raises ApiError(400)."""
    _check_containers(body)
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise invalid(None, f"the body is not UTF-8: byte {error.start} is wrong") from None
    except json.JSONDecodeError as error:
        raise invalid(None, f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a number of thousands of digits, or a constant
        raise invalid(None, f"the body is not JSON that can be read: {error}") from None
    if not isinstance(value, dict):
        raise invalid(None, f'the body must be a JSON object such as {{"model": ...}}, not {json_type(value)}')
    _check_depth(value)
    return value


def json_type(value: object) -> str:
    """What a client calls a JSON value's type, with an article."""
    names: Mapping[type, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        type(None): "null",
    }
    return names[type(value)]


def _check_type(headers: Headers) -> None:
    kind, _, parameters = headers.get("content-type", "application/json").partition(";")
    if kind.strip().lower() != "application/json":
        raise ApiError(415, f"content type {kind.strip()!r} is not supported; send application/json")
    for parameter in parameters.lower().split(";"):
        name, _, value = parameter.strip().partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8"):
            raise ApiError(415, f"charset {value} is not supported; send UTF-8")
    if encoding := headers.get("content-encoding"):
        raise ApiError(415, f"content encoding {encoding!r} is not supported; send the body as it is")


async def _read(receive: Receive, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
        else:
            chunks.clear()
        if size > max_bytes + DISCARD_BYTES or not message.get("more_body", False):
            break
    if size > max_bytes:
        text = f"the body is longer than the {max_bytes} bytes that are accepted"
        raise ApiError(413, text, code="request_too_large", headers={"Connection": "close"})
    return b"".join(chunks)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def containers_in(text: bytes) -> int:
    """Arrays and objects in JSON; an upper bound where these are few enough."""
    openings = _openings(text)
    return openings if openings <= MAX_CONTAINERS else _openings(_STRING.sub(b"", text))


def _check_containers(body: bytes) -> None:
    if containers_in(body) > MAX_CONTAINERS:
        raise invalid(None, f"the body holds more than {MAX_CONTAINERS} arrays and objects")


def _openings(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for parent in level for child in _containers_in(parent)]
        if not level:
            return
    raise _too_deep()


def _containers_in(parent: dict[str, Any] | list[Any]) -> list[Any]:
    children = parent.values() if isinstance(parent, dict) else parent
    if {dict, list}.isdisjoint(map(type, children)):  # a million token ids: no Python code for each
        return []
    return [child for child in children if isinstance(child, dict | list)]


def _too_deep() -> ApiError:
    return invalid(None, f"the body is nested deeper than {MAX_DEPTH} levels")
