"""docs/settings.md, written from the settings classes: python scripts/settings_page.py"""

import dataclasses
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/settings.md"
SERVICES = ("gateway", "tokenizer", "global_scheduler", "kvstore", "gpu_backend")

HEAD = """# Settings

Written by `scripts/settings_page.py` from the services' settings classes; `make check` compares, `make format` renews.

Each service is `python -m services.NAME` with flags; what a flag does not give, the environment does, else the
default holds. What counts bytes takes a unit too (`4GiB`, `512m`). An unknown or malformed setting is an error that
names it. `hostless up` takes all of them but those that it sets itself (addresses, roles), as options
(`--held-bytes 4GiB`; what several services have takes the service's name in front: `--kvstore-transport tcp`) and as
environment.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for service in SERVICES for line in _section(service))])


def problems(root: Path) -> Iterator[str]:
    """Whether the page in `root` is what the classes say now."""
    file = root / PAGE
    if not file.exists() or file.read_text() != page():
        yield f"{PAGE}: not what the settings classes say now"


def variables() -> frozenset[str]:
    """Every environment variable that is a setting."""
    return frozenset(_variable(service, field.name) for service in SERVICES for field in _fields(service))


def _section(service: str) -> Iterator[str]:
    yield f"## {service}\n"
    yield "| flag | environment | default | |"
    yield "|---|---|---|---|"
    for field in _fields(service):
        default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        shown = f"`{default}`" if default != "" else ""
        flag = "--" + field.name.replace("_", "-")
        text = str(field.metadata["help"]).replace("|", "\\|")
        yield f"| `{flag}` | `{_variable(service, field.name)}` | {shown} | {text} |"
    yield ""


def _fields(service: str) -> tuple[dataclasses.Field[Any], ...]:
    module = import_module(f"services.{service}.settings")
    [cls] = [c for c in vars(module).values() if dataclasses.is_dataclass(c) and c.__module__ == module.__name__]
    return dataclasses.fields(cls)


def _variable(service: str, name: str) -> str:
    return f"HOSTLESS_{service}_{name}".upper()


if __name__ == "__main__":
    (ROOT / PAGE).write_text(page())
