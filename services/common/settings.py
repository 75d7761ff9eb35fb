"""Typed settings: one frozen dataclass a service, filled from flags, then the environment, then defaults.

A field `max_queue` of section "gateway" is `--max-queue` on the command line and
HOSTLESS_GATEWAY_MAX_QUEUE in the environment. A field that counts bytes (`..._bytes`, `..._bytes_s`)
takes a unit too: 4GiB. A key that no field has, or a value that doesn't parse, is an error that names it.
"""

import argparse
import dataclasses
import difflib
import os
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from services.common import sizes

T = TypeVar("T")

KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


class SettingError(ValueError):
    """A setting is unknown, malformed or contradicts another one; the message names it."""


def setting(default: Any, help: str) -> Any:
    """A field of a settings class: its default and what `--help` says of it."""
    return dataclasses.field(default=default, metadata={"help": help})


def load(
    cls: type[T],
    section: str,
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
    description: str = "",
) -> T:
    """Makes `cls` from argv (default: none), environ (default: os.environ) and its defaults.

    Raises SettingError; `--help` prints every setting and exits.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    environ = os.environ if environ is None else environ
    raw = _from_environment(section, fields, environ)
    raw.update(_from_flags(section, fields, list(argv or ()), description))
    values = {name: _parse(name, hints[name], text) for name, text in raw.items()}
    return cls(**values)


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _variable(section: str, name: str) -> str:
    return f"HOSTLESS_{section}_{name}".upper().replace("-", "_")


def _from_environment(section: str, fields: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    known = {_variable(section, name): name for name in fields}
    prefix = _variable(section, "")
    found = {}
    for variable, value in environ.items():
        if not variable.startswith(prefix):
            continue
        if variable not in known:
            like = difflib.get_close_matches(variable, known, n=3)
            names = f"like it: {', '.join(like)}" if like else f"known: {', '.join(sorted(known))}"
            raise SettingError(f"environment variable {variable} is not a setting of {section}; {names}")
        found[known[variable]] = value
    return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message}; --help lists every setting")


def _from_flags(section: str, fields: Mapping[str, Any], argv: list[str], description: str) -> dict[str, str]:
    parser = _Parser(
        prog=f"python -m services.{section}",
        description=description or None,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, field in fields.items():
        parser.add_argument(
            "--" + _flag(name),
            dest=name,
            default=None,
            metavar="VALUE",
            help=f"{field.metadata.get('help', '')} [{_variable(section, name)}; default: {field.default!r}]".replace(
                "%", "%%"
            ),
        )
    found, unknown = parser.parse_known_args(argv)
    if unknown:
        known = ["--" + _flag(name) for name in fields]
        flag = unknown[0].partition("=")[0]
        like = difflib.get_close_matches(flag, known, n=3)
        names = f"like it: {', '.join(like)}" if like else "--help lists every setting"
        raise SettingError(f"{flag} is not a setting of {section}; {names}")
    return {name: value for name, value in vars(found).items() if value is not None}


def _is_int(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _parse(name: str, kind: Any, text: str) -> Any:
    counts_bytes = kind is int and name.endswith(("_bytes", "_bytes_s"))
    try:
        if kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if counts_bytes and not _is_int(text):
            return sizes.parse_size(text)
        if kind in (int, float, str):
            return kind(text)
        if kind == tuple[str, ...]:
            return tuple(part.strip() for part in text.split(",") if part.strip())
    except (KeyError, ValueError):
        shown = f"a size; for example: {sizes.EXAMPLES}" if counts_bytes else KINDS[kind]
        raise SettingError(f"{_flag(name)}: {text!r} is not {shown}") from None
    raise TypeError(f"settings field {name} has a type that can't be read from text: {kind}")


def require(condition: bool, message: str) -> None:
    """For __post_init__ of settings: raises SettingError(message) unless the condition holds."""
    if not condition:
        raise SettingError(message)


def require_least(settings: object, least: float, *names: str) -> None:
    """For __post_init__: raises SettingError unless each of these fields is at least `least`."""
    for name in names:
        value = getattr(settings, name)
        require(value >= least, f"{_flag(name)}: {value} is below {least:g}")


def require_above(settings: object, bound: float, *names: str) -> None:
    """For __post_init__: raises SettingError unless each of these fields is above `bound`."""
    for name in names:
        value = getattr(settings, name)
        require(value > bound, f"{_flag(name)}: {value} is not above {bound:g}")


def require_addresses(settings: object, *names: str, or_empty: tuple[str, ...] = ()) -> None:
    """For __post_init__: raises SettingError unless each of these fields is host:port with a port from 0 to 65535;
    those in `or_empty` may also be empty."""
    for name in (*names, *or_empty):
        address = getattr(settings, name)
        host, _, port = address.rpartition(":")
        valid = bool(host) and port.isascii() and port.isdigit() and int(port) <= 65535
        require(valid or (not address and name in or_empty), f"{_flag(name)}: {address!r} is not host:port")
