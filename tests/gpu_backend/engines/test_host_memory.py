"""Available memory, read from files as Linux writes them."""

from pathlib import Path

from services.gpu_backend.engines.host_memory import available_bytes

MEMINFO = "MemTotal:       24000000 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n"


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    assert available_bytes(meminfo, tmp_path) == 2_048_000_000
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(meminfo, tmp_path) == 2_048_000_000
    (tmp_path / "memory.max").write_text("1000\n")
    assert available_bytes(meminfo, tmp_path) == 600


def test_this_machine_has_some() -> None:
    assert available_bytes() > 0
