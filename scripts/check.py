"""What `make check` runs: every check, each with its time; what failed is shown whole, with how to mend it."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import check_docs
import settings_page

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
FORMAT = "make format"


def run(*command: str) -> str:
    """Empty when the command, of the virtual environment or the system, succeeds; else what it printed."""
    program = BIN / command[0]
    done = subprocess.run(
        [str(program) if program.exists() else command[0], *command[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit code {done.returncode}"


def tracked(*patterns: str) -> list[str]:
    """Files that git knows, and new ones that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in listed if (ROOT / name).exists()]


def types() -> str:
    own = [part for path in sorted((ROOT / "scripts").glob("*.py")) for part in ("-m", path.stem)]
    return run("mypy", "--strict", "-p", "services", "-p", "bench") + run(
        "env", "MYPYPATH=scripts", str(BIN / "mypy"), "--strict", *own
    )


def cpp_format() -> str:
    told = run("clang-format", "--dry-run", "--Werror", *tracked("*.hpp", "*.cpp", "*.cu", "*.cuh"))
    wrong = sorted({match[1] for match in re.finditer(r"^(\S+?):\d+:\d+: error:", told, re.MULTILINE)})
    return "".join(f"{name} is not formatted\n" for name in wrong) or told


def stubs() -> str:
    """The protos compile, and what is installed was made from them."""
    protos = sorted((ROOT / "protos/hostless/v1").glob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
        names = [str(proto) for proto in protos]
        if problem := run("python", "-m", "grpc_tools.protoc", "-I", str(ROOT / "protos"), *out, *names):
            return problem
        made = sorted(Path(folder).rglob("*.py*"))
        return "".join(f"{stub.name} is not what the protos say now\n" for stub in made if not _current(stub))


def _current(stub: Path) -> bool:
    spec = find_spec(f"hostless.v1.{stub.stem}")
    installed = Path(spec.origin).with_name(stub.name) if spec and spec.origin else None
    return installed is not None and installed.exists() and installed.read_bytes() == stub.read_bytes()


def shell() -> str:
    """Shell scripts parse; with shellcheck on the machine, it is content too."""
    scripts = ["scripts/setup", ".ci/run"]
    problems = [
        subprocess.run(["bash", "-n", s], cwd=ROOT, capture_output=True, text=True, check=False) for s in scripts
    ]
    found = "".join(problem.stderr for problem in problems)
    if shutil.which("shellcheck"):
        linted = subprocess.run(["shellcheck", *scripts], cwd=ROOT, capture_output=True, text=True, check=False)
        found += linted.stdout
    return found


def docs() -> str:
    markdown = tracked("*.md")
    return "\n".join([*check_docs.problems(ROOT, markdown), *settings_page.problems(ROOT)])


CHECKS: tuple[tuple[str, Callable[[], str], str], ...] = (
    ("ruff: lint", lambda: run("ruff", "check", "--output-format", "concise", "."), FORMAT),
    ("ruff: format", lambda: run("ruff", "format", "--check", "."), FORMAT),
    ("clang-format", cpp_format, FORMAT),
    ("shell scripts", shell, "by hand"),
    ("gRPC stubs", stubs, "make setup"),
    ("docs", docs, "by hand; the page of settings: make format"),
    ("mypy --strict", types, "by hand"),
)


def main() -> int:
    failed = []
    for name, check, mend in CHECKS:
        start = time.perf_counter()
        problem = check().strip()
        mark = "FAILED" if problem else "ok"
        print(f"{name:<16} {mark:<7} {time.perf_counter() - start:5.1f} s", flush=True)
        if problem:
            failed.append(name)
            print(f"{problem}\n  mend: {mend}\n", flush=True)
    print(
        f"{len(CHECKS) - len(failed)} of {len(CHECKS)} checks passed"
        + (f"; failed: {', '.join(failed)}" * bool(failed))
    )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
