"""The node before each layer of a prefill graph (kernels/layer_gate.cuh), and what it shares with the KV agent (D6)."""

import contextlib

import numpy as np
import torch
from numpy.typing import NDArray

from services.gpu_backend.device import driver
from services.gpu_backend.device.device_layers import DeviceLayers
from services.gpu_backend.device.driver import MappedMemory
from services.gpu_backend.device.pass_tables import PassTables, tables_bytes
from services.gpu_backend.engines.cuda.memory_views import StepTensors
from services.gpu_backend.engines.cuda.nvrtc import KernelModule

GATE: np.dtype[np.void] = np.dtype(
    [("words", "<u8"), ("begun", "<u8"), ("patience_ns", "<u8"), ("told", "<u8"), ("lanes", "<u4"),
     ("lane_pages", "<u4"), ("tells", "<u4"), ("waits", "<u4")]
)  # fmt: skip
"""layer_gate.cuh's Gate, without the `waiting` at its end."""
_THREADS = 128


class LayerGate:
    """Of one engine. Made before graphs are captured; `connect` comes before the first step.

    A step reads a lane's word in host memory: over the bus that takes a microsecond, and only while the step waits or
    begins; in device memory the agent could write it by a copy only, which takes several.
    """

    def __init__(self, lanes: int, lane_pages: int, patience_s: float) -> None:
        """patience_s: a step that has waited so long for one layer fails. The agent's deadlines are shorter."""
        self._lanes, self._lane_pages = lanes, lane_pages
        with contextlib.ExitStack() as held:
            self._tables = held.enter_context(contextlib.closing(MappedMemory(tables_bytes(lanes, lane_pages))))
            self._gate = torch.zeros(GATE.itemsize + 4 * lanes, dtype=torch.uint8, device="cuda")
            self._module = KernelModule("layer_gate.cu")
            self._first = np.zeros(1, GATE)
            self._first["begun"], self._first["patience_ns"] = self._tables.address, round(patience_s * 1e9)
            self._first["lanes"], self._first["lane_pages"] = lanes, lane_pages
            driver.copy_in(self._gate.data_ptr(), self._first)
            self._held = held.pop_all()

    def connect(self, words: int, memory: NDArray[np.uint8], offset: int) -> DeviceLayers:
        """As StepGate.connect; while no scheduler runs."""
        self._first["words"] = words
        driver.copy_in(self._gate.data_ptr(), self._first)
        return DeviceLayers(memory, offset, self._lanes, PassTables(self._tables.view, self._lanes, self._lane_pages))

    def __call__(self, layer: int, layers: int, step: StepTensors) -> None:
        """Launches the node before `layer`, or behind the last one."""
        arguments = (
            self._gate, step.sequences, step.sequence_count, step.block_tables, step.error, layer, layers
        )  # fmt: skip
        self._module.launch("pass_layer", 1, _THREADS, arguments)

    def close(self) -> None:
        """Graphs that hold the node are gone."""
        self._held.close()
