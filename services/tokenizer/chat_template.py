"""Chat messages to prompt text, by the model's own jinja2 template, in jinja's sandbox."""

import json
import time
from collections.abc import Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.tokenizer.errors import invalid


class TemplateError(ValueError):
    """The model's template can't be compiled; the message says where."""


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """`special` are the variables for control tokens, such as bos_token and eos_token. Raises TemplateError."""
        environment = _environment()
        try:
            self._variables = meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template does not compile: {error}") from error
        self._special = dict(special)

    def uses(self, variable: str) -> bool:
        """Whether it reads a variable that it is given from outside."""
        return variable in self._variables

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, ready for the assistant's turn. `variables` give way to what templates are always given. Raises
        RequestError with the template's own message."""
        always = {"messages": messages, "tools": tools, "add_generation_prompt": True, **self._special}
        try:
            return self._template.render({**(variables or {}), **always})
        except jinja2.TemplateError as error:
            raise invalid(f"the model's chat template refused the messages: {error}", "messages") from error
        except Exception as error:  # the template's own fault or the messages': either way this request is at an end
            reason = f"{type(error).__name__}: {error}"
            raise invalid(f"the model's chat template failed on these messages: {reason}", "messages") from error


class _Generation(Extension):
    """`{% generation %}`: marks the assistant's text for training; for serving it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: time.strftime(pattern)
    return environment


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
