"""Models of a bundle: unpacked whole, or not at all and said so."""

import hashlib
import io
import lzma
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts import bundle_setup

WEIGHTS = random.Random(3).randbytes(200_000)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a b" / "hostless"
    (folder / "models").mkdir(parents=True)
    monkeypatch.setattr(bundle_setup, "HERE", folder)
    return folder


def packed() -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        info = tarfile.TarInfo("tiny/weights")
        info.size = len(WEIGHTS)
        archive.addfile(info, io.BytesIO(WEIGHTS))
    return lzma.compress(plain.getvalue())


def unpack(here: Path, change: Callable[[bytes], bytes]) -> None:
    data = packed()
    half = len(data) // 2
    (here.parent / "tiny.00").write_bytes(data[:half])
    (here.parent / "tiny.01").write_bytes(change(data[half:]))
    about = {"parts": ["tiny.00", "tiny.01"], "sha256": hashlib.sha256(data).hexdigest()}
    bundle_setup.model("tiny", about, [here.parent])


@pytest.mark.parametrize(
    "change",
    [
        lambda part: part[:-1000],
        lambda part: b"",
        lambda part: bytes(1000) + part[1000:],
        lambda part: part + b"more",
    ],
    ids=["cut", "empty", "changed", "longer"],
)
def test_damaged_parts_are_named_and_others_may_come(here: Path, change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(SystemExit, match="model tiny: its parts are damaged"):
        unpack(here, change)
    assert not (here / "models/tiny").exists()
    unpack(here, lambda part: part)
    assert (here / "models/tiny/weights").read_bytes() == WEIGHTS
