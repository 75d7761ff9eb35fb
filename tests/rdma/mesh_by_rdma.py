"""A mesh whose rings and blocks move by RDMA alone: the tokenizer on one device, engine and store on the other."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.cli.mesh.plan import MeshOptions
from services.cli.mesh.process import Child
from services.cli.models.catalogue import DEFAULT
from tests.mesh.harness import Client, Mesh, client, mesh_of

OWNERS = {"HOSTLESS_GPU_BACKEND_TRANSPORT": "verbs", "HOSTLESS_KVSTORE_TRANSPORT": "verbs"}
PATIENCE = {
    "HOSTLESS_GPU_BACKEND_LEASE_TTL_MS": "120000",
    "HOSTLESS_GLOBAL_SCHEDULER_LEASE_MS": "30000",
    "HOSTLESS_TOKENIZER_KV_LOOKUP_S": "5",
    "HOSTLESS_TOKENIZER_ENGINE_WAIT_S": "30",
    "HOSTLESS_TOKENIZER_POLL_BUSY_S": "0.005",
    "HOSTLESS_TOKENIZER_POLL_IDLE_S": "0.05",
}
"""An emulated machine on a busy one may stand still for seconds, and has little to spare for polls."""

NEAR, FAR = "rxe0", "rxe1"
ON_NEAR = ("tokenizer", "prefill-0")
"""Services on the near device; engines that serve or decode, and the store, are on the far one."""


class MeshByRdma(Mesh):
    start_s = 240.0
    """An emulated machine is slow, and all services start at once."""

    def environ_of(self, name: str) -> dict[str, str]:
        """What a service has of its own."""
        return {"HOSTLESS_RDMA_DEVICE": NEAR if name in ON_NEAR else FAR}

    def launch(self, name: str) -> None:
        plan = self.plans[name] = replace(self.plans[name], ready_s=self.start_s, stop_s=60.0)
        self.children[name] = Child(
            plan.command, self.folder / f"{name}.log", {**self.environ, **self.environ_of(name)}
        )


class PatientClient(Client):
    """Asks for no list of models before each request, which takes an emulated machine longer than that may."""

    served = DEFAULT.model_id

    async def model(self) -> str:
        return self.served


@asynccontextmanager
async def patient_client(mesh: Mesh, model: str = DEFAULT.model_id) -> AsyncIterator[Client]:
    async with client(mesh) as made:
        patient = PatientClient(mesh, made.session)
        patient.served = model
        yield patient


@asynccontextmanager
async def mesh_by_rdma(folder: Path, options: MeshOptions) -> AsyncIterator[Mesh]:
    async with mesh_of(MeshByRdma, folder, options, **OWNERS, **PATIENCE) as running:
        yield running


def regions_mapped(mesh: Mesh) -> dict[str, set[str]]:
    """Names of the regions that each service maps. By inode: a region's file was made without a name."""
    files = {path.stat().st_ino: path.name for path in Path(mesh.environ["HOSTLESS_SHM"]).glob("hostless.*")}
    found = {}
    for name, child in mesh.children.items():
        inodes = {int(line.split()[4]) for line in Path(f"/proc/{child.pid}/maps").read_text().splitlines()}
        found[name] = {region for inode, region in files.items() if inode in inodes}
    return found


def maps_a_device(pid: int) -> bool:
    return "/dev/infiniband/uverbs" in Path(f"/proc/{pid}/maps").read_text()


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


needs_cable = pytest.mark.skipif(
    not Path("/sys/class/infiniband/rxe1").exists(), reason="runs in the virtual machine of tests/rdma/test_machine.py"
)
