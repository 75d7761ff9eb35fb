"""`hostless fabric check`, on a /sys made up for it."""

from pathlib import Path
from typing import Any

import pytest

from services.fabric.lanes import LANES
from services.fabric.operations import TrafficClass
from services.fabric.verbs.inventory import Finding, Verdict, findings

DSCP = LANES[TrafficClass.MODEL].dscp
MAPPED = f"DSCP {DSCP} is priority 3"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def port(sys: Path, device: str, *, state: str = "4: ACTIVE", layer: str = "Ethernet", gid: str = "RoCE v2") -> Path:
    folder = sys / "class/infiniband" / device / "ports/1"
    for name, text in (("state", state), ("link_layer", layer), ("rate", "400 Gb/sec (4X NDR)")):
        put(folder / name, text + "\n")
    put(folder / "gid_attrs/types/0", gid + "\n")
    put(folder / "gid_attrs/ndevs/0", "eth7\n")
    return folder


def about(sys: Path, subject: str, dcb: Any = lambda kind, interface: None) -> list[Finding]:
    return [found for found in findings(sys, sys / "dev", dcb) if found.subject.startswith(subject)]


def test_a_machine_with_nothing(tmp_path: Path) -> None:
    assert [found.verdict for found in about(tmp_path, "devices")] == [Verdict.MISSING]
    (nodes,) = about(tmp_path, "uverbs")
    assert nodes.verdict is Verdict.MISSING
    assert "modprobe ib_uverbs" in nodes.advice


def test_a_port_that_is_down_is_no_obstacle(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", state="1: DOWN")
    assert [(found.verdict, found.fact.split(",")[0]) for found in about(tmp_path, "mlx5_0")] == [
        (Verdict.ADVICE, "DOWN")
    ]


def test_infiniband_asks_for_lanes(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", layer="InfiniBand", gid="")
    assert "subnet manager map model: SL 1, kv: SL 0" in about(tmp_path, "mlx5_0")[-1].advice


def test_ethernet_without_roce_v2_is_missing_something(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", gid="IB/RoCE v1")
    assert Verdict.MISSING in {found.verdict for found in about(tmp_path, "mlx5_0")}


@pytest.mark.parametrize(
    ("app", "pfc", "facts"),
    [
        ({}, {"prio_pfc": [[3, True]]}, [f"DSCP {DSCP} of model traffic has no priority"]),
        ({"dscp_prio": [[DSCP, 3]]}, {"prio_pfc": [[3, False]]}, [MAPPED, "PFC is off for priority 3"]),
        ({"dscp_prio": {str(DSCP): 3}}, {"prio_pfc": {"3": True}}, [MAPPED, "PFC is on for priority 3"]),
        (None, None, ["PFC and DSCP can't be read here"]),
    ],
)  # fmt: skip
def test_priorities_of_ethernet(tmp_path: Path, app: Any, pfc: Any, facts: list[str]) -> None:
    port(tmp_path, "mlx5_0")
    asked = {"app": app, "pfc": pfc}
    found = about(tmp_path, "mlx5_0 port 1, eth7", lambda kind, interface: asked[kind])
    assert [one.fact for one in found if "ECN" not in one.fact] == facts


def test_ecn(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0")
    ecn = tmp_path / "class/net/eth7/ecn"
    put(ecn / "roce_np/enable/3", "1\n")
    put(ecn / "roce_rp/enable/3", "0\n")
    assert about(tmp_path, "mlx5_0 port 1, eth7")[-1].fact == "ECN is off for roce_rp/3"
    put(ecn / "roce_rp/enable/3", "1\n")
    assert about(tmp_path, "mlx5_0 port 1, eth7")[-1].fact == "ECN is on"
