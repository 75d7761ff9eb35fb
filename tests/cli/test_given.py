"""Settings of services as options of hostless up: whose they are, and what is said of those that nobody has."""

import ctypes
import dataclasses
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.errors import UsageError
from services.cli.main import app
from services.cli.mesh import given, gpus
from services.cli.mesh.checks import SETTINGS
from services.cli.mesh.plan import MeshOptions, ServicePlan, mesh_plan, ports_needed
from services.cli.up import MOST
from services.common import settings

OWN = ("--port", "--engine")


def plans(options: MeshOptions, *words: str) -> dict[str, ServicePlan]:
    made = mesh_plan(options, list(range(7000, 7000 + ports_needed(options))))
    return {plan.name: plan for plan in given.add(made, given.read(words, OWN))}


def test_the_services_get_them_and_the_rest_is_the_command() -> None:
    words = ["--held-bytes", "4GiB", "--kvstore-lane-port=-1", "--split-reads", "true"]
    found = plans(MeshOptions(engines=2), *words)
    for name in ("gpu_backend-0", "gpu_backend-1"):
        own: Any = settings.load(SETTINGS["gpu_backend"], "gpu_backend", found[name].flags, {})
        assert (own.held_bytes, own.engine_id) == (4 << 30, name)
    store: Any = settings.load(SETTINGS["kvstore"], "kvstore", found["kvstore"].flags, {})
    assert store.lane_port == -1
    assert "--split-reads=true" in found["global_scheduler"].flags
    assert given.read([*words, "run", "--held-bytes", "1"], OWN).command == ["run", "--held-bytes", "1"]
    assert given.read([], OWN).command == []


def test_every_setting_can_be_given() -> None:
    for section, cls in SETTINGS.items():
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            flag = "--" + field.name.replace("_", "-")
            read = given.read([f"--{section.replace('_', '-')}{flag[1:]}", "x"], OWN)
            assert read.flags == {section: [f"{flag}=x"]}
            assert read.names(section, flag)
            assert not read.names("nobody", flag)


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--held-byte", "1"], "--held-byte", "--held-bytes"),
        (["--prot", "1"], "--prot", "--port"),
        (["-x"], "-x", "hostless up --help"),
        (["--transport", "tcp"], "more than one service", "--gpu-backend-transport, --kvstore-transport"),
        (["--held-bytes"], "--held-bytes of gpu_backend needs a value", ""),
        (["--held-bytes", "--max-queue", "5"], "--held-bytes of gpu_backend needs a value", ""),
        (["--held-bytes", "--max-queue=5"], "--held-bytes of gpu_backend needs a value", ""),
    ],
)
def test_what_is_nobodys(words: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        given.read(words, OWN)
    assert hint in caught.value.hint


def test_what_the_mesh_decides_itself() -> None:
    with pytest.raises(UsageError, match="--address of kvstore is set by hostless up"):
        plans(MeshOptions(), "--kvstore-address", "127.0.0.1:1")
    with pytest.raises(UsageError, match="--capacity-bytes is a setting of kvstore"):
        plans(MeshOptions(kvstore=False), "--capacity-bytes", "1GiB")


def test_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.up.RunFolder", lambda: pytest.fail("it started"))

    def refused(*words: str) -> str:
        result = CliRunner().invoke(app, ["up", "--port", "0", "--engine", "synthetic", *words])
        assert isinstance(result.exception, UsageError)
        return str(result.exception)

    assert refused("--held-bytes", "much") == (
        "gpu_backend: held-bytes: 'much' is not a size; for example: 4096, 512k, 200MiB, 1.5g"
    )
    assert "--nothing" in refused("--nothing", "--", "true")
    assert "threads: 'x' is not a whole number" in refused("--engines", "2", "--threads", "x")
    assert "no command 'no-such-command'" in refused("--held-bytes", "1", "--", "no-such-command")
    for option in ("--engines", "--prefill", "--decode"):
        assert CliRunner().invoke(app, ["up", option, str(MOST + 1)]).exit_code == 2


class Driver:
    """libcuda as far as it is asked."""

    def __init__(self, *majors: int) -> None:
        self._majors = majors

    def cuInit(self, flags: int) -> int:
        return 0 if self._majors else 100  # CUDA_ERROR_NO_DEVICE

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self._majors)
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, gpu: int) -> int:
        assert attribute == gpus.MAJOR
        value._obj.value = self._majors[gpu]
        return 0


@pytest.mark.parametrize(
    ("majors", "wanted", "message"),
    [
        ((), [0], "has no NVIDIA GPU"),
        ((9,), [0, 1], "there is no GPU 1; this machine shows 1"),
        ((9, 8), [0, 1], "GPU 1 has compute capability 8; it needs 9.0"),
    ],
)
def test_engine_cuda_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, majors: tuple[int, ...], wanted: list[int], message: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(*majors))
    with pytest.raises(UsageError, match=message) as caught:
        gpus.check(wanted)
    assert "hostless up --engine torch" in caught.value.hint


def test_engine_cuda_needs_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(9, 10))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "triton" else object())
    with pytest.raises(UsageError, match="not installed: triton"):
        gpus.check([0, 1])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    with pytest.raises(UsageError, match="for CPUs only"):
        gpus.check([0])
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0")
    gpus.check([0, 1])


def test_a_machine_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Driver:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(UsageError, match="no driver for it that works"):
        gpus.check([0])
