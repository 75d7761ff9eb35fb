"""Channels to a disk that fails: what the engine's native part would answer then."""

from collections.abc import Callable, Sequence
from typing import Any

from services.kvstore import _segments


class FaultyChannels:
    """Hands on to real channels; then each answer goes through a fault. Faults see (number of the request in the
    batch, the request) and return 0 or an errno."""

    def __init__(self, real: _segments.Channels) -> None:
        self.real = real
        self.reading: Callable[[int, Any], int] = lambda at, request: 0
        self.writing: Callable[[int, Any], int] = lambda at, request: 0
        self.syncing: Callable[[int, Any], int] = lambda at, request: 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def read(self, requests: list[Any]) -> list[int]:
        return self._faults(self.reading, requests, self.real.read(requests))

    def write(self, requests: list[Any]) -> list[int]:
        return self._faults(self.writing, requests, self.real.write(requests))

    def sync(self, files: Sequence[tuple[int, int]]) -> list[int]:
        return self._faults(self.syncing, files, self.real.sync(files))

    @staticmethod
    def _faults(fault: Callable[[int, Any], int], requests: Sequence[Any], results: list[int]) -> list[int]:
        return [
            fault(at, request) or result for at, (request, result) in enumerate(zip(requests, results, strict=True))
        ]
