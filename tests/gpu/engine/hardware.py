"""Whether this machine can run the graph engine; imported by tests that need it."""

import pytest
import torch

pytest.importorskip("triton", reason="NOT RUN: triton is not installed")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("NOT RUN: needs an NVIDIA GPU of compute capability 9.0 or more", allow_module_level=True)
