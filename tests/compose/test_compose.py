"""The compose stack for real: comes up in order, answers a chat, loses a service and gets it back.

Uses the Docker engine that DOCKER_HOST or the default socket names; with neither, and as root on
Debian, starts a private one from Debian's packages. Otherwise skips, and says so.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.mesh.ports import free_ports
from services.common import paths

pytestmark = [pytest.mark.compose, pytest.mark.slow, pytest.mark.model]

ROOT = Path(__file__).parents[2]
ENGINE = Path(__file__).with_name("engine.sh")
TEST_IMAGE = "hostless-test/debian:1"


def answers(environ: dict[str, str]) -> bool:
    docker = shutil.which("docker")
    return bool(docker) and not subprocess.run([docker, "version"], env=environ, capture_output=True).returncode


@pytest.fixture(scope="module")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment with which docker reaches an engine; BASE_IMAGE is set when the engine is ours."""
    environ = dict(os.environ)
    if answers(environ):
        yield environ
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(
            "NO DOCKER ENGINE: none answers, and starting one needs root on Debian. The compose stack is UNTESTED."
        )
    folder = Path("/var/tmp") / f"hostless-engine-{os.getpid()}"
    try:
        made = subprocess.run([ENGINE, "start", folder], stdout=subprocess.PIPE, text=True, timeout=600, check=True)
        yield {**environ, "DOCKER_HOST": made.stdout.split()[-1], "BASE_IMAGE": TEST_IMAGE}
    finally:
        subprocess.run([ENGINE, "stop", folder], timeout=120, check=False)


class Stack:
    def __init__(self, environ: dict[str, str], port: int) -> None:
        self.environ = {**environ, "PORT": str(port), "COMPOSE_PROJECT_NAME": f"hostless-test-{os.getpid()}"}
        self.url = f"http://127.0.0.1:{port}"
        v2 = not subprocess.run(["docker", "compose", "version"], env=environ, capture_output=True).returncode
        self.program = ["docker", "compose"] if v2 else ["docker-compose"]

    def __call__(self, *words: str, timeout_s: float = 120) -> str:
        command = [*self.program, "-f", str(ROOT / "compose/docker-compose.yml"), *words]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{' '.join(words)}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def chat(self) -> str:
        body = {"model": "SmolLM2-135M-Instruct", "temperature": 0, "max_tokens": 24,
                "messages": [{"role": "user", "content": "What is the capital of France?"}]}  # fmt: skip
        request = urllib.request.Request(
            self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(json.load(response)["choices"][0]["message"]["content"])

    def until_chat(self, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self.chat()
            except OSError as error:
                if time.monotonic() > deadline:
                    pytest.fail(f"no chat within {timeout_s} s: {error}\n{self('ps')}")
                time.sleep(0.5)


@pytest.fixture(scope="module")
def stack(docker: dict[str, str]) -> Iterator[Stack]:
    fill_wheels()
    with free_ports(1, "127.0.0.1") as (port,):
        pass  # not kept: who listens is up to Docker
    running = Stack({**docker, "HOSTLESS_MODELS": str(paths.models_dir())}, port)
    try:
        running("build", timeout_s=1500)
        running("up", "-d", timeout_s=300)
        yield running
    finally:
        running("down", "-v", timeout_s=120)


def fill_wheels() -> None:
    """The torch of this environment's pins, so that the image gets a CPU build where pip finds one here."""
    wheels = ROOT / "compose/wheels"
    if not list(wheels.glob("torch-*.whl")):
        pins = (ROOT / "constraints.txt").read_text().splitlines()
        (torch,) = [line for line in pins if line.startswith("torch==")]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, torch], timeout=600, check=True
        )


def test_answers_a_chat(stack: Stack) -> None:
    assert "Paris" in stack.until_chat(120)


@pytest.mark.parametrize("service", ["tokenizer", "gpu_backend", "gateway"])
def test_a_killed_service_comes_back(stack: Stack, service: str) -> None:
    stack.until_chat(60)
    container = stack("ps", "-q", service).strip()
    pid = subprocess.run(
        ["docker", "inspect", "-f", "{{.State.Pid}}", container],
        env=stack.environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    os.kill(int(pid), 9)  # as a crash would: the engine's restart policy must bring it back
    assert "Paris" in stack.until_chat(120)


def test_containers_have_no_rights(stack: Stack) -> None:
    for service in ("gateway", "tokenizer", "gpu_backend", "kvstore", "global_scheduler"):
        assert stack("exec", "-T", service, "id", "-u").strip() == "10001"
        with pytest.raises(AssertionError, match="Read-only file system"):
            stack("exec", "-T", service, "touch", "/home/hostless/x")
