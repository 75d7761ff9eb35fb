"""Encoding allocates nothing once a thread has encoded a text of that size: counted in a process of its own."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")

COUNT = """
import ctypes, random
import numpy as np
from services.tokenizer import encoders
from tests.tokenizer.bpe.texts import CORPUS
from tests.tokenizer.conftest import toy_metadata

allocations = ctypes.CDLL(None).allocations
allocations.restype = ctypes.c_long
encoder = encoders.from_gguf(toy_metadata())._native
buffer = np.empty(1 << 20, dtype=np.uint32)
samples = [text for text in CORPUS.values()]
samples += ["".join(random.Random(i).sample(samples, len(samples))) for i in range(5)]
samples += ["hello" * 20000, " " * 100000]
encode = encoder.encode_into
for text in samples:
    encode(text, buffer, False)
for text in samples:
    before = allocations()
    encode(text, buffer, False)
    assert allocations() == before, (allocations() - before, text[:50])
for text in samples:
    encoder.encode(text, False)
for text in [text[:-1] for text in samples]:  # Python has no UTF-8 of these yet
    before = allocations()
    encoder.encode(text, False)
    assert allocations() == before, (allocations() - before, text[:50])
before = allocations()
fresh = bytearray(100000)
assert allocations() > before  # the hook does count
print("none")
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or COMPILER is None, reason="needs glibc and a C compiler")
def test_none_after_the_first_text(tmp_path: Path) -> None:
    assert COMPILER is not None
    hook = tmp_path / "count.so"
    source = ["-x", "c", str(HERE / "count_allocations.c")]
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", *source, "-o", str(hook)], check=True, timeout=60)
    environment = {**os.environ, "LD_PRELOAD": str(hook), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", COUNT],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "none", done.stderr
