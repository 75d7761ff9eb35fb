"""The command line as a whole: quick to load, and what goes wrong with files is said in a line."""

import os
import subprocess
import sys
from pathlib import Path

HOSTLESS = (sys.executable, "-m", "services.cli.main")


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HOSTLESS, *words], env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_takes_its_time_is_loaded_by_who_needs_it() -> None:
    heavy = ("numpy", "grpc", "google.protobuf", "torch", "uvloop", "huggingface_hub")
    program = f"import sys, services.cli.main; print([name for name in {heavy} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert loaded.stdout == "[]\n"


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "models" / "SmolLM2-135M-Instruct").mkdir(parents=True)
    done = run("up", "--engine", "synthetic", "--port", "0", HOSTLESS_RUN=str(tmp_path / "file" / "run"))
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert first == f"hostless: {tmp_path}/file/run: Not a directory"
    assert "HOSTLESS_RUN" in second


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    end, out = os.pipe()
    os.close(end)
    try:
        done = subprocess.run([*HOSTLESS, "up", "-h"], stdout=out, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(out)
    assert b"Traceback" not in done.stderr
