"""Regions: who may touch them, until when, and what is left after a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hostless.v1.fabric_pb2 import RegionDescriptor
from services.fabric import region_file
from services.fabric.errors import FabricError, NotARegion, RegionInUse, StaleRegion, UnknownTransport, WrongKey
from services.fabric.region import MemoryRegion, sweep
from services.fabric.transports import open_region

OWNER = """
import sys
from pathlib import Path
from services.fabric.region import MemoryRegion
region = MemoryRegion.create(sys.argv[2], 100, directory=Path(sys.argv[1]))
region.view[:5] = list(b"hello")
print(region.descriptor().SerializeToString().hex(), flush=True)
sys.stdin.read()
"""


@contextmanager
def owner_process(directory: Path, name: str) -> Iterator[tuple[subprocess.Popen[str], RegionDescriptor]]:
    command = [sys.executable, "-c", OWNER, str(directory), name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, RegionDescriptor.FromString(bytes.fromhex(process.stdout.readline()))
        process.kill()


def test_a_peer_reads_what_the_owner_wrote_and_the_other_way_round(tmp_path: Path) -> None:
    with MemoryRegion.create("a", 5000, directory=tmp_path) as region:
        assert region.view.nbytes == 5000
        assert region.view.ctypes.data % 4096 == 0
        assert not region.view.any()
        remote = open_region(region.descriptor())
        region.view[4990:] = range(10)
        assert remote.read(4990, 10) == bytes(range(10))
        remote.write(0, b"xyz")
        assert region.view[:3].tobytes() == b"xyz"
        mapped = remote.mapped()
        assert mapped is not None
        assert len(mapped) == 5000


def test_a_region_is_mapped_until_it_is_closed_and_no_view_is_held(tmp_path: Path) -> None:
    def is_mapped() -> bool:
        return str(region.path) in Path("/proc/self/maps").read_text()

    with MemoryRegion.create("unmapped", 5000, directory=tmp_path) as region:
        remote = open_region(region.descriptor())
        mapped = remote.mapped()
        assert mapped is not None
        remote.close()
        assert is_mapped()
        mapped.release()
        assert not is_mapped()
        for attempt in (remote.verify, lambda: remote.read(0, 1)):
            with pytest.raises(FabricError, match="closed here"):
                attempt()
        remote.close()


def test_files_are_private_unless_asked_otherwise(tmp_path: Path) -> None:
    with (
        MemoryRegion.create("a", 1, directory=tmp_path) as a,
        MemoryRegion.create("b", 1, directory=tmp_path, mode=0o660) as b,
    ):
        assert [r.path.stat().st_mode & 0o777 for r in (a, b)] == [0o600, 0o660]


def test_closing_ends_every_right(tmp_path: Path) -> None:
    region = MemoryRegion.create("a", 64, directory=tmp_path)
    remote = open_region(region.descriptor())
    region.close()
    region.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StaleRegion, match="has ended; ask its owner for a new descriptor"):
        remote.read(0, 8)
    with pytest.raises(StaleRegion):
        remote.write(0, b"12345678")
    with pytest.raises(NotARegion, match="No such file"):
        open_region(region.descriptor())


def test_a_restarted_owner_does_not_know_old_descriptors(tmp_path: Path) -> None:
    first = MemoryRegion.create("a", 64, directory=tmp_path)
    remote, old = open_region(first.descriptor()), first.descriptor()
    first.close()
    with MemoryRegion.create("a", 64, directory=tmp_path) as second:
        assert second.descriptor().generation != old.generation
        with pytest.raises(StaleRegion, match=f"generation {old.generation} has ended; it is"):
            open_region(old)
        with pytest.raises(StaleRegion):
            remote.cas(0, 0, 1)
        assert not second.view.any()


def test_a_wrong_key_gives_no_right(tmp_path: Path) -> None:
    with MemoryRegion.create("a", 64, directory=tmp_path) as region:
        guess = region.descriptor()
        guess.rkey ^= 1
        with pytest.raises(WrongKey, match=f"rkey {guess.rkey:#x} gives no right"):
            open_region(guess)


def test_a_descriptor_of_another_length_is_refused(tmp_path: Path) -> None:
    with MemoryRegion.create("a", 64, directory=tmp_path) as region:
        wrong = region.descriptor()
        wrong.length = 65
        with pytest.raises(NotARegion, match="has 64 bytes, its descriptor says 65"):
            open_region(wrong)


def test_an_unknown_transport_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownTransport, match=r"'pigeon'; known: shm"):
        open_region(RegionDescriptor(transport="pigeon", address="roof"))


def test_what_is_no_region_is_never_touched(tmp_path: Path) -> None:
    other = tmp_path / "hostless.a"
    for content in (b"short", b"x" * 8192):
        other.write_bytes(content)
        with pytest.raises(NotARegion):
            MemoryRegion.create("a", 64, directory=tmp_path)
        with pytest.raises(NotARegion):
            open_region(RegionDescriptor(transport="shm", address=str(other), length=64, generation=1))
        sweep(tmp_path)
        assert other.read_bytes() == content
    other.unlink()
    target = tmp_path / "target"
    with MemoryRegion.create("real", 64, directory=tmp_path) as region:
        target.symlink_to(region.path)
        link = region.descriptor()
        link.address = str(target)
        with pytest.raises(NotARegion, match="can't open"):
            open_region(link)


def test_a_live_owner_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.fabric.region._LOCK_WAIT_S", 0.02)
    with owner_process(tmp_path, "a") as (_, descriptor):
        with pytest.raises(RegionInUse, match="belongs to a live process"):
            MemoryRegion.create("a", 64, directory=tmp_path)
        assert open_region(descriptor).read(0, 5) == b"hello"


def test_the_file_of_a_killed_owner_is_revoked_and_removed_by_the_next(tmp_path: Path) -> None:
    with owner_process(tmp_path, "a") as (process, descriptor), owner_process(tmp_path, "other") as (_, alive):
        remote = open_region(descriptor)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert remote.read(0, 5) == b"hello"  # memory outlives its owner until somebody cleans up
        with MemoryRegion.create("b", 64, directory=tmp_path):  # any name sweeps the folder
            assert sorted(path.name for path in tmp_path.iterdir()) == ["hostless.b", "hostless.other"]
        with pytest.raises(StaleRegion):
            remote.read(0, 5)
        assert open_region(alive).read(0, 5) == b"hello"


def test_a_killed_owner_can_come_back_under_its_name(tmp_path: Path) -> None:
    with owner_process(tmp_path, "a") as (process, descriptor):
        process.send_signal(signal.SIGKILL)
        process.wait()
        with MemoryRegion.create("a", 64, directory=tmp_path) as again:
            assert not again.view.any()
            assert again.descriptor().generation != descriptor.generation


def test_a_region_that_was_replaced_is_not_unlinked_by_its_first_owner(tmp_path: Path) -> None:
    first = MemoryRegion.create("a", 64, directory=tmp_path)
    first.path.unlink()
    with MemoryRegion.create("a", 64, directory=tmp_path) as second:
        first.close()
        assert second.path.exists()


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "..", "a b"])
def test_names_stay_inside_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="region name"):
        MemoryRegion.create(name, 64, directory=tmp_path)


def test_lengths_are_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="length must be positive"):
        MemoryRegion.create("a", 0, directory=tmp_path)


def test_too_little_memory_is_an_error_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r".+"):
        MemoryRegion.create("a", 1 << 60, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_another_version_of_the_file_is_named(tmp_path: Path) -> None:
    with MemoryRegion.create("a", 64, directory=tmp_path) as region:
        data = bytearray(region.path.read_bytes()[: region_file.PAGE_BYTES])
        data[8] = 9
        with pytest.raises(NotARegion, match="version 9; this program reads version 2"):
            region_file.parse(bytes(data), region.path)
