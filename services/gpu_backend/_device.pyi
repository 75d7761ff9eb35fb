"""Types of the native module `_device` (device/device_module.cpp)."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# C++ structs of device/control.hpp and scheduler/state.hpp, as numpy.dtype takes them.
CONTROL: Any
COUNTERS: Any
MISSION: Any
COUNTERS_OFFSET: int
CONTROL_BYTES: int

class Ending(enum.IntEnum):
    RUNS = ...
    STOPPED = ...
    DEADLINE = ...
    ORPHANED = ...
    STRANDED = ...

def images(
    *,
    ring: NDArray[np.uint8],
    settings: Mapping[str, int],
    decode_graphs: Sequence[int],
    prefill_graphs: Sequence[int],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]: ...
def engine_layout(engine: NDArray[np.uint8]) -> dict[str, int]: ...
def check(
    *, core: NDArray[np.uint8], ring: NDArray[np.uint8], engine: NDArray[np.uint8], agent: NDArray[np.uint8]
) -> str: ...
