"""The floors of the house: common < fabric < the services, which know each other by their clients alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SERVICES = sorted(folder.name for folder in (ROOT / "services").iterdir() if (folder / "__init__.py").exists())
SHARED = {"common": {"common"}, "fabric": {"common", "fabric"}}
"""What these floors may import of services/; everything else stands on both."""
STUBS = {
    "engine_pb2_grpc": "gpu_backend",
    "fabric_pb2_grpc": "fabric",
    "frontend_pb2_grpc": "tokenizer",
    "kvstore_pb2_grpc": "kvstore",
    "scheduler_pb2_grpc": "global_scheduler",
}
"""gRPC stubs, and whose they are: only that service's server and client touch them."""


@pytest.mark.parametrize("service", SERVICES)
def test_imports_go_down_or_to_a_client(service: str) -> None:
    faults = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in sorted((ROOT / "services" / service).rglob("*.py"))
        for module in imported(path)
        if not allowed(service, module)
    ]
    assert not faults, "\n".join(faults)


def test_the_rules_themselves() -> None:
    assert allowed("kvstore", "services.fabric.ring")
    assert allowed("tokenizer", "services.kvstore.client")
    assert allowed("cli", "services.global_scheduler.simulator.driver")
    assert allowed("cli", "services.kvstore.settings")
    assert not allowed("gateway", "services.kvstore.settings")
    assert not allowed("gateway", "services.global_scheduler.simulator.driver")
    assert not allowed("tokenizer", "services.kvstore.block")
    assert not allowed("common", "services.kvstore.client")
    assert not allowed("fabric", "services.kvstore.client")
    assert not allowed("gateway", "hostless.v1.frontend_pb2_grpc")
    assert allowed("gateway", "hostless.v1.frontend_pb2")


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; `from a import b` counts as a.b where that is a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if is_module(whole) else str(node.module)


def is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    return name.split(".")[-1] in STUBS or place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def allowed(service: str, module: str) -> bool:
    parts = module.split(".")
    if parts[-1] in STUBS:
        return STUBS[parts[-1]] == service
    if parts[0] != "services":
        return True
    target = parts[1] if len(parts) > 1 else ""
    if target in SHARED.get(service, {service, "common", "fabric"}):
        return True
    if service == "cli" and parts[1:3] in (["global_scheduler", "simulator"], ["global_scheduler", "policy"]):
        return True  # tools that run in the command itself, not a service that it would call
    if service == "cli" and parts[2:] == ["settings"]:
        return True  # what is wrong in them is said before a process is started
    return service not in SHARED and parts[2:] == ["client"]
