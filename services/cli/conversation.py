"""A conversation with a model: its history, one answer at a time."""

import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from services.cli.openai_api import Answer, OpenAiApi


class Conversation:
    """Keeps the messages; `body` holds the model and the sampling of every request."""

    def __init__(self, api: OpenAiApi, body: Mapping[str, Any], system: str = "", stats: bool = False) -> None:
        self.api = api
        self.stats = stats
        self._body = body
        self._system = system
        self._messages: list[dict[str, str]] = []
        self.reset()

    def reset(self, system: str | None = None) -> None:
        """Forgets all; a given system message replaces the present one."""
        self._system = self._system if system is None else system
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str) -> bool:
        """Prints the answer to stdout as it comes and remembers both. Ctrl-C keeps what has come so far; then the
        result is False.

        Raises CliError; the question is forgotten then, so that it can be asked again.
        """
        whole = True
        asked = [*self._messages, {"role": "user", "content": text}]
        answer = Answer()
        try:
            with closing(self.api.chat({**self._body, "messages": asked}, answer)) as pieces:
                for piece in pieces:
                    sys.stdout.write(piece)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            whole, answer.finish_reason = False, "cut short"
        finally:
            if answer.text:
                print()
        self._messages = [*asked, {"role": "assistant", "content": answer.text}]
        if self.stats:
            print(_figures(answer), file=sys.stderr)
        return whole


def _figures(answer: Answer) -> str:
    """One line on an answer."""
    tokens, cached = answer.usage.get("completion_tokens", 0), _cached(answer.usage)
    parts = [f"first token after {answer.first_s * 1e3:.0f} ms"]
    if tokens > 1 and answer.total_s > answer.first_s:
        parts.append(f"{tokens} tokens at {(tokens - 1) / (answer.total_s - answer.first_s):.1f}/s")
    if prompt := answer.usage.get("prompt_tokens"):
        parts.append(f"prompt {prompt} tokens" + (f", {cached} of them from the KV store" if cached else ""))
    return "  ".join([*parts, f"({answer.finish_reason or 'no finish reason'})"])


def _cached(usage: Mapping[str, Any]) -> int:
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
