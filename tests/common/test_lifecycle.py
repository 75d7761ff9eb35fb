"""A service process: its exit codes, its signals, and that it ends with its parent when told to."""

import os
import signal
import subprocess
import sys

from tests.processes import running
from tests.waiting import PATIENCE_S, wait_until

PROGRAM = """
import sys
from services.common import lifecycle, rpc
from services.common.settings import SettingError

async def main(life):
    print("up", flush=True)
    {body}

sys.exit(lifecycle.run("example", main))
"""


def start(body: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stderr


def test_sigterm_ends_with_code_0() -> None:
    process = start("await life.until_stopping()")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 0


def test_second_signal_insists() -> None:
    process = start(
        "import asyncio; await life.until_stopping(); print('asked', flush=True); await asyncio.sleep(3600)"
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 1


def test_a_wrong_setting_is_one_line_and_code_2() -> None:
    code, stderr = finish(start("raise ExceptionGroup('x', [SettingError('port: taken')])"))
    assert (code, stderr) == (2, "hostless example: port: taken\n")


def test_a_wrong_log_level_is_one_line_and_code_2() -> None:
    program = PROGRAM.replace('run("example", main)', 'run("example", main, "loud")').format(body="")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hostless example: log-level: 'loud' is not one of debug, info, warning, error\n"


def test_a_failure_is_logged_and_code_1() -> None:
    code, stderr = finish(start("raise RuntimeError('boom')"))
    assert code == 1
    assert "boom" in stderr


def test_ends_with_its_parent() -> None:
    child_code = PROGRAM.format(body="await life.until_stopping()")
    parent_code = (
        "import os, subprocess, sys, time\n"
        "env = {**os.environ, 'HOSTLESS_PARENT': str(os.getpid())}\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child_code!r}], env=env, stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(3600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    wait_until(lambda: not running(child))
