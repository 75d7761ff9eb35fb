"""Roles that change while requests come: none is lost, each gets the tokens of one engine."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.errors import CliError
from services.cli.main import app
from services.cli.mesh.plan import MeshOptions
from tests.mesh.baseline import at_baseline, value
from tests.mesh.harness import PATIENT, Client, client, mesh
from tests.mesh.one_engine import ask, one_engine, prompt
from tests.mesh.tiny_model import NAME, make_tiny_model

pytestmark = pytest.mark.slow  # meshes of four and seven processes that load torch

CLIENTS = 4
NEW_TOKENS = 12
PROMPTS = {f"{salt}": (prompt(salt, 40 + 37 * salt), NEW_TOKENS) for salt in range(6)}


class Crowd:
    """Asks for the same things over and over; `wrong` says what was not right."""

    def __init__(self, c: Client, right: dict[str, str]) -> None:
        self._client, self._right = c, right
        self.answered = 0
        self.wrong: list[str] = []

    async def ask(self, first: int) -> None:
        names = list(PROMPTS)
        while True:
            name = names[first % len(names)]
            first += 1
            answer = await ask(self._client, *PROMPTS[name])
            self.answered += 1
            if answer.error or answer.text != self._right[name]:
                self.wrong.append(f"{name}: {answer}")

    async def goes_on(self) -> None:
        """Requests that came after this call are answered."""
        enough = self.answered + 3 * CLIENTS

        async def answered() -> bool:
            return self.answered >= enough

        await self._client.until("more requests are answered", answered, 60)


@pytest.fixture
async def mesh_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Client, Crowd]]:
    monkeypatch.setenv("HOSTLESS_MODELS", str(tmp_path / "models"))
    make_tiny_model(tmp_path / "models")
    for name in ("one", "three"):
        (tmp_path / name).mkdir()
    right = await one_engine(tmp_path / "one", PROMPTS)
    options = MeshOptions(model=NAME, prefill=1, decode=2, threads=1)
    async with mesh(tmp_path / "three", options, **PATIENT) as m, client(m) as c:
        yield c, Crowd(c, right)


async def test_no_request_is_lost(mesh_of_three: tuple[Client, Crowd]) -> None:
    c, crowd = mesh_of_three
    scheduler = c.mesh.plans["global_scheduler"].address

    async def role(engine: str, to: str) -> Result:
        command = ["role", engine, to, "--scheduler", scheduler]
        return await asyncio.to_thread(CliRunner().invoke, app, command)

    async with asyncio.TaskGroup() as group:  # an error of a client fails the test
        clients = [group.create_task(crowd.ask(number)) for number in range(CLIENTS)]
        await crowd.goes_on()
        refused = await role("prefill-0", "decode")
        assert isinstance(refused.exception, CliError), "nobody would prefill"
        for engine, to in (
            ("decode-1", "prefill"),
            ("prefill-0", "decode"),
            ("decode-0", "unified"),
            ("decode-0", "decode"),
        ):
            done = await role(engine, to)
            assert (done.exit_code, done.output) == (0, f"{engine} is {to} now\n")
            await crowd.goes_on()
        for task in clients:
            task.cancel()
    assert crowd.wrong == []
    await at_baseline(c)
    assert await value(c, "decode-1", "kv_prompts_sent")
    assert await value(c, "prefill-0", "kv_prompts_received")
