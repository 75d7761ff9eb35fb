"""The docs checks of `make check` see what is wrong, and nothing in what is right."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def check_docs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", [str(SCRIPTS), *sys.path])
    import check_docs

    return check_docs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "Makefile").write_text("help: ## x\ndemo: a ## y\n")
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "a.py").write_text('os.environ["HOSTLESS_MODELS"]')
    (tmp_path / "other.md").write_text("# Big words, small\n")
    return tmp_path


RIGHT = """[a](other.md) [b](other.md#big-words-small) [c](https://x.y/z) [d](#here) `services/a.py` HOSTLESS_MODELS
# Here
`make demo`, and make your own; `python -m services.a`, `python -m services.NAME`; the hostless command.
```
make demo
hostless up --port 1 -- hostless chat -m "x" --temperature 0
git diff | hostless chat --message -   # --comment
hostless fit attention --picture a.svg
HOSTLESS_GATEWAY_MAX_QUEUE=1
```
"""


def test_nothing_wrong(check_docs: ModuleType, root: Path) -> None:
    (root / "page.md").write_text(RIGHT)
    assert list(check_docs.problems(root, ["page.md"])) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a](gone.md)", "gone.md: no such file"),
        ("[a](other.md#gone)", "other.md#gone: no such heading"),
        ("`make gone`", "make gone: no such target"),
        ("```\nmake demo gone\n```", "make gone: no such target"),
        ("`hostless gone`", "hostless gone: no such command"),
        ("`hostless up --gone 1`", "hostless up --gone: no such flag"),
        ("`hostless up -- hostless chat --gone`", "hostless chat --gone: no such flag"),
        ("`hostless fit attention --gone`", "hostless fit attention --gone: no such flag"),
        ("HOSTLESS_GONE", "HOSTLESS_GONE: nothing reads it"),
        ("`python -m bench.gone --help`", "python -m bench.gone: no such module"),
        ("`services/gone.py`", "services/gone.py: no such file"),
    ],
)
def test_each_kind_is_seen(check_docs: ModuleType, root: Path, text: str, says: str) -> None:
    (root / "page.md").write_text(text)
    [problem] = check_docs.problems(root, ["page.md"])
    assert problem.startswith(f"page.md: {'link to ' * text.startswith('[')}{says}")
