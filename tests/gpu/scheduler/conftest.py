"""The GPU, or a loud skip."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def device() -> Iterator[Any]:
    from services.gpu_backend.device.driver import Device, NoDevice

    try:
        device = Device()
    except NoDevice as error:
        pytest.skip(f"NOT RUN: {error}")
    yield device
    device.close()
