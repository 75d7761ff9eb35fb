"""hostless status: against a real global scheduler servicer, a fake gateway and what is not there."""

import io
import json

import grpc
import pytest
from rich.console import Console
from typer.testing import CliRunner

from hostless.v1 import scheduler_pb2 as pb
from hostless.v1 import scheduler_pb2_grpc
from services.cli.errors import CliError
from services.cli.main import app
from services.cli.mesh import run_folder, snapshot, tables
from services.cli.mesh.run_folder import Mesh, RunFolder, RunningService
from services.common import rpc
from tests.cli.conftest import FakeOpenAi

METRICS = b"""# TYPE hostless:num_requests_running gauge
hostless:num_requests_running{model_name="a"} 2
hostless:num_requests_running{model_name="b"} 1
# TYPE hostless:generation_tokens counter
hostless:generation_tokens_total{model_name="a"} 1234
"""


class Scheduler(scheduler_pb2_grpc.GlobalSchedulerServicer):
    async def Status(self, request: pb.StatusRequest, context: object) -> pb.MeshStatus:
        report = pb.EngineReport(
            running=2,
            waiting=1,
            free_pages=60,
            slot_states=[5, 1, 0, 2],
            prompt_tokens=25,
            cached_tokens=75,
            generated_tokens=1234,
            accepting=True,
        )
        info = pb.EngineInfo(engine_id="one", model="tiny", page_count=64)
        gone = pb.EngineInfo(engine_id="two", model="tiny", page_count=64)
        return pb.MeshStatus(
            engines=[pb.EngineStatus(info=info, report=report, live=True), pb.EngineStatus(info=gone, live=False)]
        )


def register(server: grpc.aio.Server) -> None:
    scheduler_pb2_grpc.add_GlobalSchedulerServicer_to_server(Scheduler(), server)


def mesh(gateway: str, scheduler: str) -> Mesh:
    return Mesh(
        1,
        f"http://{gateway}",
        0.0,
        (
            RunningService("kvstore", 10, "127.0.0.1:9", "127.0.0.1:8", "", 0),
            RunningService("global_scheduler", 11, scheduler, "", "", 2),
            RunningService("gateway", 12, gateway, "", "", 0),
        ),
    )


async def test_all_that_is_known(server: FakeOpenAi) -> None:
    server.pages |= {"/ready": b"", "/metrics": METRICS}
    async with rpc.serve("127.0.0.1:0", register, ["hostless.v1.GlobalScheduler"]) as scheduler:
        seen = await snapshot.take(mesh(server.url.removeprefix("http://"), f"127.0.0.1:{scheduler.port}"))
    assert (seen.ready, seen.reason, seen.scheduler_problem) == (True, "", "")
    assert [(s.name, s.healthy) for s in seen.services] == [
        ("kvstore", False),
        ("global_scheduler", True),
        ("gateway", True),
    ]
    one, two = seen.engines
    assert one.slots == {"empty": 5, "prefill_pending": 1, "decode_processing": 2}
    assert one.hit_rate == 0.75
    assert (two.live, two.hit_rate) == (False, 0.0)
    assert seen.figures == {"running": 3, "waiting": 0, "generated tokens": 1234}

    shown = drawn(seen, 200)
    for part in (
        "ready",
        "generated tokens 1,234",
        "decode_processing 2",
        "4 / 64",
        "75%",
        "127.0.0.1:8",
        "gone",
        "accepting",
    ):
        assert part in shown

    narrow = drawn(seen, 60)
    assert max(map(len, narrow.splitlines())) <= 60
    for part in ("accepting", "gone", "unified", "up", "nothing listens there"):
        assert part in narrow
    assert "decode_processing" not in narrow


def drawn(seen: snapshot.Snapshot, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    for table in tables.of(seen, width):
        console.print(table)
    return console.export_text()


async def test_what_is_away_is_part_of_the_picture() -> None:
    seen = await snapshot.take(mesh("127.0.0.1:9", "127.0.0.1:9"))
    assert not seen.ready
    assert "127.0.0.1:9" in seen.scheduler_problem
    assert seen.figures == {}
    assert "nothing listens there" in drawn(seen, 100)


@pytest.mark.parametrize(("scheme", "path"), [("http://", ""), ("http://", "/v1/"), ("", "")])
def test_the_command_on_a_mesh_elsewhere(server: FakeOpenAi, scheme: str, path: str) -> None:
    server.pages |= {"/ready": b"", "/metrics": METRICS}
    url = scheme + server.url.removeprefix("http://") + path
    result = CliRunner().invoke(app, ["status", "--url", url, "--scheduler", "127.0.0.1:9", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["ready"] is True


@pytest.mark.parametrize("page", [b"<html>", b"\xff\xfe"])
def test_what_is_no_gateway_has_no_figures(server: FakeOpenAi, page: bytes) -> None:
    server.pages["/metrics"] = page
    assert snapshot._figures(server.url) == {}


def test_nothing_there_yet() -> None:
    folder = RunFolder()
    with pytest.raises(CliError, match="starting") as caught:
        CliRunner().invoke(app, ["status", "--scheduler", "127.0.0.1:9"], catch_exceptions=False)
    assert str(folder.path) in caught.value.hint
    with pytest.raises(CliError, match="nothing answers"):  # another one was asked for
        CliRunner().invoke(
            app, ["status", "--url", "127.0.0.1:9", "--scheduler", "127.0.0.1:9"], catch_exceptions=False
        )
    folder.close()
    assert run_folder.starting() is None


def test_nothing_there() -> None:
    with pytest.raises(CliError, match="nothing answers"):
        CliRunner().invoke(
            app, ["status", "--url", "127.0.0.1:9", "--scheduler", "127.0.0.1:9"], catch_exceptions=False
        )
