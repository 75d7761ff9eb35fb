"""Gives processes the time of one core, as a container with such a quota has it."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


class OneCore:
    """While the context lasts. `how`: by a control group (CFS quota), or, where there are none to be had, by pinning
    every thread to one core."""

    def __init__(self, pids: Iterable[int], core: int = 0) -> None:
        self._pids, self._core = list(pids), core
        self._group = _ROOT / f"hostless-bench-{os.getpid()}"
        self._homes: dict[int, str] = {}
        self._masks: dict[int, set[int]] = {}
        self.how = ""

    def __enter__(self) -> Self:
        try:
            self._limit()
            self.how = "control group"
        except OSError:
            self._leave()
            self._pin()
            self.how = "pinned"
        return self

    def _limit(self) -> None:
        if "cpu" not in (_ROOT / "cgroup.controllers").read_text().split():
            raise FileNotFoundError("no cpu controller")
        (_ROOT / "cgroup.subtree_control").write_text("+cpu")
        self._group.mkdir()
        (self._group / "cpu.max").write_text(f"{_PERIOD_US} {_PERIOD_US}")
        for pid in self._pids:
            self._homes[pid] = Path(f"/proc/{pid}/cgroup").read_text().split("::", 1)[1].strip()
            (self._group / "cgroup.procs").write_text(str(pid))

    def _pin(self) -> None:
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                self._masks[int(task.name)] = os.sched_getaffinity(int(task.name))
                os.sched_setaffinity(int(task.name), {self._core})

    def _leave(self) -> None:
        for pid, home in self._homes.items():
            if Path(f"/proc/{pid}").exists():
                (_ROOT / home.strip("/") / "cgroup.procs").write_text(str(pid))
        self._homes.clear()
        if self._group.exists():
            self._group.rmdir()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave()
        for task, mask in self._masks.items():
            if Path(f"/proc/{task}").exists():
                os.sched_setaffinity(task, mask)
