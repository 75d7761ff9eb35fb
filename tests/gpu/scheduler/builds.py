"""The scheduler's kernel with the ways of tuning.hpp, each alone and together."""

from pathlib import Path

from services.gpu_backend.device import build
from services.gpu_backend.device.device_scheduler import DeviceScheduler

UNLANDED, EARLY, STILL = "HANDS_OVER_UNLANDED", "TAILS_EARLY", "STARTS_STILL"
BUILDS: dict[str, dict[str, int]] = {
    "as it is": {},
    "lands afterwards": {UNLANDED: 1},
    "tails early": {EARLY: 1},
    "starts still": {STILL: 1},
    "keeps its board": {"KEEPS_BOARD": 1},
    "quick hand-over": {UNLANDED: 1, EARLY: 1, STILL: 1, "KEEPS_BOARD": 1},
    "doorbells first": {"HOUSE_ROUNDS": 128},
    "doorbells only": {"HOUSE_ROUNDS": 1024, "LONGEST_REST_NS": 2_000_000},
    "all": {UNLANDED: 1, EARLY: 1, STILL: 1, "KEEPS_BOARD": 1, "HOUSE_ROUNDS": 128, "LONGEST_REST_NS": 1_000_000},
}


def source_of(name: str, folder: Path) -> Path:
    """Written to the folder, from where it can be built."""
    made = folder / f"{name.replace(' ', '_')}.cu"
    defines = [f"#define HOSTLESS_{each} {value}\n" for each, value in BUILDS[name].items()]
    made.write_text("".join(defines) + build.SCHEDULER_SOURCE.read_text())
    return made


def scheduler_of(name: str, folder: Path) -> type[DeviceScheduler]:
    if not BUILDS[name]:
        return DeviceScheduler
    return type("TunedScheduler", (DeviceScheduler,), {"source": source_of(name, folder)})
