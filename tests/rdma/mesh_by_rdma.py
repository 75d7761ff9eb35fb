"""A mesh whose rings and blocks move by RDMA alone: the tokenizer on one device, engine and store on the other."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from services.cli.mesh.process import Child
from tests.mesh.harness import Mesh, mesh_of

OWNERS = {"HOSTLESS_GPU_BACKEND_TRANSPORT": "verbs", "HOSTLESS_KVSTORE_TRANSPORT": "verbs"}
PATIENCE = {
    "HOSTLESS_GPU_BACKEND_LEASE_TTL_MS": "30000",
    "HOSTLESS_GLOBAL_SCHEDULER_LEASE_MS": "30000",
    "HOSTLESS_TOKENIZER_KV_LOOKUP_S": "5",
    "HOSTLESS_TOKENIZER_ENGINE_WAIT_S": "30",
}
"""An emulated machine on a busy one may stand still for seconds."""

NEAR, FAR = "rxe0", "rxe1"
"""Devices of the tokenizer, and of engine and store."""


class MeshByRdma(Mesh):
    start_s = 240.0
    """An emulated machine is slow, and all services start at once."""

    def launch(self, name: str) -> None:
        device = {"HOSTLESS_RDMA_DEVICE": NEAR if name == "tokenizer" else FAR}
        plan = self.plans[name] = replace(self.plans[name], ready_s=self.start_s, stop_s=60.0)
        self.children[name] = Child(plan.command, self.folder / f"{name}.log", {**self.environ, **device})


@asynccontextmanager
async def mesh_by_rdma(folder: Path, options: MeshOptions) -> AsyncIterator[Mesh]:
    async with mesh_of(MeshByRdma, folder, options, **OWNERS, **PATIENCE) as running:
        yield running


def mapped_files(pid: int) -> set[str]:
    """Files that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {fields[5] for fields in (line.split(maxsplit=5) for line in lines) if len(fields) == 6}


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


needs_cable = pytest.mark.skipif(
    not Path("/sys/class/infiniband/rxe1").exists(), reason="runs in the virtual machine of tests/rdma/test_machine.py"
)
