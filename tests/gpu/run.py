"""Runs tests/gpu on this machine: each file in a process of its own, one after another, each with a time limit.

    python -m tests.gpu.run OUT [FILE ...] [--limit 120] [--sanitize]

One after another, because an engine that is killed while its kernel lives can end others' work on the GPU with it. A
failure, or a file that runs into its limit, doesn't keep the next one from running; whatever a file has started is
ended with it. OUT gets each file's log and JUnit report, and results.json. --sanitize adds short runs under
compute-sanitizer (short_runs.py), where that is installed. Exit code 1 if anything failed or nothing was run.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SANITIZED = (("scheduler", "memcheck"), ("scheduler", "racecheck"), ("engine", "memcheck"))
_FOUND = 99
_SUBREAPER = 36
_LEAVE_S = 10.0
"""To end after a signal."""


@dataclass
class Result:
    name: str
    seconds: float
    ending: str
    """`ok`, `failed`, `time limit`, or `not run`."""
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    words: list[str] = field(default_factory=list)
    """Of each failure, or why nothing was run."""


def orphans_are_mine() -> None:
    """Who loses its parent becomes a child of this process, so that it can be found and ended."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def end_all() -> None:
    """Everything that descends from this process: asked first, then killed."""
    for how, patience in ((signal.SIGTERM, _LEAVE_S), (signal.SIGKILL, _LEAVE_S)):
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        give_up = time.monotonic() + patience
        while time.monotonic() < give_up:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not descendants(os.getpid()):
                return
            time.sleep(0.02)


def ended(command: Sequence[str], log: Path, limit_s: float) -> tuple[int | None, float]:
    """Exit code, None at the time limit; seconds."""
    begin = time.monotonic()
    code: int | None = None
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # fixtures are torn down, and a scheduler on the GPU stopped
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAVE_S)
        finally:
            end_all()
    return code, time.monotonic() - begin


def read_report(path: Path, result: Result) -> None:
    """JUnit's, if there is one."""
    if not path.exists():
        return
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        bad = [child for child in case if child.tag in ("failure", "error")]
        skipped = [child for child in case if child.tag == "skipped"]
        result.failed += bool(bad)
        result.skipped += bool(skipped and not bad)
        result.passed += not (bad or skipped)
        for each in bad or skipped:
            message = each.get("message") or ""
            if message == "collection skipped":  # of a whole file: the reason is elsewhere
                message = (each.text or "").rpartition("Skipped: ")[2].rstrip("')")
            if not any(words.endswith(message[:300]) for words in result.words):
                result.words.append(f"{case.get('name')}: {message[:300]}")


def run_file(file: Path, out: Path, limit_s: float) -> Result:
    name = str(file.relative_to(ROOT / "tests/gpu").with_suffix("")).replace("/", "-")
    report = out / f"{name}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", str(file), "-v", "-p", "no:cacheprovider", "--durations=5",
               f"--junit-xml={report}"]  # fmt: skip
    code, seconds = ended(command, out / f"{name}.log", limit_s)
    result = Result(name, round(seconds, 1), "failed")
    read_report(report, result)
    if code is None:
        result.ending = "time limit"
    elif code in (0, 5) and not result.passed:
        result.ending = "not run"
    elif code == 0:
        result.ending = "ok"
    if not result.words and code not in (0, 5):
        result.words = [f"pytest ended with {code}", *(out / f"{name}.log").read_text().splitlines()[-3:]]
    return result


def run_sanitized(what: str, tool: str, out: Path, limit_s: float) -> Result:
    name = f"{tool}-{what}"
    if (program := _sanitizer()) is None:
        return Result(name, 0, "not run", words=["compute-sanitizer is not installed"])
    command = [program, "--tool", tool, "--error-exitcode", str(_FOUND), "--target-processes", "application-only",
               "--report-api-errors", "no", sys.executable, "-m", "tests.gpu.short_runs", what]  # fmt: skip
    code, seconds = ended(command, out / f"{name}.log", limit_s)
    lines = (out / f"{name}.log").read_text(errors="replace").splitlines()
    ending = {0: "ok", None: "time limit"}.get(code, "failed")
    told = [line for line in lines if line.startswith("=========")][:6] if ending == "failed" else lines[-2:]
    return Result(name, round(seconds, 1), ending, int(ending == "ok"), int(ending == "failed"), words=told)


def _sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which("/usr/local/cuda/bin/compute-sanitizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", nargs="*", type=Path, help="files and folders of tests/gpu; else all")
    parser.add_argument("--limit", type=float, default=150, help="seconds of one file")
    parser.add_argument("--sanitize", action="store_true", help="also under compute-sanitizer")
    parser.add_argument("--only-sanitize", action="store_true")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    orphans_are_mine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # what was started is ended
    places = [place.resolve() for place in given.files or [ROOT / "tests/gpu"]]
    files = [file for place in places for file in (sorted(place.rglob("test_*.py")) if place.is_dir() else [place])]
    results: list[Result] = []

    def keep(result: Result) -> None:
        results.append(result)
        rows = [asdict(each) for each in results]
        (given.out / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
        print(line(result), flush=True)

    for file in [] if given.only_sanitize else files:
        keep(run_file(file, given.out, given.limit))
    for what, tool in SANITIZED if given.sanitize or given.only_sanitize else ():
        keep(run_sanitized(what, tool, given.out, given.limit))
    print(f"{'':-<60}")
    for result in results:
        print(line(result))
        if result.ending != "ok":
            print(*(f"    {words}" for words in result.words[:8]), sep="\n")
    bad = sum(result.ending not in ("ok", "not run") for result in results)
    passed = sum(result.passed for result in results)
    print(f"{passed} passed, {bad} of {len(results)} runs failed, {sum(result.seconds for result in results):.0f} s")
    sys.exit(1 if bad or not passed else 0)


def line(result: Result) -> str:
    counts = f"{result.passed} passed, {result.failed} failed, {result.skipped} skipped"
    return f"{result.name:<36} {result.ending:<11} {result.seconds:6.1f} s  {counts}"


if __name__ == "__main__":
    main()
