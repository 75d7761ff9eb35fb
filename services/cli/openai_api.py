"""A small client of an OpenAI endpoint, on http.client: quick to load, and one connection a call."""

import http.client
import json
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from services.cli.errors import CliError, UsageError

TIMEOUT_S = 600.0
"""Longest silence of the server."""


@dataclass
class Answer:
    """What is known of a streamed answer so far; complete when the stream has ended."""

    text: str = ""
    finish_reason: str = ""
    usage: Mapping[str, int] = field(default_factory=dict)
    first_s: float = 0.0  # time to the first text
    total_s: float = 0.0


class OpenAiApi:
    """`url` is the server's root, with or without /v1. Raises CliError for whatever goes wrong."""

    def __init__(self, url: str, api_key: str = "", timeout_s: float = TIMEOUT_S) -> None:
        parts = _server(url if "://" in url else f"http://{url}")
        if parts is None:
            raise UsageError(f"{url!r} is not the URL of a server", "Like http://127.0.0.1:8000")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._netloc, self._timeout_s = parts.netloc, timeout_s
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self.root = self.url + self._prefix
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def models(self) -> list[str]:
        """Ids of the models that it serves."""
        try:
            with self._request("GET", "/v1/models") as reply:
                return [str(model["id"]) for model in json.load(reply)["data"]]
        except (ValueError, TypeError, KeyError):
            raise CliError(f"{self.root}/v1/models lists no models: is it an OpenAI endpoint?") from None

    def first_model(self) -> str:
        """For who names none. There may be none yet, which is a CliError too."""
        models = self.models()
        if not models:
            raise CliError(f"{self.url} serves no model now", "hostless status says what it waits for")
        return models[0]

    def text(self, path: str) -> str:
        """The body of a page, e.g. /metrics."""
        with self._request("GET", path) as reply:
            return reply.read().decode()

    def chat(self, body: Mapping[str, Any], answer: Answer) -> Generator[str]:
        """Streams the text of one choice and fills `answer`. Closing the iterator closes the connection, which
        cancels the request."""
        start = time.perf_counter()
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with self._request("POST", "/v1/chat/completions", body) as reply:
            for event in _events(reply):
                if error := event.get("error"):
                    raise CliError(f"the server ended the answer: {error.get('message', error)}")
                answer.usage = event.get("usage") or answer.usage
                for choice in event.get("choices", ()):
                    answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
                    if text := choice["delta"].get("content"):
                        answer.first_s = answer.first_s or time.perf_counter() - start
                        answer.text += text
                        yield text
        answer.total_s = time.perf_counter() - start

    @contextmanager
    def _request(self, method: str, path: str, body: Any = None) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection(self._netloc, timeout=self._timeout_s)
        try:
            payload = None if body is None else json.dumps(body)
            headers = {**self._headers, "Content-Type": "application/json"}
            connection.request(method, self._prefix + path, payload, headers)
            reply = connection.getresponse()
            if reply.status != 200:
                hint = "By --api-key, or HOSTLESS_API_KEY" if reply.status == 401 else ""
                raise CliError(f"{self.url}{path} answered {reply.status}: {_message(reply.read())}", hint)
            yield reply
        except TimeoutError:
            raise CliError(f"{self.url} was silent for {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise CliError(
                f"nothing answers at {self.url}: {error or type(error).__name__}",
                "Start it with: hostless up. At another port or host: --url, or HOSTLESS_URL",
            ) from None
        finally:
            connection.close()


def _server(url: str) -> SplitResult | None:
    """The URL's parts; None unless it names a server."""
    try:
        parts = urlsplit(url)
        named = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or half an IPv6 address
        return None
    return parts if named and parts.scheme in ("http", "https") else None


def _events(reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON of each SSE event until [DONE]; raises CliError when the stream ends before."""
    for line in reply:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    raise CliError("the server closed the stream before its end")


def _message(body: bytes) -> str:
    """The message of an OpenAI error body; of any other body, its start."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:300].decode(errors="replace").strip() or "no body"
