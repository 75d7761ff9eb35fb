"""The GPU, or a loud skip."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def device() -> Iterator[Any]:
    try:
        from services.gpu_backend.device.driver import Device, NoDevice
        from services.gpu_backend.device.toolchain import ToolchainMissing
    except ImportError as missing:
        pytest.skip(f"NOT RUN: {missing}")
    except RuntimeError as missing:
        pytest.skip(f"NOT RUN: {missing}")
    try:
        device = Device()
    except (NoDevice, ToolchainMissing) as error:
        pytest.skip(f"NOT RUN: {error}")
    yield device
    device.close()
