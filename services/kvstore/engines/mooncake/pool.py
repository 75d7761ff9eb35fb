"""Mooncake's client as the engine needs it: objects of several parts, moved from and to our own memory."""

import errno
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.common.settings import SettingError
from services.kvstore.block import BadBlock

LOCAL_BUFFER_BYTES = 16 << 20
"""Mooncake's own staging memory; our transfers go past it."""

REACH_S = 5.0
"""Within so long the master must answer at the start."""

_MISSING = -704
_WRONG_SIZE = -600
_NO_ROOM = range(-299, -199)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """`segment_bytes` of this machine's memory join the pool; `host` is where other machines reach it."""

    master: str
    metadata: str = "P2PHANDSHAKE"
    host: str = "127.0.0.1"
    protocol: str = "tcp"
    devices: str = ""
    segment_bytes: int = 1 << 30
    replicas: int = 1


class Pool:
    """One member of the pool. For any thread. Raises SettingError where Mooncake isn't installed or doesn't answer."""

    def __init__(self, options: PoolOptions) -> None:
        os.environ.setdefault("GLOG_minloglevel", "3")  # its failures come back to us as codes
        os.environ.setdefault("MC_LOG_LEVEL", "FATAL")
        try:
            from mooncake.store import MooncakeDistributedStore, ReplicateConfig
        except ImportError as error:
            raise SettingError(
                f"engine: mooncake is not installed (pip install 'hostless[mooncake]'): {error}"
            ) from error
        _reach(options.master)
        self._client: Any = MooncakeDistributedStore()
        self._config: Any = ReplicateConfig()
        self._config.replica_num = options.replicas
        self._lock = threading.Lock()
        self._registered: dict[int, int] = {}  # address: bytes
        code = self._client.setup(
            options.host,
            options.metadata,
            options.segment_bytes,
            LOCAL_BUFFER_BYTES,
            options.protocol,
            options.devices,
            options.master,
        )
        if code:
            raise SettingError(f"mooncake-master: {options.master} can't be joined: Mooncake's error {code}")

    def put(self, keys: Sequence[str], parts: Sequence[Sequence[memoryview]]) -> list[OSError | None]:
        """Objects made of `parts`. One that is there already stays as it is."""
        with self._usable(parts):
            codes = self._client.batch_put_from_multi_buffers(list(keys), *_spans(parts), self._config)
        return [None if code == 0 else _failure(code) for code in codes]

    def get(self, keys: Sequence[str], parts: Sequence[Sequence[memoryview]]) -> list[Exception | None]:
        """Whole objects into `parts`, whose lengths together must be the object's."""
        with self._usable(parts):
            codes = self._client.batch_get_into_multi_buffers(list(keys), *_spans(parts))
        lengths = [sum(len(part) for part in object_parts) for object_parts in parts]
        return [_outcome(code, length) for code, length in zip(codes, lengths, strict=True)]

    def get_ranges(
        self, keys: Sequence[str], parts: Sequence[Sequence[memoryview]], offsets: Sequence[Sequence[int]]
    ) -> list[Exception | None]:
        """Of each object the bytes from each of its `offsets`, into the part beside it."""
        flat = [
            (key, part, at)
            for key, object_parts, ats in zip(keys, parts, offsets, strict=True)
            for part, at in zip(object_parts, ats, strict=True)
        ]
        with self._usable(parts):
            codes = self._client.get_into_ranges(
                [_address(part) for _, part, _ in flat],
                [[key] for key, _, _ in flat],
                [[[0]] for _ in flat],
                [[[at]] for _, _, at in flat],
                [[[len(part)]] for _, part, _ in flat],
            )
        outcomes = iter([_outcome(code[0][0], len(part)) for code, (_, part, _) in zip(codes, flat, strict=True)])
        found: list[Exception | None] = []
        for object_parts in parts:
            faults = [outcome for outcome in [next(outcomes) for _ in object_parts] if outcome is not None]
            found.append(faults[0] if faults else None)
        return found

    def remove(self, keys: Sequence[str]) -> list[OSError | None]:
        codes = self._client.batch_remove(list(keys), True)
        return [None if code in (0, _MISSING) else _failure(code) for code in codes]

    def register(self, memory: memoryview) -> None:
        """Lets the pool's network reach the memory. Idempotent."""
        with self._lock:
            address = _address(memory)
            if address not in self._registered and self._client.register_buffer(address, len(memory)) == 0:
                self._registered[address] = len(memory)

    def unregister(self, memory: memoryview) -> None:
        """Idempotent."""
        with self._lock:
            if self._registered.pop(_address(memory), None) is not None:
                self._client.unregister_buffer(_address(memory))

    def close(self) -> None:
        """Leaves the pool, and what of it lay here is gone. A master that is away is not waited for."""
        if self._client.health_check() == 0:
            self._client.close()

    @contextmanager
    def _usable(self, parts: Sequence[Sequence[memoryview]]) -> Iterator[None]:
        """Memory that isn't registered is, for this transfer only: a network card must know it."""
        with self._lock:
            known = list(self._registered.items())
        fresh = [part for object_parts in parts for part in object_parts if not _inside(part, known)]
        for part in fresh:
            self.register(part)
        try:
            yield
        finally:
            for part in fresh:
                self.unregister(part)


def _reach(master: str) -> None:
    """Mooncake itself would try for a minute and a half."""
    host, _, port = master.rpartition(":")
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except OSError as error:
        raise SettingError(f"mooncake-master: {master} can't be joined: {error}") from error


def _inside(part: memoryview, known: Sequence[tuple[int, int]]) -> bool:
    begin, end = _address(part), _address(part) + len(part)
    return any(at <= begin and end <= at + size for at, size in known)


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data)


def _spans(parts: Sequence[Sequence[memoryview]]) -> tuple[list[list[int]], list[list[int]]]:
    return [[_address(part) for part in each] for each in parts], [[len(part) for part in each] for each in parts]


def _outcome(code: int, length: int) -> Exception | None:
    if code == length:
        return None
    if code >= 0 or code == _WRONG_SIZE:
        return BadBlock(f"an object of another length: {code}")
    return BadBlock("the pool does not have it") if code == _MISSING else _failure(code)


def _failure(code: int) -> OSError:
    number = errno.ENOSPC if code in _NO_ROOM else errno.EIO
    return OSError(number, f"Mooncake's error {code}")
