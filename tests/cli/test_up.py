"""What hostless up plans, refuses and remembers; the processes are test_supervisor.py's."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.chat import URL, here
from services.cli.errors import CliError
from services.cli.main import app
from services.cli.mesh import log_tail, ports, run_folder
from services.cli.mesh.checks import SETTINGS
from services.cli.mesh.plan import HOST, MeshOptions, ServicePlan, mesh_plan, ports_needed
from services.cli.mesh.run_folder import Mesh, RunFolder, RunningService
from services.cli.mesh.supervisor import Backoff
from services.common import rpc, settings
from services.gpu_backend.settings import BackendSettings


def plan(options: MeshOptions) -> list[ServicePlan]:
    return mesh_plan(options, list(range(7000, 7000 + ports_needed(options))))


@pytest.mark.parametrize(
    "options",
    [
        MeshOptions(),
        MeshOptions(kvstore=False, engines=3, threads=2, model="other", host="0.0.0.0"),
        MeshOptions(engine="synthetic", rate=60.5, grace_s=0.5, log_level="debug"),
        MeshOptions(engine="cuda", engines=2),
        MeshOptions(engine="cuda", scheduler="host-overlap", kvstore=False),
    ],
)
def test_every_service_understands_its_flags_and_finds_the_others(options: MeshOptions) -> None:
    plans = plan(options)
    parsed = {}
    for service in plans:
        own: Any = settings.load(SETTINGS[service.section], service.section, service.flags, {})
        parsed[service.name] = own
    addresses = {service.name: service.address for service in plans}
    kvstore, scheduler = addresses.get("kvstore", ""), addresses["global_scheduler"]
    for name, own in parsed.items():
        if hasattr(own, "kvstore"):
            assert (name, own.kvstore) == (name, kvstore)
        if hasattr(own, "scheduler"):
            assert (name, own.scheduler) == (name, scheduler)
    assert parsed["gateway"].tokenizer == addresses["tokenizer"]
    assert parsed["gateway"].host == options.host
    assert plans[-1].probe == "http://127.0.0.1:8000/ready"
    engines = [own for name, own in parsed.items() if name.startswith("gpu_backend")]
    assert len(engines) == options.engines
    assert all(engine.engine == options.engine for engine in engines)
    assert not options.rate or engines[0].synthetic_tokens_per_s == options.rate
    if options.engine == "cuda":
        assert [engine.gpu for engine in engines] == list(range(options.engines))
        assert {engine.scheduling for engine in engines} == {options.scheduler or "device"}
    used = [a for service in plans for a in {service.address, service.metrics}]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize(
    ("host", "written"), [("0.0.0.0", HOST), ("::", HOST), ("10.0.0.1", "10.0.0.1"), ("::1", "[::1]"), ("box", "box")]
)
def test_where_the_gateway_is_reached(host: str, written: str) -> None:
    gateway = plan(MeshOptions(host=host, port=8001))[-1]
    assert gateway.probe == f"http://{written}:8001/ready"


def test_engines_of_two_roles_take_the_place_of_those_that_do_it_all() -> None:
    plans = {service.name: service for service in plan(MeshOptions(prefill=2, decode=1))}
    engines = ["prefill-0", "prefill-1", "decode-0"]
    assert list(plans) == ["kvstore", "global_scheduler", *engines, "tokenizer", "gateway"]
    roles = [settings.load(BackendSettings, "gpu_backend", plans[name].flags, {}).role for name in engines]
    assert roles == ["prefill", "prefill", "decode"]
    assert plans["global_scheduler"].command[-2:] == ("--policy", "dualpath")
    chosen = plan(MeshOptions(prefill=1, decode=1, policy="basic"))[1]
    assert chosen.command[-2:] == ("--policy", "basic")


@pytest.mark.parametrize(
    "flags",
    [
        ["--prefill", "1"],
        ["--decode", "2"],
        ["--prefill", "1", "--decode", "1", "--no-kvstore"],
        ["--prefill", "1", "--decode", "1", "--engines", "2"],
    ],
)
def test_roles_that_can_serve_nothing_are_refused(flags: list[str]) -> None:
    result = CliRunner().invoke(app, ["up", *flags])
    assert isinstance(result.exception, CliError)


def test_what_a_service_would_refuse_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cli.up.RunFolder", lambda: pytest.fail("it started"))
    for name in ("Here", "There"):
        (tmp_path / "models" / name).mkdir(parents=True)

    def refused(*flags: str) -> CliError:
        error = CliRunner().invoke(app, ["up", "--port", "0", *flags]).exception
        assert isinstance(error, CliError)
        assert error.exit_code == 2
        return error

    error = refused("--model", "nope")
    assert "no model 'nope' in" in str(error)
    assert "Here, There" in error.hint
    assert "hostless pull" in error.hint
    assert "no model" in str(refused("--engine", "synthetic"))  # of which the tokenizer reads the text's side
    (tmp_path / "models" / "SmolLM2-135M-Instruct").mkdir()
    assert "policy" in str(refused("--engine", "synthetic", "--policy", "luck"))
    assert "on 203.0.113.1 " in str(refused("--host", "203.0.113.1"))
    monkeypatch.setenv("HOSTLESS_GATEWAY_MAX_QUEUE", "many")
    assert "gateway: max-queue: 'many' is not" in str(refused("--engine", "synthetic"))


def test_a_service_that_says_what_is_wrong_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "SmolLM2-135M-Instruct").mkdir(parents=True)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOSTLESS_STORE", str(tmp_path / "file"))
    error = CliRunner().invoke(app, ["up", "--port", "0", "--engine", "synthetic"]).exception
    assert isinstance(error, CliError)
    assert (error.exit_code, str(error).startswith(f"kvstore: path: {tmp_path}/file ")) == (1, True), str(error)
    assert error.hint.endswith("kvstore.log")


def test_order_of_starting() -> None:
    names = [service.name for service in plan(MeshOptions(engines=2))]
    assert names == ["kvstore", "global_scheduler", "gpu_backend-0", "gpu_backend-1", "tokenizer", "gateway"]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that this process listens on for the time of a test."""
    with socket.socket() as s:
        s.bind((HOST, 0))
        s.listen(1)
        yield s.getsockname()[1]


def test_a_taken_port_is_named_before_anything_starts(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.up.RunFolder", lambda: pytest.fail("it started"))
    for flag in ("--port", "--base-port"):
        result = CliRunner().invoke(app, ["up", flag, str(taken)])
        assert isinstance(result.exception, CliError)
        assert result.exception.exit_code == 2
        assert f"port {taken} on 127.0.0.1 " in str(result.exception)
        assert flag in str(result.exception)
        assert f"(pid {os.getpid()})" in str(result.exception)


def test_the_holder_is_found_whatever_files_close_meanwhile() -> None:
    lower, s = os.open(os.devnull, os.O_RDONLY), socket.socket()
    with s:
        s.bind((HOST, 0))
        s.listen(1)
        os.close(lower)  # by which the list of files is read next: it is gone when looked at, before the socket
        assert f"(pid {os.getpid()})" in ports.holder(s.getsockname()[1])


def test_not_a_port() -> None:
    with pytest.raises(CliError, match="70000 is not a port"):
        ports.require_free(HOST, 70000, "of the gateway")


def test_free_ports_differ_and_are_free() -> None:
    with ports.free_ports(20, HOST) as found:
        assert len(set(found)) == 20
        for port in found:
            ports.require_free(HOST, port, "")
            assert ports.holder(port) == ""


async def test_free_ports_are_for_who_knows_them_and_for_no_connection() -> None:
    with ports.free_ports(1, HOST) as [port]:
        with socket.socket() as connection, pytest.raises(OSError, match="in use"):
            connection.bind((HOST, port))  # without SO_REUSEADDR, as a connection's own port
        for _ in range(2):  # a service, and its next life
            async with rpc.serve(f"{HOST}:{port}", lambda _: None, [], grace_s=0) as server:
                assert server.port == port


def mesh(url: str = "http://x", pid: int = 1) -> Mesh:
    return Mesh(pid, url, 1.5, (RunningService("gateway", 2, "h:1", "h:2", "/log", 3),))


def test_a_run_is_found_while_it_lives() -> None:
    folder = RunFolder()
    assert run_folder.find() is None
    assert here() == URL
    folder.write(mesh())
    assert run_folder.find() == mesh()
    assert run_folder.find("http://x") == mesh()
    assert here() == mesh().url
    assert run_folder.find("http://y") is None
    folder.close()
    assert run_folder.find() is None


def test_of_two_meshes_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(("20200101-000000", "20200101-000001"))
    monkeypatch.setattr("time.strftime", lambda form: next(times))
    folders = [RunFolder(), RunFolder()]
    for folder, url in zip(folders, ("http://a:1", "http://b:2"), strict=True):
        folder.write(mesh(url))
    assert run_folder.here() == mesh("http://b:2")
    for host in ("a:1", "b:2"):
        for form in ("http://{}", "http://{}/v1/", "{}"):  # as clients take them
            monkeypatch.setenv("HOSTLESS_URL", form.format(host))
            assert run_folder.here() == mesh(f"http://{host}")
    monkeypatch.setenv("HOSTLESS_URL", "http://elsewhere:3")
    assert run_folder.here() is None
    for folder in folders:
        folder.close()


def test_old_runs_go(monkeypatch: pytest.MonkeyPatch) -> None:
    root = run_folder.run_dir()
    for n in range(20):
        (root / f"20200101-0000{n:02}-{n}").mkdir(parents=True)
    RunFolder().close()
    names = sorted(path.name for path in root.iterdir())
    assert len(names) == run_folder.KEEP + 1
    assert names[0] == "20200101-000010-10"


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(first_s=1, longest_s=10)
    assert [backoff.pause_s(n) for n in (0, 1, 2, 3, 4, 50)] == [1, 2, 4, 8, 10, 10]


def test_the_end_of_a_log_for_a_person(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    assert log_tail.read(log, 5) == []
    record = {"time": 1, "level": "error", "service": "x", "message": "broke", "port": 3, "exception": "a\nb"}
    log.write_text(f"plain\n{json.dumps(record)}\n{{}}\n")
    assert log_tail.read(log, 10) == ["plain", "error: broke port=3", "  a", "  b", "{}"]
    assert log_tail.read(log, 1) == ["{}"]
    assert log_tail.reason(log) == ""
    log.write_text(f"{json.dumps(record)}\nhostless x: path: /a is full\n")
    assert log_tail.reason(log) == "path: /a is full"
