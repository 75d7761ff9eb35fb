"""Kernels' sources compiled for the host, so that they are tested where no GPU is. Needs g++."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest


def host_library(folder: Path, glue: str, include: Path, *flags: str) -> ctypes.CDLL:
    """The library that `glue`, C++ around headers in `include`, makes."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    (folder / "glue.cpp").write_text(glue)
    command = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", *flags, f"-I{include}", "glue.cpp", "-o", "lib.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    return ctypes.CDLL(str(folder / "lib.so"))
