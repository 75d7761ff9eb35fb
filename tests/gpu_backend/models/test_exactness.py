"""Real prompts through the default model: a few of bench/exactness.py's; run that for all of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from services.common.paths import models_dir

BENCH = Path(__file__).parents[3] / "bench" / "exactness.py"


@pytest.mark.model
def test_greedy_tokens_equal_transformers() -> None:
    if not any((models_dir() / "SmolLM2-135M-Instruct").glob("*.gguf")):
        pytest.skip("the default model is not here: `hostless pull` fetches it")
    # one thread: two that must wait for each other are slow where tests run beside other work
    command = [sys.executable, str(BENCH), "--only", "6", "--longest", "300", "--tokens", "12", "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all equal: 6 prompts" in done.stdout
