"""Is what the docs name there? Relative links and their headings, `make` targets, `hostless` commands and flags,
HOSTLESS_ variables, modules that are run, and paths of this project."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import typer.main

from services.cli.main import app
from services.cli.mesh import given

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
_MAKE = re.compile(r"(?:^|[;&]\s*)make ((?:[a-z]+)(?: [a-z]+)*)", re.MULTILINE)
_HOSTLESS = re.compile(r"(?:^|[/;&|]\s*|-- )hostless ([a-z]+)((?: +(?!-- )[^\s|;&`]+)*)", re.MULTILINE)
_VARIABLE = re.compile(r"\bHOSTLESS_[A-Z_]*[A-Z]\b")
_PATH = re.compile(r"(?:services|protos|tests|bench|docs|compose|scripts|cmake)/[\w./-]*\w")
_MODULE = re.compile(r"python -m ((?:bench|services)\.[\w.]+\w)")
_FENCE = re.compile(r"```.*?```", re.DOTALL)


def problems(root: Path, files: Iterable[str]) -> Iterator[str]:
    """One line a thing that is named and not there."""
    for name in files:
        text = (root / name).read_text()
        for problem in [
            *_links(root / name, text),
            *_commands(root, text),
            *_variables(root, text),
            *_modules(root, text),
            *_paths(root, text),
        ]:
            yield f"{name}: {problem}"


def _links(page: Path, text: str) -> Iterator[str]:
    for target in _LINK.findall(_FENCE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue  # another site's
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists():
            yield f"link to {target}: no such file"
        elif heading and heading not in _headings(file):
            yield f"link to {target}: no such heading"


@cache
def _headings(page: Path) -> frozenset[str]:
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines)


def _commands(root: Path, text: str) -> Iterator[str]:
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text(), re.MULTILINE))
    for code in (a or b for a, b in _CODE.findall(text)):
        for words in _MAKE.findall(code):
            yield from (f"make {word}: no such target" for word in words.split() if word not in targets)
        for command, rest in _HOSTLESS.findall(code):
            yield from _arguments(command, rest)


def _arguments(command: str, rest: str) -> Iterator[str]:
    group = typer.main.get_command(app)
    found = getattr(group, "commands", {}).get(command)
    if found is None:
        yield f"hostless {command}: no such command"
        return
    words = rest.split("#")[0].split()
    while words and (inner := getattr(found, "commands", {}).get(words[0])) is not None:
        found, command = inner, f"{command} {words.pop(0)}"
    known = {option for parameter in found.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if command == "up":
        known |= given.options().keys()
    for word in words:
        flag = word.split("=")[0]
        if flag.startswith("-") and flag not in known | {"--help", "-", "--"}:
            yield f"hostless {command} {flag}: no such flag"


def _variables(root: Path, text: str) -> Iterator[str]:
    for variable in sorted(set(_VARIABLE.findall(text))):
        if variable not in _known_variables(root):
            yield f"{variable}: nothing reads it"


@cache
def _known_variables(root: Path) -> frozenset[str]:
    import settings_page

    source = "".join(path.read_text() for path in (root / "services").rglob("*.py"))
    return frozenset(_VARIABLE.findall(source)) | settings_page.variables()


def _modules(root: Path, text: str) -> Iterator[str]:
    for module in _MODULE.findall(text):
        place = root.joinpath(*module.split("."))
        files = (place.with_suffix(".py"), place / "__main__.py")
        if module.rpartition(".")[2] != "NAME" and not any(file.exists() for file in files):
            yield f"python -m {module}: no such module"


def _paths(root: Path, text: str) -> Iterator[str]:
    for code in (b for _, b in _CODE.findall(text)):
        if _PATH.fullmatch(code) and not (root / code).exists():
            yield f"{code}: no such file or folder"
